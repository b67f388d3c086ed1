//! A file of memory that is mapped in place of a dma-buf.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;

use nix::errno::Errno;
use rustix::fs::fstat;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;

use super::REFUSES;

/// A mapping of whole pages.
pub(super) struct Mapped {
    pub(super) start: *mut u8,
    bytes: usize,
    /// Where the registered range begins in it.
    pub(super) offset: usize,
}

// SAFETY: the mapping is of this process, and any thread may end it.
unsafe impl Send for Mapped {}

impl Mapped {
    /// Maps a range of a file. Refuses what a kernel refuses, in the kernel's order: devices whose
    /// driver takes no dma-bufs, an address that differs from the offset within a page, no
    /// descriptor, and a range outside of the dma-buf.
    pub(super) fn new(fd: c_int, offset: u64, bytes: usize, iova: u64) -> Result<Self, Errno> {
        let page = page_size();
        let within = offset as usize % page;
        match REFUSES.get() {
            0 if within != iova as usize % page => return Err(Errno::EINVAL),
            0 if fd < 0 => return Err(Errno::EBADF),
            0 => {}
            errno => return Err(Errno::from_raw(errno)),
        }
        // SAFETY: the number is not negative, so it is not -1. If it is a descriptor's, the caller
        // of `ibv_reg_dmabuf_mr` keeps that open during the call; else `fstat` fails.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        let all = fstat(file).map_err(|_| Errno::EBADF)?.st_size as u64;
        let is_within = offset
            .checked_add(bytes as u64)
            .is_some_and(|end| end <= all);
        if bytes == 0 || !is_within {
            return Err(Errno::EINVAL);
        }
        let length = within + bytes;
        let (access, from) = (ProtFlags::READ | ProtFlags::WRITE, offset - within as u64);
        // SAFETY: the kernel chooses a range of addresses that nothing else uses.
        let start = unsafe { mmap(null_mut(), length, access, MapFlags::SHARED, file, from) };
        Ok(Self {
            start: start.map_err(|_| Errno::ENOMEM)?.cast(),
            bytes: length,
            offset: within,
        })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: `new` has mapped this range. Devices were told to forget it before: `dereg_mr`
        // dismisses a region, and returns no earlier than their last access to it.
        let _ = unsafe { munmap(self.start.cast(), self.bytes) };
    }
}
