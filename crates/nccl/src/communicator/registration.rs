//! Registration of device memory, through which NCCL can access the memory directly.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::Communicator;
use super::group::{self, Slot};
use crate::{ArgumentError, DeviceSlice, Error};

/// Memory registered with a communicator until [`Communicator::deregister`], or until the
/// communicator ends.
#[derive(Debug)]
pub struct Registration {
    handle: Option<NonNull<c_void>>,
    communicator: u64,
}

// SAFETY: the handle is never dereferenced here. NCCL takes it only together with its communicator,
// whose calls are not concurrent.
unsafe impl Send for Registration {}
// SAFETY: a shared reference only says whether there is a handle.
unsafe impl Sync for Registration {}

/// Memory registered by all ranks together, until [`Communicator::deregister_window`] or until the
/// communicator ends.
#[derive(Debug)]
pub struct Window {
    slot: Arc<Slot>,
    communicator: u64,
}

/// The buffers that a window may consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// The ranks' buffers may differ.
    Default = 0,
    /// All ranks register buffers of the same size, at the same offset in an allocation.
    Symmetric = 1,
}

impl Registration {
    /// Whether NCCL uses the registration. NCCL ignores memory that it would not benefit from.
    pub fn is_used(&self) -> bool {
        self.handle.is_some()
    }
}

impl Communicator {
    /// Registers a buffer for this rank. It must come from
    /// [`Library::allocate`](crate::Library::allocate), or be shareable with other GPUs in another
    /// way.
    ///
    /// # Errors
    ///
    /// The buffer belongs to another device, NCCL cannot register it, or NCCL is older than 2.19.1.
    pub fn register(&self, buffer: DeviceSlice) -> Result<Registration, Error> {
        let call = self.begin("ncclCommRegister")?;
        call.refuse_in_group()?;
        call.check_buffers(&[("registered", Some(buffer))], None)?;
        let function = call.api().ncclCommRegister()?;
        let mut handle = ptr::null_mut();
        // SAFETY: `begin` returned the handle of a live communicator of this thread, and NCCL
        // writes the new handle to `handle`. `DeviceSlice::from_raw`'s caller promised that the
        // memory lives while it is registered.
        let code = unsafe { function(call.raw, buffer.start(), buffer.bytes(), &raw mut handle) };
        call.finish(code)?;
        Ok(Registration {
            handle: NonNull::new(handle),
            communicator: self.inner.number,
        })
    }

    /// Ends a registration.
    ///
    /// # Errors
    ///
    /// It belongs to another communicator.
    #[expect(clippy::needless_pass_by_value, reason = "it must not be used again")]
    pub fn deregister(&self, registration: Registration) -> Result<(), Error> {
        let call = self.begin("ncclCommDeregister")?;
        call.check_owner("registration", registration.communicator)?;
        let function = call.api().ncclCommDeregister()?;
        // NCCL returns no handle for a registration that it does not use.
        let Some(handle) = registration.handle else {
            return Ok(());
        };
        // SAFETY: `begin` returned the handle of a live communicator. `check_owner` has checked
        // that it made the registration, which is consumed here, so it ends only once.
        let code = unsafe { function(call.raw, handle.as_ptr()) };
        call.finish(code)
    }

    /// Registers a buffer on all ranks together.
    ///
    /// # Errors
    ///
    /// The buffer belongs to another device, or does not start at a multiple of 4 KiB; NCCL cannot
    /// register it, or is older than 2.27.3.
    pub fn register_window(&self, buffer: DeviceSlice, kind: WindowKind) -> Result<Window, Error> {
        let call = self.begin("ncclCommWindowRegister")?;
        call.check_buffers(&[("registered", Some(buffer))], None)?;
        let (address, needs) = (buffer.start().addr(), WINDOW_ALIGNMENT);
        if !address.is_multiple_of(needs) {
            return call.refuse(ArgumentError::Alignment { address, needs });
        }
        let function = call.api().ncclCommWindowRegister()?;
        let slot = Arc::new(AtomicPtr::new(ptr::null_mut()));
        group::keep(&slot);
        // SAFETY: `begin` returned the handle of a live communicator of this thread.
        // `DeviceSlice::from_raw`'s caller promised that the memory lives while it is registered.
        // NCCL writes the window's handle to `slot`, which lives until the call is settled; this
        // thread's group, if it has one, keeps it until the group ends, and after an error the
        // communicator keeps it.
        let code = unsafe {
            function(
                call.raw,
                buffer.start(),
                buffer.bytes(),
                slot.as_ptr().cast(),
                kind as c_int,
            )
        };
        let settled = call.finish_begun(code);
        if settled.is_err() {
            self.inner.keep(slot.clone());
        }
        settled.map(|()| Window {
            slot,
            communicator: self.inner.number,
        })
    }

    /// Ends a window on all ranks together.
    ///
    /// # Errors
    ///
    /// It belongs to another communicator.
    pub fn deregister_window(&self, window: Window) -> Result<(), Error> {
        let Window { slot, communicator } = window;
        let call = self.begin("ncclCommWindowDeregister")?;
        call.check_owner("window", communicator)?;
        let function = call.api().ncclCommWindowDeregister()?;
        let handle = slot.load(Ordering::Relaxed);
        if handle.is_null() {
            return Ok(());
        }
        // SAFETY: `begin` returned the handle of a live communicator. `check_owner` has checked
        // that it made the window, which is consumed here, so it ends only once.
        let code = unsafe { function(call.raw, handle.cast()) };
        call.finish(code)
    }
}

impl Window {
    /// Whether NCCL made a window. If it cannot, it works without.
    pub fn is_used(&self) -> bool {
        // Relaxed: NCCL wrote the handle before its call, or the group, ended.
        !self.slot.load(Ordering::Relaxed).is_null()
    }
}

/// `NCCL_WIN_REQUIRED_ALIGNMENT`.
const WINDOW_ALIGNMENT: usize = 4096;
