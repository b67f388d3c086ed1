//! Maps memory files into this process.

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::MemoryError;

/// Maps `bytes` bytes of a memory file, whole pages, for reading and writing.
pub(super) fn map(fd: BorrowedFd<'_>, bytes: usize) -> Result<NonNull<u8>, MemoryError> {
    let writable = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED;
    // SAFETY: the kernel chooses the address of the new mapping, so no existing mapping is
    // replaced.
    let address = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, writable, flags, fd, 0) }
        .map_err(MemoryError::os("mmap"))?;
    NonNull::new(address.cast()).ok_or(MemoryError::Os {
        call: "mmap",
        error: Errno::FAULT,
    })
}

/// Unmaps a mapping.
///
/// # Safety
/// [`map`] returned `address` for the same number of bytes, and the mapping is not used any more.
pub(super) unsafe fn unmap(address: NonNull<u8>, bytes: usize) {
    // SAFETY: `map` returned `address` for this number of bytes, and the mapping is not used any
    // more: this function requires that. An error would mean that it is not mapped.
    let _ = unsafe { rustix::mm::munmap(address.as_ptr().cast(), bytes) };
}
