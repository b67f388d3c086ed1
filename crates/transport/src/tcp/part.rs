//! Bytes that the kernel is to send, some of them lent.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ptr::{self, NonNull};

/// A range of bytes, in the kernel's layout. No reference to lent ones is made: their owner may be
/// writing there.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Part<'a> {
    range: libc::iovec,
    _kept: PhantomData<&'a [u8]>,
}

impl<'a> Part<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        // SAFETY: the reference is valid, and nothing writes there, as long as the part is used.
        unsafe { Self::lent(NonNull::from(bytes)) }
    }

    /// # Safety
    /// The bytes are valid for reads as long as the part is used, also while and after their owner
    /// writes there. Nobody uses the bytes that are read from then on.
    pub(super) unsafe fn lent(bytes: NonNull<[u8]>) -> Self {
        Self {
            range: libc::iovec {
                iov_base: bytes.as_ptr().cast(),
                iov_len: bytes.len(),
            },
            _kept: PhantomData,
        }
    }

    pub(super) fn start(&self) -> *const u8 {
        self.range.iov_base.cast()
    }

    pub(super) fn len(&self) -> usize {
        self.range.iov_len
    }

    /// The bytes after the first `skip`, if there are any.
    pub(super) fn after(mut self, skip: usize) -> Self {
        let skip = skip.min(self.len());
        self.range.iov_base = self.range.iov_base.wrapping_byte_add(skip);
        self.range.iov_len -= skip;
        self
    }

    /// Copies the bytes to the start of `room`. Returns what is left of it.
    ///
    /// # Panics
    /// When they do not fit.
    pub(super) fn copy_to(self, room: &mut [u8]) -> &mut [u8] {
        let (place, rest) = room.split_at_mut(self.len());
        // SAFETY: the bytes are valid for reads (contract of `lent`), so that `place`, which is
        // borrowed mutably and as long, is no part of them. Their owner may be writing there.
        // Rust's model has no word for that race, but it decides nothing: any bytes are a value,
        // and only a peer that has the message already, and passes over it, gets those that are
        // copied meanwhile.
        unsafe { ptr::copy_nonoverlapping(self.start(), place.as_mut_ptr(), place.len()) };
        rest
    }
}
