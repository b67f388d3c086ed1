//! Registered buffers that a request can own.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::{Access, Error, MemoryRegion, ProtectionDomain};

/// Memory that a request may own: a `Vec<u8>` or a `Box<[u8]>`.
pub trait Buffer: sealed::Sealed + Send + 'static {}
impl Buffer for Vec<u8> {}
impl Buffer for Box<[u8]> {}

mod sealed {
    use std::ptr::NonNull;

    /// The parts of a buffer. While a device has the memory, there must be no reference to it, nor
    /// a value, for instance a `Box`, that claims unique access to it.
    pub struct Parts {
        pub(super) start: NonNull<u8>,
        pub(super) bytes: usize,
        pub(super) capacity: usize,
    }

    pub trait Sealed: Sized {
        fn into_parts(self) -> Parts;

        /// # Safety
        ///
        /// The parts are from [`Sealed::into_parts`] of this type, and are used only once.
        unsafe fn from_parts(parts: Parts) -> Self;
    }
}

use sealed::{Parts, Sealed};

impl Sealed for Vec<u8> {
    fn into_parts(self) -> Parts {
        let mut this = ManuallyDrop::new(self);
        let (bytes, capacity) = (this.len(), this.capacity());
        // SAFETY: a vector's pointer is never null.
        let start = unsafe { NonNull::new_unchecked(this.as_mut_ptr()) };
        Parts {
            start,
            bytes,
            capacity,
        }
    }

    unsafe fn from_parts(parts: Parts) -> Self {
        // SAFETY: the parts are those of a `Vec<u8>` that `into_parts` has forgotten: its pointer,
        // length and capacity, and they are used only once. This function requires both.
        unsafe { Vec::from_raw_parts(parts.start.as_ptr(), parts.bytes, parts.capacity) }
    }
}

impl Sealed for Box<[u8]> {
    fn into_parts(self) -> Parts {
        let bytes = self.len();
        let start = NonNull::from(Box::leak(self)).cast();
        Parts {
            start,
            bytes,
            capacity: bytes,
        }
    }

    unsafe fn from_parts(parts: Parts) -> Self {
        let slice = std::ptr::slice_from_raw_parts_mut(parts.start.as_ptr(), parts.bytes);
        // SAFETY: the parts are those of a `Box<[u8]>` that `into_parts` has leaked: its pointer
        // and length, and they are used only once. This function requires both.
        unsafe { Box::from_raw(slice) }
    }
}

/// A registered buffer that requests of this process may read and write, but peers may not.
///
/// A request takes it by value and gives it back with its completion, so nothing can access it in
/// between. If deregistration fails, its memory is leaked.
pub struct Registered<B: Buffer> {
    region: ManuallyDrop<MemoryRegion>,
    start: NonNull<u8>,
    bytes: usize,
    capacity: usize,
    buffer: PhantomData<B>,
}

// SAFETY: it owns its memory uniquely, its region is `Send`, and so is `B` by the bound of
// `Buffer`.
unsafe impl<B: Buffer> Send for Registered<B> {}
// SAFETY: shared references only read the bytes, and its region is `Sync`.
unsafe impl<B: Buffer> Sync for Registered<B> {}

/// A value that was refused, and why.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct Refused<T> {
    /// The value.
    pub value: T,
    /// The reason.
    #[source]
    pub error: Error,
}

impl<T> std::fmt::Debug for Refused<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl ProtectionDomain {
    /// Registers a buffer, for requests of this process only.
    ///
    /// # Errors
    ///
    /// See [`ProtectionDomain::register`]; the error returns the buffer.
    pub fn register_buffer<B: Buffer>(&self, buffer: B) -> Result<Registered<B>, Refused<B>> {
        let Parts {
            start,
            bytes,
            capacity,
        } = buffer.into_parts();
        // SAFETY: the memory is freed only after the region has been deregistered. `LOCAL_WRITE`
        // lets only requests of this process access it: `Requests` owns the buffer meanwhile, and
        // posting to it by address is unsafe.
        match unsafe { self.register(start, bytes, Access::LOCAL_WRITE) } {
            Ok(region) => {
                let (region, buffer) = (ManuallyDrop::new(region), PhantomData);
                Ok(Registered {
                    region,
                    start,
                    bytes,
                    capacity,
                    buffer,
                })
            }
            Err(error) => {
                // SAFETY: `into_parts` of this type has just returned the parts. Registration
                // failed, so no device has them, and they are used only here.
                let value = unsafe {
                    B::from_parts(Parts {
                        start,
                        bytes,
                        capacity,
                    })
                };
                Err(Refused { value, error })
            }
        }
    }
}

impl<B: Buffer> Registered<B> {
    /// The region, for raw requests.
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Deregisters it and returns the buffer.
    ///
    /// # Errors
    ///
    /// The device may still access the memory, which is therefore leaked.
    pub fn into_inner(self) -> Result<B, Error> {
        // SAFETY: `self` is consumed, and `ManuallyDrop` keeps it from being dropped, so it is not
        // used afterwards.
        unsafe { ManuallyDrop::new(self).release() }
    }

    /// Deregisters the region and reassembles the buffer.
    ///
    /// # Safety
    ///
    /// `self` is not used or dropped afterwards.
    unsafe fn release(&mut self) -> Result<B, Error> {
        // SAFETY: `self` is not used or dropped afterwards, as this function requires, so the
        // region is taken only once.
        unsafe { ManuallyDrop::take(&mut self.region) }.deregister()?;
        let Self {
            start,
            bytes,
            capacity,
            ..
        } = *self;
        // SAFETY: `Registered` keeps the parts that `into_parts` of its `B` returned. The device
        // has released the memory, and `self` is not used afterwards, as this function requires, so
        // they are used only once.
        Ok(unsafe {
            B::from_parts(Parts {
                start,
                bytes,
                capacity,
            })
        })
    }
}

impl<B: Buffer> Deref for Registered<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` and `bytes` are those of the buffer's initialised memory. A request that
        // owns the buffer is not here to be borrowed, so the device does not write meanwhile.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl<B: Buffer> DerefMut for Registered<B> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `start` and `bytes` are those of the buffer's initialised memory. No request owns
        // the buffer, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl<B: Buffer> std::fmt::Debug for Registered<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Registered").field(&self.region).finish()
    }
}

impl<B: Buffer> Drop for Registered<B> {
    fn drop(&mut self) {
        // SAFETY: `self` is being dropped, and is not used after this. The region is
        // `ManuallyDrop`, and no other field has a drop, so nothing takes them again.
        if let Err(error) = unsafe { self.release() } {
            spark_ccl_log::warn!("a buffer is never freed: {error}");
        }
    }
}
