//! Memory of a process as a dma-buf.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::libc;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

/// Makes memory of this many bytes, whole pages, a dma-buf, by [`Need::Udmabuf`](crate::Need).
///
/// # Errors
///
/// This process may not, or the kernel has no udmabuf (Debian's 6.1 lacks it).
pub fn dma_buf(bytes: usize) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Create {
        memfd: u32,
        flags: u32,
        offset: u64,
        size: u64,
    }
    // `_IOW('u', 0x42, struct udmabuf_create)` of linux/udmabuf.h.
    const UDMABUF_CREATE: u64 = 0x4018_7542;

    let mut access = File::options();
    let maker = access.read(true).write(true).open("/dev/udmabuf")?;
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
