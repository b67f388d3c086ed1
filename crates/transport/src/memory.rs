//! Memory that processes of one host share.
//!
//! A region is an anonymous kernel file (`memfd`). It has no name, so nothing is left behind when
//! every process that maps it has ended, in whatever way. Its size is sealed, so no process can
//! truncate it under another. Its pages are allocated before they are written to, so that a lack of
//! memory is an error here and not a signal later.

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

pub use available::available_bytes;
#[cfg(test)]
pub(crate) use available::pretend_available;
use once_cell::race::OnceBool;
#[cfg(one_mapping)]
use one_mapping::{map, unmap};
#[cfg(not(one_mapping))]
use pages::{map, unmap};
pub use pass::{Passed, recv_fd, send_fd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
use spark_ccl_fork::UnsharedMemory;

/// An error of setting memory up, or of passing it on.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MemoryError {
    /// There is not enough memory.
    #[error(
        "no {bytes} bytes of memory: {reason}; use smaller buffers, or raise the memory limit of \
         this user or container"
    )]
    Exhausted {
        /// The number of bytes requested.
        bytes: usize,
        /// The system's reason.
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
        /// The action that was under way.
        doing: &'static str,
    },
    /// The peer closed the stream.
    #[error("the peer closed the stream while {doing}")]
    Closed {
        /// The action that was under way.
        doing: &'static str,
    },
    /// The peer sent something that both sides did not agree on.
    #[error("refused the peer's memory: {0}")]
    Refused(String),
    /// No link can have these sizes.
    #[error("impossible sizes of a link: {0}")]
    Geometry(String),
}

/// Advice to append to the text of an error.
fn advice(error: Errno) -> &'static str {
    match error {
        Errno::MFILE => "; this process has as many files open as it may: raise `ulimit -n`",
        Errno::TOOMANYREFS => {
            "; this user's processes have passed one another as many file descriptors as one may \
             open, and have not received them: look for processes that are stopped, or raise \
             `ulimit -n`"
        }
        _ => "",
    }
}

impl MemoryError {
    /// Whether the error is temporary. The kernel limits how many descriptors of one user may be in
    /// flight between processes; the error passes once processes have received theirs.
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
/// Any process that maps the memory may change it at any time, so this gives out only a raw
/// pointer. A forked child does not share it: it finds private zeros.
#[derive(Debug)]
pub struct SharedMemory {
    address: NonNull<u8>,
    len: usize,
    /// Dropped before the memory is unmapped.
    unshared: Option<UnsharedMemory>,
}

// SAFETY: the mapping belongs to the process and not to a thread. The bytes are accessible only
// through raw pointers, whose users are responsible for synchronisation.
unsafe impl Send for SharedMemory {}
// SAFETY: methods that take `&self` only read the fields, and only system calls change the mapping,
// which the kernel serialises. The bytes are accessible only through raw pointers, whose users are
// responsible for synchronisation.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Makes `len` bytes of zeroed memory (at least one), and the file descriptor by which others
    /// map it. Pass the descriptor on with [`send_fd`], then drop it: the mapping does not need it.
    ///
    /// Only the first `at_once` bytes are allocated, if the kernel can allocate the rest later. The
    /// rest must be [allocated](Self::set_aside) before anything is written to it.
    ///
    /// # Errors
    /// [`MemoryError::Exhausted`] when there is not enough memory, [`MemoryError::Os`] otherwise.
    pub fn create(len: usize, at_once: usize) -> Result<(Self, OwnedFd), MemoryError> {
        let at_once = if can_populate() { at_once } else { len };
        grants::take(at_once)?;
        let fd = create_file(len, at_once)?;
        Ok((Self::map(&fd, len, at_once)?, fd))
    }

