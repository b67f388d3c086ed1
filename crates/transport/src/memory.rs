//! Memory that processes of one host share.
//!
//! A region is an anonymous file of the kernel (`memfd`): it has no name, so nothing is left behind
//! when every process that maps it is gone, however it went. Its size is sealed, so no process can
//! cut it short under another; and its pages are set aside before they are written to, if there are enough of
//! them, so that a lack of memory is an error here and not a signal later.

mod available;
mod grants;
#[cfg(one_mapping)]
mod one_mapping;
mod pages;
mod pass;

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::LazyLock;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
use spark_ccl_fork::UnsharedMemory;

pub use available::available_bytes;
#[cfg(test)]
pub(crate) use available::pretend_available;
#[cfg(one_mapping)]
use one_mapping::{map, unmap};
#[cfg(not(one_mapping))]
use pages::{map, unmap};
pub use pass::{Passed, recv_fd, send_fd};

/// What keeps memory from being set up or passed on.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MemoryError {
    /// There is not so much memory.
    #[error(
        "no {bytes} bytes of memory: {reason}; use smaller buffers, or raise the memory limit of \
         this user or container"
    )]
    Exhausted {
        /// The bytes that were asked for.
        bytes: usize,
        /// What the system said.
        reason: String,
    },
    /// The operating system reported an error.
    #[error("{call}: {error}{}", advice(*.error))]
    Os {
        /// The call that failed.
        call: &'static str,
        /// Its error.
        error: Errno,
    },
    /// The deadline passed.
    #[error("timed out while {doing}")]
    TimedOut {
        /// What was going on.
        doing: &'static str,
    },
    /// The peer closed the stream.
    #[error("the peer closed the stream while {doing}")]
    Closed {
        /// What was going on.
        doing: &'static str,
    },
    /// The peer sent something that is not what both sides agreed on.
    #[error("refused the peer's memory: {0}")]
    Refused(String),
    /// The sizes asked for make no link.
    #[error("impossible sizes of a link: {0}")]
    Geometry(String),
}

/// What helps, after the text of an error.
fn advice(error: Errno) -> &'static str {
    match error {
        Errno::MFILE => "; this process has as many files open as it may: raise `ulimit -n`",
        _ => "",
    }
}

impl MemoryError {
    /// Whether it will be over once processes have taken descriptors that are on their way to them: the kernel
    /// allows a user only so many.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::Os {
                error: Errno::TOOMANYREFS,
                ..
            }
        )
    }

    fn os(call: &'static str) -> impl FnOnce(Errno) -> Self {
        move |error| Self::Os { call, error }
    }
}

/// A mapping of memory that other processes may map too.
///
/// The memory may change at any time, by any process that maps it; hence only a raw pointer. A forked child does not
/// share it: it finds zeros of its own.
#[derive(Debug)]
pub struct SharedMemory {
    address: NonNull<u8>,
    len: usize,
    /// Until the mapping goes.
    unshared: Option<UnsharedMemory>,
}

