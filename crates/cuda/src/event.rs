//! The user's CUDA events: recording one, and the time between two.

use cudarc::driver::{CudaContext, CudaEvent, result, sys};

use crate::current::make_current;
use crate::driver::function;
use crate::{Error, checked};

/// Records an event in a stream, and makes its context current.
///
/// # Safety
/// The event is of this context, and the stream is a default one, or of this context. Neither is
/// destroyed before this returns.
///
/// # Errors
/// The driver fails.
pub unsafe fn record(
    context: &CudaContext,
    event: sys::CUevent,
    stream: sys::CUstream,
) -> Result<(), Error> {
    let device = make_current(context)?;
    // SAFETY: the caller destroys neither the event nor the stream before this returns. It says
    // that the event is of `context`, which is now current, and the stream, too, unless it is a
    // default one.
    let recorded = unsafe { result::event::record(event, stream) };
    checked("cuEventRecord", device, recorded)
}

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
