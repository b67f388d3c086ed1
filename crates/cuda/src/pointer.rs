//! Looks addresses up in the driver: in which device's memory they are, and where that memory ends.

use std::ops::Range;

use cudarc::driver::{CudaContext, sys};

use crate::current::make_current;
use crate::driver::open;
use crate::{Error, checked};

/// The device whose memory an address is in, by CUDA's number; `None` if the driver knows of no
/// memory there. Pinned and managed memory have the device of the context that they were allocated
/// in. Allowed while a graph is captured.
///
/// # Errors
/// The driver fails.
pub fn device_of(context: &CudaContext, address: u64) -> Result<Option<usize>, Error> {
    let device = make_current(context)?;
    let mut ordinal = 0_i32;
    // SAFETY: this attribute is one `int`, which the driver writes to `ordinal`. The driver only
    // looks the address up.
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

/// Whether an address is in memory of a device, which the CPU cannot read. Also false without a
/// driver, or before the process uses it. Needs no context.
pub fn is_device_only(address: u64) -> bool {
    use sys::CUpointer_attribute::{
        CU_POINTER_ATTRIBUTE_IS_MANAGED as MANAGED, CU_POINTER_ATTRIBUTE_MEMORY_TYPE as TYPE,
    };

    if open().is_err() {
        return false;
    }
    let ask = |attribute| {
        let mut answer = 0_u64;
        // SAFETY: these attributes have at most 4 bytes, which the driver writes to `answer`. The
        // driver only looks the address up.
        let status =
            unsafe { sys::cuPointerGetAttribute((&raw mut answer).cast(), attribute, address) };
        (status == sys::CUresult::CUDA_SUCCESS).then_some(answer)
    };
    let device = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u64;
    ask(TYPE) == Some(device) && ask(MANAGED) == Some(0)
}

/// The number of bytes from an address on, up to `bytes`, that are memory of the context's device:
/// one allocation, or mappings that follow each other. The address itself is [of that
/// device](device_of). The memory ends before addresses that are only reserved, or that the device
/// may not access. Allowed while a graph is captured.
///
/// # Errors
/// The driver fails.
pub fn bytes_from(context: &CudaContext, address: u64, bytes: u64) -> Result<u64, Error> {
    let mut end = address;
    while end - address < bytes {
        if end > address && device_of(context, end)? != Some(context.ordinal()) {
            break;
        }
        match range_of(context.ordinal(), end)? {
            Some(range) if range.end > end => end = range.end,
            _ => break,
        }
    }
    Ok(bytes.min(end - address))
}

/// The allocation, or the single mapping, that an address is in. The attribute
/// `CU_POINTER_ATTRIBUTE_RANGE_SIZE` would not do: for mapped memory it tells how much is reserved.
pub(crate) fn range_of(device: usize, address: u64) -> Result<Option<Range<u64>>, Error> {
    let (mut start, mut bytes) = (0, 0);
    // SAFETY: the driver writes one address, to `start`, and one number, to `bytes`. The driver
    // only looks the address up.
    let status = unsafe { sys::cuMemGetAddressRange_v2(&raw mut start, &raw mut bytes, address) };
    match status {
        sys::CUresult::CUDA_ERROR_NOT_FOUND | sys::CUresult::CUDA_ERROR_INVALID_VALUE => Ok(None),
        status => checked("cuMemGetAddressRange", device, status.result())
            .map(|()| start.checked_add(bytes as u64).map(|end| start..end)),
    }
}