// SAFETY: the mapping belongs to the process and not to a thread, and the only ways to the bytes
// are raw pointers, whose users answer for their own synchronisation.
unsafe impl Send for SharedMemory {}
// SAFETY: as above; no method touches the value's own fields but Drop, which is exclusive.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Makes `len` bytes of zeroed memory (at least one), and the file descriptor by which others
    /// map it: pass it on with [`send_fd`], then drop it; the mapping does not need it.
    ///
    /// # Errors
    /// [`MemoryError::Exhausted`] when there is not so much memory, [`MemoryError::Os`] otherwise.
    pub fn create(len: usize) -> Result<(Self, OwnedFd), MemoryError> {
        check_available(len, available_bytes())?;
        let fd = create_file(len, len)?;
        Ok((Self::map(&fd, len)?, fd))
    }

    /// Like [`create`](Self::create), but only the first `at_once` bytes are set aside, where the kernel can
    /// do so for the rest later. That is to be [set aside](Self::set_aside) before anyone writes to it.
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    pub fn create_sparse(len: usize, at_once: usize) -> Result<(Self, OwnedFd), MemoryError> {
        let at_once = if can_populate() { at_once } else { len };
        grants::take(at_once)?;
        let fd = create_file(len, at_once)?;
        Ok((Self::map_sparse(&fd, len, at_once)?, fd))
    }

    /// Sets memory aside for these bytes, and enters them into this process's page table.
    ///
    /// # Errors
    /// [`MemoryError::Exhausted`] when there is not so much memory.
    ///
    /// # Panics
    /// The range is not within the memory.
    pub fn set_aside(&self, range: Range<usize>) -> Result<(), MemoryError> {
        assert!(range.start <= range.end && range.end <= self.len);
        if !can_populate() {
            return Ok(());
        }
        let page = rustix::param::page_size();
        let start = range.start / page * page;
        let bytes = range.end.next_multiple_of(page).min(self.mapped()) - start;
        grants::take(bytes)?;
        // SAFETY: the range lies within this value's own mapping. Nothing in it changes.
        unsafe { populate(self.as_ptr().add(start), bytes) }.map_err(exhausted(bytes))
    }

    /// Maps memory that another process made, after checking that it is `len` bytes long and that
    /// nobody can change that.
    ///
    /// # Errors
    /// [`MemoryError::Refused`] when the check fails, [`MemoryError::Os`] when mapping does.
    pub fn from_fd(fd: impl AsFd, len: usize) -> Result<Self, MemoryError> {
        check_file(&fd, len)?;
        Self::map(fd, len)
    }

    /// Like [`from_fd`](Self::from_fd), for memory of which only the first `at_once` bytes are certain to be
    /// set aside.
    ///
    /// # Errors
    /// As for [`from_fd`](Self::from_fd).
    pub fn sparse_from_fd(fd: impl AsFd, len: usize, at_once: usize) -> Result<Self, MemoryError> {
        check_file(&fd, len)?;
        Self::map_sparse(fd, len, at_once)
    }

    /// The first byte; page-aligned. Valid for reads and writes of [`len`](Self::len) bytes while
    /// the mapping lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    /// Bytes of the memory.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Asks for large pages where the system gives them to memory files that ask; where not, nothing changes.
    pub fn prefer_large_pages(&self) {
        // SAFETY: the range is this value's own mapping. Nothing in it changes.
        let _ = unsafe {
            let start = self.as_ptr().cast::<c_void>();
            rustix::mm::madvise(start, self.mapped(), Advice::LinuxHugepage)
        };
    }

    /// Puts a private copy of the contents in the place of part of the shared memory, at the same address. The
    /// part begins with a page and has whole pages, or ends where the memory does.
    ///
    /// From then on no other process can write into that part of what [`as_ptr`](Self::as_ptr) points at, nor
    /// see what is written there; they keep the old memory among themselves. Of what others write
    /// during the call, any part may be in the copy. No thread of this process ever sees
    /// the address unmapped; what threads of this process write during the call may be lost.
    ///
    /// # Errors
    /// [`MemoryError::Exhausted`] when there is no memory for the copy, [`MemoryError::Os`] when
    /// the exchange fails; the memory is still shared then.
    ///
    /// # Panics
    /// There is no such part.
    pub fn make_private(&self, part: Range<usize>) -> Result<(), MemoryError> {
        let (start, len) = (self.part(&part), part.len());
        check_available(len, available_bytes())?;
        let mapped = mapped_bytes(len);
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches nobody's memory.
        let copy = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), mapped, writable, MapFlags::PRIVATE)
        }
        .map_err(exhausted(len))?;
        // SAFETY: both are live mappings of at least `len` bytes, and the new one overlaps nothing.
        // Other processes may write to the source meanwhile; the bytes have no invalid values, and
        // which of them are copied is left open by this method's contract.
        unsafe { ptr::copy_nonoverlapping(start, copy.cast::<u8>(), len) };
        // SAFETY: both ranges are whole pages that this value owns. No
        // references exist to either: `as_ptr` gives raw pointers only, and their users see valid
        // memory before and after, since the kernel exchanges the mappings in one step.
        let moved = unsafe {
            rustix::mm::mremap_fixed(
                copy,
                mapped,
                mapped,
                MremapFlags::MAYMOVE,
                start.cast::<c_void>(),
            )
        };
        if let Err(error) = moved {
            // SAFETY: `copy` is the mapping made above, and nothing else refers to it.
            let _ = unsafe { rustix::mm::munmap(copy, mapped) };
            return Err(MemoryError::Os {
                call: "mremap",
                error,
            });
        }
        Ok(())
    }

    /// Puts zeroed private memory in the place of part of the shared memory, at the same address: what is
    /// left where [`make_private`](Self::make_private) finds no memory for a copy.
    ///
    /// # Errors
    /// [`MemoryError::Os`] when the system refuses; the memory is still shared then.
    ///
    /// # Panics
    /// As there.
    pub fn discard(&self, part: Range<usize>) -> Result<(), MemoryError> {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        let start = self.part(&part).cast::<c_void>();
        // SAFETY: the range is whole pages of the mapping that this value owns, and stays mapped; users of
        // `as_ptr` have raw pointers only.
        let replaced = unsafe {
            rustix::mm::mmap_anonymous(
                start,
                mapped_bytes(part.len()),
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        };
        replaced.map(drop).map_err(MemoryError::os("mmap"))
    }

    /// Where a part begins that has pages of its own.
    fn part(&self, part: &Range<usize>) -> *mut u8 {
        let page = rustix::param::page_size();
        assert!(part.start <= part.end && part.end <= self.len);
        assert!(part.start.is_multiple_of(page));
        assert!(part.end.is_multiple_of(page) || part.end == self.len);
        // SAFETY: the part lies within the mapping.
        unsafe { self.as_ptr().add(part.start) }
    }

    fn map(fd: impl AsFd, len: usize) -> Result<Self, MemoryError> {
        Self::map_sparse(fd, len, len)
    }

    /// The pages of the first `at_once` bytes exist already; entered into the page table now, they cost no fault
    /// in the middle of an operation.
    fn map_sparse(fd: impl AsFd, len: usize, at_once: usize) -> Result<Self, MemoryError> {
        let mapped = mapped_bytes(len);
        let address = map(fd.as_fd(), mapped)?;
        // SAFETY: the range was mapped just now, and is taken off before it is unmapped; what is mapped in its place
        // meanwhile has the same address and length. Its users have raw pointers only.
        let unshared = unsafe { UnsharedMemory::new(address, mapped) };
        let memory = Self {
            address,
            len,
            unshared: Some(unshared),
        };
        // What cannot be entered now is entered when it is used.
        // SAFETY: the range lies within the new mapping.
        let _ = unsafe { populate(memory.as_ptr(), mapped_bytes(at_once)) };
        Ok(memory)
    }

    fn mapped(&self) -> usize {
        mapped_bytes(self.len)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        drop(self.unshared.take());
        // SAFETY: the range is this value's own mapping, and pointers into it are valid only while
        // the value lives.
        unsafe { unmap(self.address, self.mapped()) };
    }
}