    /// Allocates memory for these bytes, and enters it into this process's page table.
    ///
    /// # Errors
    /// [`MemoryError::Exhausted`] when there is not enough memory.
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
        // SAFETY: the range is whole pages within this value's writable mapping, as the assertion
        // and the rounding ensure.
        unsafe { populate(self.as_ptr().add(start), bytes) }.map_err(exhausted(bytes))
    }

    /// Maps memory that another process made, after checking that it is `len` bytes long and that
    /// its size is sealed. Of it, only the first `at_once` bytes are certain to be allocated.
    ///
    /// # Errors
    /// [`MemoryError::Refused`] when the check fails, [`MemoryError::Os`] when mapping does.
    pub fn from_fd(fd: impl AsFd, len: usize, at_once: usize) -> Result<Self, MemoryError> {
        check_file(&fd, len)?;
        Self::map(fd, len, at_once)
    }

    /// The first byte; page-aligned. Valid for reads and writes of [`len`](Self::len) bytes while
    /// the mapping lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Asks for large pages. This has an effect only if the system gives them to memory files on
    /// request.
    pub fn prefer_large_pages(&self) {
        // SAFETY: the range is this value's own mapping, and the advice does not change its
        // contents.
        let _ = unsafe {
            let start = self.as_ptr().cast::<c_void>();
            rustix::mm::madvise(start, self.mapped(), Advice::LinuxHugepage)
        };
    }

    /// Replaces part of the shared memory by a private copy, at the same address. The part starts
    /// at a page boundary, and ends at one or at the end of the memory.
    ///
    /// From then on no other process can write to that part of this process's memory, nor see what
    /// is written there; the others go on sharing the old memory. The copy may contain any part of
    /// what others write during the call. The address is never unmapped for threads of this
    /// process, but what they write during the call may be lost.
    ///
    /// # Errors
    /// [`MemoryError::Exhausted`] when there is no memory for the copy, [`MemoryError::Os`] when
    /// the exchange fails; the memory is still shared then.
    ///
    /// # Panics
    /// The part does not start and end as described.
    pub fn make_private(&self, part: Range<usize>) -> Result<(), MemoryError> {
        let (start, len) = (self.part(&part), part.len());
        check_available(len, available_bytes())?;
        let mapped = mapped_bytes(len);
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address of the new mapping, so no existing mapping is
        // replaced.
        let copy = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), mapped, writable, MapFlags::PRIVATE)
        }
        .map_err(exhausted(len))?;
        // SAFETY: both are live mappings of at least `len` bytes, and they do not overlap. Other
        // processes may write to the source meanwhile: any byte is valid, and this method's
        // contract leaves open which of their writes are copied.
        unsafe { ptr::copy_nonoverlapping(start, copy.cast::<u8>(), len) };
        // SAFETY: both ranges are whole pages that this function or this value owns, and there are
        // no references to either. Users of the raw pointers from `as_ptr` see valid memory before
        // and after, because the kernel exchanges the mappings in one step.
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
            // SAFETY: `copy` is a mapping of `mapped` bytes that only this function knows; the
            // kernel has not moved it.
            let _ = unsafe { rustix::mm::munmap(copy, mapped) };
            return Err(MemoryError::Os {
                call: "mremap",
                error,
            });
        }
        Ok(())
    }

    /// Replaces part of the shared memory by zeroed private memory, at the same address: the
    /// fallback if [`make_private`](Self::make_private) finds no memory for a copy.
    ///
    /// # Errors
    /// [`MemoryError::Os`] when the system refuses; the memory is still shared then.
    ///
    /// # Panics
    /// The part does not start and end as described for [`make_private`](Self::make_private).
    pub fn discard(&self, part: Range<usize>) -> Result<(), MemoryError> {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        let start = self.part(&part).cast::<c_void>();
        // SAFETY: the range is whole pages of the mapping that this value owns, and it stays
        // mapped. There are no references to it, because `as_ptr` gives out raw pointers only.
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

    /// The address of a part, after checking that it consists of whole pages.
    fn part(&self, part: &Range<usize>) -> *mut u8 {
        let page = rustix::param::page_size();
        assert!(part.start <= part.end && part.end <= self.len);
        assert!(part.start.is_multiple_of(page));
        assert!(part.end.is_multiple_of(page) || part.end == self.len);
        // SAFETY: `part.start` is at most `self.len`, which was asserted, so the result is in the
        // mapping or at its end.
        unsafe { self.as_ptr().add(part.start) }
    }

    /// Maps the file, and enters the first `at_once` bytes, which are allocated already, into the
    /// page table: they then cause no page fault in the middle of an operation.
    fn map(fd: impl AsFd, len: usize, at_once: usize) -> Result<Self, MemoryError> {
        let mapped = mapped_bytes(len);
        let address = map(fd.as_fd(), mapped)?;
        // SAFETY: the range is whole pages, just mapped for reading and writing. `drop` drops this
        // value before it unmaps the range; until then the range is only replaced in place. Its
        // users have raw pointers to bytes, for which zeros are valid.
        let unshared = unsafe { UnsharedMemory::new(address, mapped) };
        let memory = Self {
            address,
            len,
            unshared: Some(unshared),
        };
        // Pages that cannot be entered now are entered when they are used.
        //
        // SAFETY: the range is whole pages at the start of the new, writable mapping.
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
        // SAFETY: the range is this value's own mapping, from `map`, with the same length. Pointers
        // into it may be used only while the value lives.
        unsafe { unmap(self.address, self.mapped()) };
    }
}

