//! Memory that NCCL is told of, so that it can go straight there.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::Communicator;
use super::group::{self, Slot};
use crate::{ArgumentError, DeviceSlice, Error};

/// Memory that is registered with a communicator, until [`Communicator::deregister`] or its end.
#[derive(Debug)]
pub struct Registration {
    handle: Option<NonNull<c_void>>,
    communicator: u64,
}

// SAFETY: it is a number to all but NCCL, which is given it with its communicator only.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

/// Memory that all ranks have registered together, until [`Communicator::deregister_window`] or the
/// communicator's end.
#[derive(Debug)]
pub struct Window {
    slot: Arc<Slot>,
    communicator: u64,
}

/// What a window is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// What the ranks register may differ.
    Default = 0,
    /// All ranks register buffers of the same size, at the same offset of an allocation.
    Symmetric = 1,
}

impl Registration {
    /// Whether NCCL made use of it. It leaves out what it would not gain from.
    pub fn is_used(&self) -> bool {
        self.handle.is_some()
    }
}

impl Communicator {
    /// Registers a buffer from [`Library::allocate`](crate::Library::allocate), or one that can be
    /// shared with other GPUs in another way, for this rank.
    ///
    /// # Errors
    ///
    /// The buffer is another device's, NCCL cannot register it, or is older than 2.19.1.
    pub fn register(&self, buffer: DeviceSlice) -> Result<Registration, Error> {
        let call = self.begin("ncclCommRegister")?;
        call.alone()?;
        call.places(&[("registered", Some(buffer))], None)?;
        let function = call.api().ncclCommRegister()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the communicator lives, and is this thread's; the buffer lives as long as it is
        // registered, as whoever made it promised.
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
    /// It is another communicator's.
    #[expect(clippy::needless_pass_by_value, reason = "it must not be used again")]
    pub fn deregister(&self, registration: Registration) -> Result<(), Error> {
        let call = self.begin("ncclCommDeregister")?;
        call.own("registration", registration.communicator)?;
        let function = call.api().ncclCommDeregister()?;
        // NCCL has no handle for what it would not gain from.
        let Some(handle) = registration.handle else {
            return Ok(());
        };
        // SAFETY: the communicator lives, and made the registration, which is given up with this.
        let code = unsafe { function(call.raw, handle.as_ptr()) };
        call.finish(code)
    }

    /// Registers a buffer on all ranks together.
    ///
    /// # Errors
    ///
    /// The buffer is another device's, or does not start at a multiple of 4 KiB; NCCL cannot register
    /// it, or is older than 2.27.3.
    pub fn register_window(&self, buffer: DeviceSlice, kind: WindowKind) -> Result<Window, Error> {
        let call = self.begin("ncclCommWindowRegister")?;
        call.places(&[("registered", Some(buffer))], None)?;
        let (address, needs) = (buffer.start().addr(), WINDOW_ALIGNMENT);
        if !address.is_multiple_of(needs) {
            return call.refuse(ArgumentError::Alignment { address, needs });
        }
        let function = call.api().ncclCommWindowRegister()?;
        let slot = Arc::new(AtomicPtr::new(ptr::null_mut()));
        group::keep(&slot);
        // SAFETY: as in `register`; what NCCL fills in lives until it is settled, or its group has
        // ended, or the communicator has.
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
    /// It is another communicator's.
    pub fn deregister_window(&self, window: Window) -> Result<(), Error> {
        let Window { slot, communicator } = window;
        let call = self.begin("ncclCommWindowDeregister")?;
        call.own("window", communicator)?;
        let function = call.api().ncclCommWindowDeregister()?;
        let handle = slot.load(Ordering::Relaxed);
        if handle.is_null() {
            return Ok(());
        }
        // SAFETY: the communicator lives, and made the window, which is given up with this.
        let code = unsafe { function(call.raw, handle.cast()) };
        call.finish(code)
    }
}

impl Window {
    /// Whether NCCL made one. It leaves it out where it cannot use it, and works without.
    pub fn is_used(&self) -> bool {
        // It carries nothing: NCCL has written it when its call, or the group, was over.
        !self.slot.load(Ordering::Relaxed).is_null()
    }
}

/// `NCCL_WIN_REQUIRED_ALIGNMENT`.
const WINDOW_ALIGNMENT: usize = 4096;
