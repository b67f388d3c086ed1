//! Open devices, and queries of their limits, ports and GIDs.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::error::{failed, failed_as};
use crate::sysfs::Sysfs;
use crate::{Device, Error, Gid, GidEntry, GidKind, Library, Limits, Port, hints, raw};

/// An open device. Clones share it. It is closed when the last clone, and the last object made on
/// it, is dropped.
#[derive(Clone)]
pub struct Context(pub(crate) Arc<Open>);

pub(crate) struct Open {
    pub(crate) library: Library,
    pub(crate) raw: NonNull<raw::ibv_context>,
    pub(crate) name: String,
}

// SAFETY: libibverbs' functions may be called on a context by any thread.
unsafe impl Send for Open {}
// SAFETY: libibverbs' functions may be called on the same context by several threads at once.
unsafe impl Sync for Open {}

impl Device {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// The device is gone, or not accessible: this user may not open `/dev/infiniband/uverbs*`, or
    /// it is not in this container.
    pub fn open(&self) -> Result<Context, Error> {
        Context::open(self)
    }
}

impl Context {
    fn open(device: &Device) -> Result<Context, Error> {
        let library = device.library();
        // SAFETY: `device` holds the list that it belongs to, so it is valid.
        let opened = unsafe { (library.api.ibv_open_device)(device.raw.as_ptr()) };
        let raw = NonNull::new(opened)
            .ok_or_else(|| failed("ibv_open_device", device.name(), hints::open))?;
        let context = Context(Arc::new(Open {
            library,
            raw,
            name: device.name().to_owned(),
        }));
        context.read_events_without_blocking()?;
        Ok(context)
    }

    fn read_events_without_blocking(&self) -> Result<(), Error> {
        let fd = self.async_fd();
        let set = fcntl_getfl(fd).and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK));
        set.map_err(|errno| {
            failed_as("fcntl", errno.raw_os_error(), self.name(), |_| {
                String::new()
            })
        })
    }

    /// Warns where `call` has failed to destroy an object of the device.
    pub(crate) fn warn_of(&self, call: &str, errno: i32) {
        if errno != 0 {
            spark_ccl_log::warn!("{}: {call} failed: errno {errno}", self.name());
        }
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The limits of the device.
    ///
    /// # Errors
    ///
    /// The device is gone.
    pub fn limits(&self) -> Result<Limits, Error> {
        let mut limits = MaybeUninit::<raw::ibv_device_attr>::zeroed();
        // SAFETY: the context is open, and the function writes one `ibv_device_attr`, to a local.
        let errno = unsafe { (self.api().ibv_query_device)(self.raw(), limits.as_mut_ptr()) };
        if errno != 0 {
            return Err(failed_as(
                "ibv_query_device",
                errno,
                self.name(),
                hints::gone,
            ));
        }
        // SAFETY: the structure holds only integers, for which zeros are valid, and was zeroed.
        Ok(Limits::from_raw(unsafe { limits.assume_init_ref() }))
    }

    /// The attributes and state of a port. Ports are numbered from 1.
    ///
    /// # Errors
    ///
    /// The device has no port of this number, or is gone.
    pub fn port(&self, number: u8) -> Result<Port, Error> {
        let mut port = MaybeUninit::<raw::ibv_port_attr>::zeroed();
        // SAFETY: the context is open. The function takes a pointer to `_compat_ibv_port_attr`,
        // which is the leading part of `ibv_port_attr`, and writes no more than that.
        let errno =
            unsafe { (self.api().ibv_query_port)(self.raw(), number, port.as_mut_ptr().cast()) };
        if errno != 0 {
            let port = format_args!("port {number} of {}", self.name()).to_string();
            return Err(failed_as("ibv_query_port", errno, port, hints::port));
        }
        // SAFETY: the structure holds only integers, for which zeros are valid, and was zeroed.
        Ok(Port::from_raw(number, unsafe { port.assume_init_ref() }))
    }

    /// The GIDs of a port that are in use, by index. The table changes as addresses are added and
    /// removed.
    ///
    /// # Errors
    ///
    /// The device is gone.
    pub fn gids(&self, port: u8) -> Result<Vec<GidEntry>, Error> {
        let Ok(query) = self.api()._ibv_query_gid_table() else {
            return Ok(Sysfs::default().gids(self.name(), port));
        };
        let most: u32 = (1..=self.limits()?.ports)
            .map(|port| Ok(self.port(port)?.gid_table_len))
            .sum::<Result<u32, Error>>()?;
        let mut entries: Vec<MaybeUninit<raw::ibv_gid_entry>> = Vec::new();
        entries.resize_with(most as usize, MaybeUninit::zeroed);
        // SAFETY: the context is open. The function writes at most `entries.len()` entries of the
        // size given.
        let count = unsafe {
            let first = entries.as_mut_ptr().cast();
            query(
                self.raw(),
                first,
                entries.len(),
                0,
                size_of::<raw::ibv_gid_entry>(),
            )
        };
        if count < 0 {
            let errno = -count as i32;
            return Err(failed_as(
                "ibv_query_gid_table",
                errno,
                self.name(),
                hints::gone,
            ));
        }
        // SAFETY: an entry holds only integers and bytes, for which zeros are valid, and was
        // zeroed.
        let entries = entries
            .iter()
            .take(count as usize)
            .map(|entry| unsafe { entry.assume_init_ref() });
        Ok(entries
            .filter(|entry| entry.port_num == u32::from(port))
            .map(gid_entry)
            .collect())
    }

    /// A descriptor that becomes readable when [`Context::next_event`] has an event.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the context, which `self` keeps open for the
        // lifetime of the borrow.
        unsafe { BorrowedFd::borrow_raw((*self.raw()).async_fd) }
    }

    pub(crate) fn api(&self) -> &'static crate::library::Api {
        self.0.library.api
    }

    pub(crate) fn raw(&self) -> *mut raw::ibv_context {
        self.0.raw.as_ptr()
    }
}

impl AsFd for Context {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.async_fd()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.0.name).finish()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: everything made on the context holds it, so nothing is left. Only this closes it.
        let result = unsafe { (self.library.api.ibv_close_device)(self.raw.as_ptr()) };
        if result != 0 {
            spark_ccl_log::warn!(
                "{}: ibv_close_device failed; the device stays open",
                self.name
            );
        }
    }
}

fn gid_entry(entry: &raw::ibv_gid_entry) -> GidEntry {
    let netdev = match entry.ndev_ifindex {
        0 => None,
        index => nix::net::if_::if_indextoname(index).ok(),
    };
    GidEntry {
        // SAFETY: every field of the union covers the same 16 bytes, all initialised, and any bytes
        // are a valid `raw`.
        gid: Gid(unsafe { entry.gid.raw }),
        port: entry.port_num as u8,
        index: entry.gid_index,
        kind: match entry.gid_type {
            raw::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
            raw::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
            _ => GidKind::Ib,
        },
        netdev: netdev.and_then(|name| name.into_string().ok()),
    }
}
