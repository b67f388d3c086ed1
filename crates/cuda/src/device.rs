//! The GPUs of this machine, and their primary contexts. Knows no streams or memory.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::{CudaContext, result, sys};

use crate::set_aside::{hand_over, only_set_aside_has};
use crate::{Error, checked, open};

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Device {
    /// CUDA's device ordinal.
    pub ordinal: usize,
    /// The name, such as `NVIDIA H200`.
    pub name: String,
    /// The PCI bus id, such as `0000:1b:00.0`.
    pub bus_id: String,
    /// The size of its memory, in bytes.
    pub memory: usize,
}

/// The GPUs that this process may use.
///
/// # Errors
/// There is no driver, it is too old or fails, or there is no GPU.
pub fn devices() -> Result<Vec<Device>, Error> {
    let count = count()?;
    (0..count).map(Device::look).collect()
}

/// How many GPUs this process may use, at least one.
///
/// # Errors
/// There is no driver, it is too old or fails, or there is no GPU.
pub fn count() -> Result<usize, Error> {
    open()?;
    checked("cuInit", 0, result::init()).or_else(|error| match error {
        Error::Call { code, .. } if code == sys::CUresult::CUDA_ERROR_NO_DEVICE as u32 => Ok(()),
        error => Err(error),
    })?;
    let no_device = sys::CUresult::CUDA_ERROR_NO_DEVICE;
    let count = match CudaContext::device_count() {
        Err(error) if error.0 == no_device => 0,
        count => checked("cuDeviceGetCount", 0, count)?,
    };
    if count <= 0 {
        return Err(Error::NoDevice);
    }
    Ok(count as usize)
}

impl Device {
    fn look(ordinal: usize) -> Result<Self, Error> {
        let device = checked("cuDeviceGet", ordinal, result::device::get(ordinal as i32))?;
        // SAFETY: `device` is a device: the driver has just returned it by this number. The driver
        // writes one number, to a variable of `total_mem`.
        let memory = unsafe { result::device::total_mem(device) };
        let memory = checked("cuDeviceTotalMem", ordinal, memory)?;
        Ok(Self {
            ordinal,
            name: name(ordinal)?,
            bus_id: bus_id(ordinal)?,
            memory,
        })
    }
}

/// The model of a device, such as `NVIDIA H200`.
///
/// # Errors
/// There is no driver, or no such device.
pub fn name(ordinal: usize) -> Result<String, Error> {
    open()?;
    let device = checked("cuDeviceGet", ordinal, result::device::get(ordinal as i32))?;
    checked("cuDeviceGetName", ordinal, result::device::get_name(device))
}

/// The PCI bus id of a device, such as `0000:1b:00.0`. It identifies the device among processes
/// with different sets of visible devices.
///
/// # Errors
/// There is no driver, or no such device.
pub fn bus_id(ordinal: usize) -> Result<String, Error> {
    open()?;
    let device = checked("cuDeviceGet", ordinal, result::device::get(ordinal as i32))?;
    let mut text = [0; 32];
    // SAFETY: the driver writes at most 32 bytes to `text`, including the zero at the end.
    let status = unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), 32, device) };
    checked("cuDeviceGetPCIBusId", ordinal, status.result())?;
    // SAFETY: the call has succeeded, so `text`, which lives as long as the reference to it, has a
    // zero within its 32 bytes.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) };
    Ok(text.to_string_lossy().to_lowercase())
}

/// The properties of a device that need no context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// The compute capability, such as (12, 1).
    pub capability: (i32, i32),
    /// Whether the device shares the memory of the processors.
    pub integrated: bool,
    /// Whether the driver claims that other devices reach its memory by dma-buf. On some devices
    /// that is not so.
    pub dma_buf: bool,
}

