//! For race detectors, which identify memory by its address: maps each memory file only once per
//! process. The detector then sees how ranks that are threads access the memory that they share,
//! and what orders the accesses.
//!
//! Making memory private then has no effect between the threads: the private copy is at the address
//! that all of them use.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use spark_ccl_log::Mutex;

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
/// [`map`] returned `address` for the same number of bytes, and this user of the mapping does not
/// use it any more.
pub(super) unsafe fn unmap(address: NonNull<u8>, bytes: usize) {
    let mut mappings = MAPPINGS.lock();
    let at = mappings
        .iter()
        .position(|mapping| mapping.address == address.as_ptr() as usize);
    let Some(at) = at else { return };
    mappings[at].users -= 1;
    if mappings[at].users == 0 {
        mappings.swap_remove(at);
        // SAFETY: this was the last user of the mapping, which `pages::map` made with this length.
        unsafe { pages::unmap(address, bytes) };
    }
}
