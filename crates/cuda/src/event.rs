//! Times between events.

use cudarc::driver::{CudaEvent, sys};

use crate::driver::function;
use crate::{Error, checked};

/// Milliseconds between two events that have come, and were made to take the time
/// (`CU_EVENT_DEFAULT`).
///
/// cudarc's own `elapsed_ms` needs the driver of CUDA 12.8.
///
/// # Errors
/// The driver's: the events have not come yet, or do not take the time.
pub fn elapsed_ms(start: &CudaEvent, end: &CudaEvent) -> Result<f32, Error> {
    const NAME: &str = "cuEventElapsedTime";
    type Function = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;
    // SAFETY: it has had that type since there are events.
    let elapsed = unsafe { function::<Function>(NAME)? };
    let mut milliseconds = 0.0;
    // SAFETY: both events live.
    let said = unsafe { elapsed(&raw mut milliseconds, start.cu_event(), end.cu_event()) };
    checked(NAME, start.context().ordinal(), said.result())?;
    Ok(milliseconds)
}
