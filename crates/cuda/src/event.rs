//! The time between two CUDA events.

use cudarc::driver::{CudaEvent, sys};

use crate::driver::function;
use crate::{Error, checked};

/// The milliseconds between two events. Both must have completed, and must have been created with
/// timing (`CU_EVENT_DEFAULT`).
///
/// cudarc's own `elapsed_ms` needs the driver of CUDA 12.8.
///
/// # Errors
/// The driver fails: an event has not completed, or has no timing.
pub fn elapsed_ms(start: &CudaEvent, end: &CudaEvent) -> Result<f32, Error> {
    const NAME: &str = "cuEventElapsedTime";
    type Function = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;
    // SAFETY: `cuEventElapsedTime` has this type in every version of CUDA.
    let elapsed = unsafe { function::<Function>(NAME)? };
    let mut milliseconds = 0.0;
    // SAFETY: both events are borrowed, and the driver writes one number to `milliseconds`.
    let status = unsafe { elapsed(&raw mut milliseconds, start.cu_event(), end.cu_event()) };
    checked(NAME, start.context().ordinal(), status.result())?;
    Ok(milliseconds)
}
