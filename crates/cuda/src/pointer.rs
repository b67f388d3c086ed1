//! Looks addresses up in the driver: whose memory they are in.

use cudarc::driver::{CudaContext, sys};

use crate::stream::make_current;
use crate::{Error, checked};

/// The device whose memory an address is in, by CUDA's number; `None` where the driver knows of no
/// memory there. Pinned and managed memory have the device of the context that they were allocated
/// in. Allowed while a graph is captured.
///
/// # Errors
/// The driver fails.
pub fn device_of(context: &CudaContext, address: u64) -> Result<Option<usize>, Error> {
    let device = make_current(context)?;
    let mut ordinal = 0_i32;
    // SAFETY: this attribute is one `int`, which the driver writes to `ordinal`. It only looks the
    // address up.
    let status = unsafe {
        sys::cuPointerGetAttribute(
            (&raw mut ordinal).cast(),
            sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            address,
        )
    };
    if status == sys::CUresult::CUDA_ERROR_INVALID_VALUE {
        return Ok(None);
    }
    checked("cuPointerGetAttribute", device, status.result())?;
    Ok(usize::try_from(ordinal).ok())
}