/// Rounds up to whole pages, at least one, because the kernel maps no less.
fn mapped_bytes(len: usize) -> usize {
    let page = rustix::param::page_size();
    len.max(1).next_multiple_of(page)
}

/// Checks that a memory file of another process is `len` bytes long, and that its size is sealed.
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

/// Creates a file of `len` bytes, of which the first `at_once` are allocated.
fn create_file(len: usize, at_once: usize) -> Result<OwnedFd, MemoryError> {
    let fd = anonymous_file()?;
    set_aside(&fd, len.max(1), at_once.max(1)).map_err(exhausted(at_once))?;
    rustix::fs::fcntl_add_seals(&fd, required_seals())
        .map_err(MemoryError::os("fcntl(F_ADD_SEALS)"))?;
    Ok(fd)
}

fn anonymous_file() -> Result<OwnedFd, MemoryError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // A kernel may require the flag that marks memory files as not executable; kernels before 6.3
    // reject it.
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

/// Returns what is available if `bytes` would exceed it. One thirty-second is left to other
/// processes.
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

/// Whether the kernel can allocate part of a mapping in advance (Linux 5.14 and newer).
fn can_populate() -> bool {
    // Threads that come first together all try. None waits for another, as a forked child would for
    // ever.
    static CAN: OnceBool = OnceBool::new();
    CAN.get_or_init(|| {
        let page = rustix::param::page_size();
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address of the new mapping, so no existing mapping is
        // replaced.
        let probe = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), page, writable, MapFlags::PRIVATE)
        };
        let Ok(probe) = probe else { return false };
        // SAFETY: `probe` is one page, mapped for writing, and starts at a page boundary.
        let can = unsafe { populate(probe.cast(), page) }.is_ok();
        // SAFETY: `probe` is a mapping of one page that only this function knows.
        let _ = unsafe { rustix::mm::munmap(probe, page) };
        can
    })
}

/// Allocates the pages of a range, and enters them into the page table.
///
/// # Safety
/// The range is mapped and writable, and starts at a page boundary.
unsafe fn populate(start: *mut u8, bytes: usize) -> Result<(), Errno> {
    // SAFETY: the range is mapped and writable, and starts at a page boundary: this function
    // requires that. The advice allocates pages and does not change what is in them.
    retry_on_intr(|| unsafe {
        rustix::mm::madvise(start.cast::<c_void>(), bytes, Advice::LinuxPopulateWrite)
    })
}

#[cfg(test)]
mod tests;
