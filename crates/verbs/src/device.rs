use std::ffi::CStr;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::failed;
use crate::sysfs::Sysfs;
use crate::{Error, Library, hints, raw};

/// An RDMA device of this machine, not opened.
#[derive(Clone)]
pub struct Device {
    list: Arc<List>,
    pub(crate) raw: NonNull<raw::ibv_device>,
    name: String,
}

// SAFETY: libibverbs' devices do not change after they were listed, and may be used by any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Library {
    /// The RDMA devices of this machine; none is no error.
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
        // SAFETY: the function writes the number of devices.
        let first = unsafe { (library.api.ibv_get_device_list)(&raw mut count) };
        let Some(first) = NonNull::new(first) else {
            let error = failed("ibv_get_device_list", "all devices", hints::devices);
            // A kernel without RDMA has no devices.
            let none = error.errno() == Some(libc::ENOSYS);
            return if none { Ok(Vec::new()) } else { Err(error) };
        };
        let list = Arc::new(List { library, first });
        let places = 0..count.max(0) as usize;
        // SAFETY: the list has that many places.
        let devices = places.map(|place| unsafe { *first.as_ptr().add(place) });
        Ok(devices
            .filter_map(NonNull::new)
            .map(|raw| Device {
                list: Arc::clone(&list),
                raw,
                name: name(library, raw),
            })
            .collect())
    }

    /// Its name, as in `rocep1s0f0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number that its maker gave it; 0 where there is none.
    pub fn node_guid(&self) -> u64 {
        // SAFETY: the device is in a list that is not freed.
        u64::from_be(unsafe { (self.library().api.ibv_get_device_guid)(self.raw.as_ptr()) })
    }

    /// Its PCI address, as in `0000:01:00.0`; none for a software device.
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

fn name(library: Library, device: NonNull<raw::ibv_device>) -> String {
    // SAFETY: the device was just listed.
    let name = unsafe { (library.api.ibv_get_device_name)(device.as_ptr()) };
    if name.is_null() {
        return String::new();
    }
    // SAFETY: a device's name is a string that lives as long as the device's list.
    unsafe { CStr::from_ptr(name) }
        .to_string_lossy()
        .into_owned()
}

/// What libibverbs listed. Devices are valid while it is there, or while they are open.
struct List {
    library: Library,
    first: NonNull<*mut raw::ibv_device>,
}

// SAFETY: a list is only read, and freed once.
unsafe impl Send for List {}
// SAFETY: as above.
unsafe impl Sync for List {}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list is libibverbs', and is freed once.
        unsafe { (self.library.api.ibv_free_device_list)(self.first.as_ptr()) };
    }
}
