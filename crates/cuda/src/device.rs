//! The GPUs of this machine.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::{CudaContext, result, sys};

use crate::{Error, checked, open};

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Device {
    /// CUDA's number.
    pub ordinal: usize,
    /// What it is called: `NVIDIA H200`.
    pub name: String,
    /// Its place on the PCI bus: `0000:1b:00.0`.
    pub bus_id: String,
    /// Bytes of its memory.
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
/// As of [`devices`].
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
        let name = checked("cuDeviceGetName", ordinal, result::device::get_name(device))?;
        // SAFETY: the device was just given by the driver.
        let memory = unsafe { result::device::total_mem(device) };
        let memory = checked("cuDeviceTotalMem", ordinal, memory)?;
        Ok(Self {
            ordinal,
            name,
            bus_id: bus_id(ordinal)?,
            memory,
        })
    }
}

/// The place of a device on the PCI bus, by which processes that see other devices tell them apart: `0000:1b:00.0`.
///
/// # Errors
/// There is no driver, or no such device.
pub fn bus_id(ordinal: usize) -> Result<String, Error> {
    open()?;
    let device = checked("cuDeviceGet", ordinal, result::device::get(ordinal as i32))?;
    let mut text = [0; 32];
    // SAFETY: it fills in a text of up to 32 bytes, with a zero at its end.
    let said = unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), 32, device) };
    checked("cuDeviceGetPCIBusId", ordinal, said.result())?;
    // SAFETY: as above.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) };
    Ok(text.to_string_lossy().to_lowercase())
}

/// The primary context of a device, which the runtime API and NCCL use: one object for all who use it at the
/// same time, since cudarc counts streams and keeps events in order by the object.
///
/// # Errors
/// There is no driver, or no such device.
pub fn context(ordinal: usize) -> Result<Arc<CudaContext>, Error> {
    static KNOWN: Mutex<BTreeMap<usize, Weak<CudaContext>>> = Mutex::new(BTreeMap::new());
    open()?;
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(context) = known.get(&ordinal).and_then(Weak::upgrade) {
        return Ok(context);
    }
    let made = CudaContext::new(ordinal);
    let context = checked("cuDevicePrimaryCtxRetain", ordinal, made)?;
    known.insert(ordinal, Arc::downgrade(&context));
    Ok(context)
}