/// The properties of a device that need no context.
///
/// # Errors
/// There is no driver, or no such device.
pub fn traits(ordinal: usize) -> Result<Traits, Error> {
    use sys::CUdevice_attribute as Attribute;

    let ask = attributes_of(ordinal)?;
    let major = ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    // A driver that does not know the attribute does not claim it.
    let dma_buf = ask(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED).unwrap_or(0);
    Ok(Traits {
        capability: (major, minor),
        integrated: ask(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0,
        dma_buf: dma_buf != 0,
    })
}

/// A function that asks for the attributes of a device, without a context.
pub(crate) fn attributes_of(
    ordinal: usize,
) -> Result<impl Fn(sys::CUdevice_attribute) -> Result<i32, Error>, Error> {
    open()?;
    let device = checked("cuDeviceGet", ordinal, result::device::get(ordinal as i32))?;
    Ok(move |what| {
        // SAFETY: `device` is a device: the driver has just returned it by this number. The driver
        // writes one number, to a variable of `get_attribute`.
        let value = unsafe { result::device::get_attribute(device, what) };
        checked("cuDeviceGetAttribute", ordinal, value)
    })
}

/// The major number of a device's compute capability: 9 is Hopper's.
///
/// # Errors
/// The driver does not say.
pub fn generation(context: &CudaContext) -> Result<i32, Error> {
    let major = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
    attribute(context, major)
}

/// How many multiprocessors a device has.
///
/// # Errors
/// The driver does not say.
pub fn multiprocessors(context: &CudaContext) -> Result<i32, Error> {
    let count = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
    attribute(context, count)
}

/// An attribute of a device. Unlike cudarc's function, it does not return the error that cudarc
/// stores for its next call.
pub(crate) fn attribute(
    context: &CudaContext,
    what: sys::CUdevice_attribute,
) -> Result<i32, Error> {
    // SAFETY: `context` was made for a device that exists. The driver writes one number, to a
    // variable of `get_attribute`.
    let value = unsafe { result::device::get_attribute(context.cu_device(), what) };
    checked("cuDeviceGetAttribute", context.ordinal(), value)
}

/// The objects of primary contexts, by device: one for each, since cudarc counts streams and orders
/// the uses of buffers per object.
static CONTEXTS: Mutex<BTreeMap<usize, Weak<CudaContext>>> = Mutex::new(BTreeMap::new());

/// The primary context of a device, which the runtime API and NCCL use. Concurrent users share one
/// object: the one that was [adopted](adopt), or a new one.
///
/// # Errors
/// There is no driver, or no such device.
pub fn context(ordinal: usize) -> Result<Arc<CudaContext>, Error> {
    open()?;
    let mut known = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(context) = known.get(&ordinal).and_then(Weak::upgrade) {
        return Ok(context);
    }
    let made = CudaContext::new(ordinal);
    let context = checked("cuDevicePrimaryCtxRetain", ordinal, made)?;
    known.insert(ordinal, Arc::downgrade(&context));
    Ok(context)
}

/// Makes the user's own object of a primary context the one that [`context`] returns while it
/// exists. Memory that was [set aside](crate::free_set_aside) by another object, which nothing else
/// uses, then uses this one.
///
/// # Errors
/// It is no primary context, or another object of the device's context is in use.
pub fn adopt(context: &Arc<CudaContext>) -> Result<(), Error> {
    let device = context.ordinal();
    if !context.is_primary() {
        return Err(Error::Context {
            device,
            problem: "it is not the primary context, which NCCL uses",
        });
    }
    let known = || CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let before = known().get(&device).and_then(Weak::upgrade);
    if let Some(before) = before
        && !Arc::ptr_eq(&before, context)
        && only_set_aside_has(&before)
    {
        // Not freed, which would wait for all kernels of the device.
        hand_over(&before, context);
    }
    let mut known = known();
    let in_use = known.get(&device).and_then(Weak::upgrade);
    if in_use.is_some_and(|other| !Arc::ptr_eq(&other, context)) {
        return Err(Error::Context {
            device,
            problem: "another object of this context is in use; adopt it before anything else \
                      uses the device",
        });
    }
    known.insert(device, Arc::downgrade(context));
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::MutexGuard;

    use spark_ccl_testing::{Need, has};

    use super::*;
    use crate::{PinnedWords, free_set_aside, set_aside_bytes};

    /// Excludes other tests of the second device, since only one object of its context may be in
    /// use.
    pub(crate) fn second_device() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn one_object_of_a_context_is_in_use() {
        // Other tests use the first device.
        const DEVICE: usize = 1;
        if !has(Need::Gpus(2)) {
            return;
        }
        let _alone = second_device();
        open().unwrap();
        let [own, other] = [(); 2].map(|()| CudaContext::new(DEVICE).unwrap());
        adopt(&own).unwrap();
        adopt(&own).unwrap();
        assert!(Arc::ptr_eq(&context(DEVICE).unwrap(), &own));
        let said = adopt(&other).unwrap_err().to_string();
        assert!(said.contains("context of device 1"), "{said}");
        assert!(said.contains("another object"), "{said}");
        drop(own);
        adopt(&other).unwrap();
        assert!(Arc::ptr_eq(&context(DEVICE).unwrap(), &other));
        // Memory that nothing uses keeps an object alive, but does not prevent another one.
        let [words, more] = [(); 2].map(|()| PinnedWords::new(&other, 1000).unwrap());
        drop((words, other));
        let next = CudaContext::new(DEVICE).unwrap();
        adopt(&next).unwrap_err();
        drop(more);
        adopt(&next).unwrap();
        assert!(Arc::ptr_eq(&context(DEVICE).unwrap(), &next));
        // It is still set aside, now by the new object: the driver was not called.
        assert_eq!(set_aside_bytes(&next), 16000);
        free_set_aside(DEVICE, None);
        assert_eq!(Arc::strong_count(&next), 1);
    }
}
