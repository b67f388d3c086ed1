//! What wakes up a rank that blocks.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl};

/// A bell that several processes can ring. Rings that nobody has heard yet are one.
///
/// All that was written before a ring is seen by whoever has silenced the bell after it: the kernel
/// counts rings behind a lock.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// Makes a bell.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(eventfd(0, flags)?))
    }

    /// A peer's bell; `None` where ringing it could block.
    pub(crate) fn of_peer(fd: OwnedFd) -> Option<Self> {
        let flags = fcntl_getfl(&fd).ok()?;
        flags.contains(OFlags::NONBLOCK).then_some(Self(fd))
    }

    /// Ends the block of whoever waits for this bell, now or next.
    pub fn ring(&self) {
        // Fails only when the counter is full, and then the bell rings already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Ends the ringing, if it rings.
    pub fn silence(&self) {
        // Fails only when another thread was faster.
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
