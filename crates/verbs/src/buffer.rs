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

    /// Where a buffer's memory is. While a device has it no reference to it exists, nor a value
    /// that claims to be its only owner.
    pub struct Parts {
        pub(super) start: NonNull<u8>,
        pub(super) bytes: usize,
        pub(super) capacity: usize,
    }

    pub trait Sealed: Sized {
        fn into_parts(self) -> Parts;

        /// # Safety
        ///
        /// The parts are from [`Sealed::into_parts`] of this type, once.
        unsafe fn from_parts(parts: Parts) -> Self;
    }
}

use sealed::{Parts, Sealed};

impl Sealed for Vec<u8> {
    fn into_parts(self) -> Parts {
        let mut this = ManuallyDrop::new(self);
        let (bytes, capacity) = (this.len(), this.capacity());
        // SAFETY: a vector's pointer is not null.
        let start = unsafe { NonNull::new_unchecked(this.as_mut_ptr()) };
        Parts {
            start,
            bytes,
            capacity,
        }
    }

    unsafe fn from_parts(parts: Parts) -> Self {
        // SAFETY: as the caller says, these are a vector's.
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
        // SAFETY: as the caller says, these are a box's.
        unsafe { Box::from_raw(slice) }
    }
}

/// A buffer that requests of this process may read and write, and peers may not.
///
/// It goes into a request by value and comes back with its completion, so nothing can touch it
/// meanwhile. If it cannot be deregistered its memory is never freed.
pub struct Registered<B: Buffer> {
    region: ManuallyDrop<MemoryRegion>,
    start: NonNull<u8>,
    bytes: usize,
    capacity: usize,
    buffer: PhantomData<B>,
}

// SAFETY: it owns its memory, as a buffer does.
unsafe impl<B: Buffer> Send for Registered<B> {}
// SAFETY: as above; a shared one is only read.
unsafe impl<B: Buffer> Sync for Registered<B> {}

/// What was not taken, and why.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct Refused<T> {
    /// It is back.
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
    /// See [`ProtectionDomain::register`]; the buffer comes back.
    pub fn register_buffer<B: Buffer>(&self, buffer: B) -> Result<Registered<B>, Refused<B>> {
        let Parts {
            start,
            bytes,
            capacity,
        } = buffer.into_parts();
        // SAFETY: the memory is freed only when the region has been deregistered. Only requests of
        // this process reach it, and whoever posts them raw answers for them.
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
                // SAFETY: these are the buffer's parts, unused.
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

    /// Deregisters it and gives the buffer back.
    ///
    /// # Errors
    ///
    /// The device still has the memory, which is therefore never freed.
    pub fn into_inner(self) -> Result<B, Error> {
        // SAFETY: it is not used or dropped afterwards.
        unsafe { ManuallyDrop::new(self).release() }
    }

    /// The end of it.
    ///
    /// # Safety
    ///
    /// It is not used or dropped afterwards.
    unsafe fn release(&mut self) -> Result<B, Error> {
        // SAFETY: the region is not used or dropped afterwards, as the caller says.
        unsafe { ManuallyDrop::take(&mut self.region) }.deregister()?;
        let Self {
            start,
            bytes,
            capacity,
            ..
        } = *self;
        // SAFETY: these are the buffer's parts; the device has let go of them, and nobody
        // uses them any more, as the caller says.
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
        // SAFETY: the buffer's memory; no request has it, or it would not be here.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl<B: Buffer> DerefMut for Registered<B> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
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
        // SAFETY: it is being dropped.
        if let Err(error) = unsafe { self.release() } {
            tracing::warn!(%error, "a buffer is never freed");
        }
    }
}
