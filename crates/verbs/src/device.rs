//! The RDMA devices of this machine.

use std::ffi::CStr;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::failed;
use crate::sysfs::Sysfs;
use crate::{Error, Library, hints, raw};

/// An RDMA device of this machine, not yet opened.
#[derive(Clone)]
pub struct Device {
    list: Arc<List>,
    pub(crate) raw: NonNull<raw::ibv_device>,
    name: String,
}

// SAFETY: libibverbs does not change a device after it has listed it, and its functions may be
// called on it by any thread. `list` keeps it valid.
unsafe impl Send for Device {}
// SAFETY: libibverbs does not change a device after it has listed it, and several threads may call
// its functions on it at once.
unsafe impl Sync for Device {}

impl Library {
    /// The RDMA devices of this machine. Having none is not an error.
    ///
    /// # Errors
    ///
    /// The kernel's modules for RDMA are not loaded, or not accessible.
    pub fn devices(self) -> Result<Vec<Device>, Error> {
        Device::all(self)
    }
}

impl Device {
    fn all(library: Library) -> Result<Vec<Device>, Error> {
        let mut count = 0;
        // SAFETY: the function only writes the number of devices, to a local.
        let first = unsafe { (library.api.ibv_get_device_list)(&raw mut count) };
        let Some(first) = NonNull::new(first) else {
            let error = failed("ibv_get_device_list", "all devices", hints::devices);
            // A kernel without RDMA has no devices.
            let none = error.errno() == Some(libc::ENOSYS);
            return if none { Ok(Vec::new()) } else { Err(error) };
        };
        let list = Arc::new(List { library, first });
        let indices = 0..count.max(0) as usize;
        // SAFETY: the list has `count` entries, and `index` is less than that.
        let devices = indices.map(|index| unsafe { *first.as_ptr().add(index) });
        Ok(devices
            .filter_map(NonNull::new)
            .map(|raw| Device {
                list: Arc::clone(&list),
                raw,
                name: name(&list, raw),
            })
            .collect())
    }

    /// Its name, such as `rocep1s0f0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The GUID that its manufacturer assigned; 0 if there is none.
    pub fn node_guid(&self) -> u64 {
        // SAFETY: `self.list` keeps the list that the device belongs to from being freed.
        u64::from_be(unsafe { (self.library().api.ibv_get_device_guid)(self.raw.as_ptr()) })
    }

    /// Its PCI address, such as `0000:01:00.0`; `None` for a software device.
    pub fn pci_address(&self) -> Option<String> {
        Sysfs::default().pci_address(&self.name)
    }

    /// The network interfaces of its ports.
    pub fn netdevs(&self) -> Vec<String> {
        Sysfs::default().netdevs(&self.name)
    }

    pub(crate) fn library(&self) -> Library {
        self.list.library
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.name).finish()
    }
}

/// The name of a device of the list.
fn name(list: &List, device: NonNull<raw::ibv_device>) -> String {
    // SAFETY: `device` is one of `list`, which is borrowed, so it is valid.
    let name = unsafe { (list.library.api.ibv_get_device_name)(device.as_ptr()) };
    if name.is_null() {
        return String::new();
    }
    // SAFETY: the name is a C string within the device, which is valid as long as its list; that is
    // borrowed until the name was copied.
    unsafe { CStr::from_ptr(name) }
        .to_string_lossy()
        .into_owned()
}

/// libibverbs' list of devices. A device is valid while its list exists, or while it is open.
struct List {
    library: Library,
    first: NonNull<*mut raw::ibv_device>,
}

// SAFETY: the list is only read until it is freed, and any thread may free it.
unsafe impl Send for List {}
// SAFETY: the list does not change after it was made, and shared references only read it.
unsafe impl Sync for List {}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: `first` is from `ibv_get_device_list`, and only this frees it. Every `Device` of
        // the list holds it, so none is left.
        unsafe { (self.library.api.ibv_free_device_list)(self.first.as_ptr()) };
    }
}
