//! A process's memory as a dma-buf.

use std::os::fd::OwnedFd;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{MapFlags, ProtFlags, mmap};
use spark_ccl_testing::dma_buf;

/// At least `bytes` bytes of memory as a dma-buf, and their address: they stay mapped as long as
/// the process lives.
pub(crate) fn mapped(bytes: usize) -> (OwnedFd, NonNull<u8>) {
    let bytes = bytes.max(1).next_multiple_of(rustix::param::page_size());
    let fd = dma_buf(bytes).unwrap();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the address of the new mapping, so no existing mapping is
    // replaced, and the descriptor is borrowed during the call.
    let start = unsafe { mmap(null_mut(), bytes, access, MapFlags::SHARED, &fd, 0) };
    (fd, NonNull::new(start.unwrap().cast()).unwrap())
}
