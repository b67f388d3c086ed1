//! The GPU of the calling thread.

use spark_ccl::cuda::cudarc::driver::sys::cuCtxGetDevice;
use spark_ccl::cuda::devices;

/// The device of the context that is current in this thread, or the first; `None` if there are no
/// GPUs, or no driver.
pub(crate) fn current_device() -> Option<usize> {
    if devices().ok()?.is_empty() {
        return None;
    }
    let mut device = 0;
    // SAFETY: the driver is there, since it has told its devices, and `device` can be written.
    let _ = unsafe { cuCtxGetDevice(&raw mut device) };
    usize::try_from(device).ok()
}
