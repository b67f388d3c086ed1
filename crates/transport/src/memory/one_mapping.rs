//! For race detectors, which take an address for the memory behind it: all mappings of a memory
//! file within this process are one, at one address. So the detector sees what ranks that are
//! threads do to memory that they share, and what orders it.
//!
//! Fencing then fences nobody: the private copy is at the address that all have.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use parking_lot::Mutex;

use super::{MemoryError, pages};

struct Mapping {
    /// Device and inode.
    file: (u64, u64),
    address: usize,
    users: usize,
}

static MAPPINGS: Mutex<Vec<Mapping>> = Mutex::new(Vec::new());

pub(super) fn map(fd: BorrowedFd<'_>, bytes: usize) -> Result<NonNull<u8>, MemoryError> {
    let stat = rustix::fs::fstat(fd).map_err(MemoryError::os("fstat"))?;
    let file = (stat.st_dev, stat.st_ino);
    let mut mappings = MAPPINGS.lock();
    if let Some(mapping) = mappings.iter_mut().find(|mapping| mapping.file == file)
        && let Some(address) = NonNull::new(mapping.address as *mut u8)
    {
        mapping.users += 1;
        return Ok(address);
    }
    let address = pages::map(fd, bytes)?;
    mappings.push(Mapping {
        file,
        address: address.as_ptr() as usize,
        users: 1,
    });
    Ok(address)
}

/// # Safety
/// As for [`pages::unmap`].
pub(super) unsafe fn unmap(address: NonNull<u8>, bytes: usize) {
    let mut mappings = MAPPINGS.lock();
    let at = mappings
        .iter()
        .position(|mapping| mapping.address == address.as_ptr() as usize);
    let Some(at) = at else { return };
    mappings[at].users -= 1;
    if mappings[at].users == 0 {
        mappings.swap_remove(at);
        // SAFETY: this was the mapping's last user.
        unsafe { pages::unmap(address, bytes) };
    }
}