/// Whole pages, at least one: the kernel maps nothing less.
fn mapped_bytes(len: usize) -> usize {
    let page = rustix::param::page_size();
    len.max(1).next_multiple_of(page)
}

/// Checks that memory of another process is `len` bytes long, and that nobody can change that.
fn check_file(fd: impl AsFd, len: usize) -> Result<(), MemoryError> {
    let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|error| {
        MemoryError::Refused(format!("the descriptor is no memory file ({error})"))
    })?;
    if !seals.contains(required_seals()) {
        return Err(MemoryError::Refused(format!(
            "expected a size sealed by {:?}, saw seals {seals:?}",
            required_seals()
        )));
    }
    // The size is read after the seals, so that it cannot change between the two.
    let stat = rustix::fs::fstat(&fd).map_err(MemoryError::os("fstat"))?;
    if usize::try_from(stat.st_size) != Ok(len.max(1)) {
        return Err(MemoryError::Refused(format!(
            "expected {} bytes, saw {}",
            len.max(1),
            stat.st_size
        )));
    }
    Ok(())
}

fn required_seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

/// A file of `len` bytes, of which the first `at_once` are set aside.
fn create_file(len: usize, at_once: usize) -> Result<OwnedFd, MemoryError> {
    let fd = anonymous_file()?;
    set_aside(&fd, len.max(1), at_once.max(1)).map_err(exhausted(at_once))?;
    rustix::fs::fcntl_add_seals(&fd, required_seals())
        .map_err(MemoryError::os("fcntl(F_ADD_SEALS)"))?;
    Ok(fd)
}

fn anonymous_file() -> Result<OwnedFd, MemoryError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // A kernel may insist that memory files say they hold no program; one before 6.3 does not know
    // the flag that says so.
    rustix::fs::memfd_create("spark-ccl", flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|error| match error {
            Errno::INVAL => rustix::fs::memfd_create("spark-ccl", flags),
            other => Err(other),
        })
        .map_err(MemoryError::os("memfd_create"))
}

fn check_available(len: usize, available: Option<u64>) -> Result<(), MemoryError> {
    match too_little(len, available) {
        Some(available) => Err(MemoryError::Exhausted {
            bytes: len,
            reason: format!("{available} bytes are available"),
        }),
        None => Ok(()),
    }
}

/// What is available, where so many bytes would leave (nearly) nothing of it to others: a thirty-second stays.
pub(crate) fn too_little(bytes: usize, available: Option<u64>) -> Option<u64> {
    available.filter(|available| bytes as u64 > available - available / 32)
}

fn exhausted(bytes: usize) -> impl FnOnce(Errno) -> MemoryError {
    move |error| MemoryError::Exhausted {
        bytes,
        reason: error.to_string(),
    }
}

fn set_aside(fd: &OwnedFd, len: usize, at_once: usize) -> Result<(), Errno> {
    let len = u64::try_from(len).map_err(|_| Errno::FBIG)?;
    retry_on_intr(|| rustix::fs::ftruncate(fd, len))?;
    retry_on_intr(|| rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, at_once as u64))
}

/// Whether the kernel (from 5.14 on) sets memory aside for part of a mapping.
fn can_populate() -> bool {
    static CAN: LazyLock<bool> = LazyLock::new(|| {
        let page = rustix::param::page_size();
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches nobody's memory.
        let probe = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), page, writable, MapFlags::PRIVATE)
        };
        let Ok(probe) = probe else { return false };
        // SAFETY: it is the mapping made above.
        let can = unsafe { populate(probe.cast(), page) }.is_ok();
        // SAFETY: it is the mapping made above, and nothing else refers to it.
        let _ = unsafe { rustix::mm::munmap(probe, page) };
        can
    });
    *CAN
}

/// Gives pages their memory, and enters them into the page table.
///
/// # Safety
/// The range is mapped, writable, and begins with a page.
unsafe fn populate(start: *mut u8, bytes: usize) -> Result<(), Errno> {
    // SAFETY: the caller says that it is mapped; nothing in it changes.
    retry_on_intr(|| unsafe {
        rustix::mm::madvise(start.cast::<c_void>(), bytes, Advice::LinuxPopulateWrite)
    })
}

#[cfg(test)]
mod tests;
