//! Memory of the host that is mapped more than once, as by several processes.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use spark_ccl_cuda::HostBlock;
use spark_ccl_cuda::cudarc::driver::CudaContext;

/// This many zeros.
pub(crate) fn file(bytes: usize) -> OwnedFd {
    let file = memfd_create("scratch", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, bytes as u64).unwrap();
    file
}

/// A mapping of its own, which a GPU reaches.
pub(crate) fn registered(context: &Arc<CudaContext>, file: &OwnedFd, bytes: usize) -> HostBlock {
    let mapping = Mapping::new(file, bytes);
    // SAFETY: `Mapping::new` has mapped `bytes` bytes for reads and writes, and only its drop
    // unmaps them. The block gets the mapping, and drops it after the registration has ended.
    unsafe { HostBlock::register(context, mapping.start, bytes, mapping).unwrap() }
}

#[derive(Debug)]
struct Mapping {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and only its drop uses the address.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference to a `Mapping` allows only to print the address and the length.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: &OwnedFd, bytes: usize) -> Self {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so nothing is replaced. The descriptor is
        // borrowed, so it is open.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, both, MapFlags::SHARED, file, 0) };
        let start = start.unwrap().cast();
        Self { start, bytes }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` has mapped these bytes, and only this drop unmaps them. The block that had
        // the address has ended its registration before it drops the mapping.
        let _ = unsafe { munmap(self.start.cast(), self.bytes) };
    }
}
