//! Maps memory files into this process.

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::MemoryError;

/// Maps `bytes` of a memory file, whole pages, to be read and written.
pub(super) fn map(fd: BorrowedFd<'_>, bytes: usize) -> Result<NonNull<u8>, MemoryError> {
    let writable = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED;
    // SAFETY: a new mapping at an address that the kernel chooses touches nobody's memory.
    let address = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, writable, flags, fd, 0) }
        .map_err(MemoryError::os("mmap"))?;
    NonNull::new(address.cast()).ok_or(MemoryError::Os {
        call: "mmap",
        error: Errno::FAULT,
    })
}

/// Gives a mapping back.
///
/// # Safety
/// [`map`] answered `address` for as many bytes, and nobody uses it any more.
pub(super) unsafe fn unmap(address: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller owns the range. An error would mean that it is not mapped: nothing to give
    // back.
    let _ = unsafe { rustix::mm::munmap(address.as_ptr().cast(), bytes) };
}
