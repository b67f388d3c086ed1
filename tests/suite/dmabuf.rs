//! A process's memory as a dma-buf.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

/// At least `bytes` bytes of memory as a dma-buf, and their address: they stay mapped as long as
/// the process lives.
pub(crate) fn mapped(bytes: usize) -> (OwnedFd, NonNull<u8>) {
    let bytes = bytes.max(1).next_multiple_of(rustix::param::page_size());
    let fd = dmabuf(bytes).unwrap();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at a place that the kernel chooses.
    let start = unsafe { mmap(null_mut(), bytes, access, MapFlags::SHARED, &fd, 0) };
    (fd, NonNull::new(start.unwrap().cast()).unwrap())
}

fn dmabuf(bytes: usize) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Create {
        memfd: u32,
        flags: u32,
        offset: u64,
        size: u64,
    }
    // `_IOW('u', 0x42, struct udmabuf_create)` of linux/udmabuf.h.
    const UDMABUF_CREATE: u64 = 0x4018_7542;

    let maker = File::options()
        .read(true)
        .write(true)
        .open("/dev/udmabuf")?;
    let memory = memfd_create("dmabuf", MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, bytes as u64)?;
    fcntl_add_seals(&memory, SealFlags::SHRINK)?;
    let create = Create {
        memfd: memory.as_raw_fd() as u32,
        flags: 0,
        offset: 0,
        size: bytes as u64,
    };
    // SAFETY: the request reads a `udmabuf_create`, which `create` is.
    let fd = unsafe { libc::ioctl(maker.as_raw_fd(), UDMABUF_CREATE as _, &raw const create) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just returned, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
