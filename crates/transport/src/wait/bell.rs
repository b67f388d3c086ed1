//! What wakes up a rank that blocks.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::rand::{GetRandomFlags, getrandom};
use spark_ccl_fork::PerProcess;

/// A bell that several processes can ring. Rings that nobody has heard yet are one.
///
/// All that was written before a ring is seen by whoever has silenced the bell after it: the kernel
/// counts rings behind a lock.
#[derive(Debug)]
pub struct Bell {
    fd: OwnedFd,
    /// Tells it apart from all others.
    number: u64,
}

/// The bells of this process, by number.
static OWN: PerProcess<Mutex<BTreeMap<u64, Weak<Bell>>>> = PerProcess::new();

impl Bell {
    /// Makes a bell.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let mut number = [0; 8];
        getrandom(&mut number, GetRandomFlags::empty())?;
        Ok(Self {
            fd: eventfd(0, flags)?,
            number: u64::from_ne_bytes(number),
        })
    }

    /// Makes a bell that other ranks of this process know when it is passed to them: for them it takes no
    /// descriptor.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn shared() -> io::Result<Arc<Self>> {
        let bell = Arc::new(Self::new()?);
        OWN.get().lock().insert(bell.number, Arc::downgrade(&bell));
        Ok(bell)
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// A peer's bell; `None` where ringing it could block.
    pub(crate) fn of_peer(fd: OwnedFd, number: u64) -> Option<Arc<Self>> {
        if let Some(own) = OWN.get().lock().get(&number).and_then(Weak::upgrade) {
            return Some(own);
        }
        let flags = fcntl_getfl(&fd).ok()?;
        let bell = Self { fd, number };
        flags.contains(OFlags::NONBLOCK).then(|| Arc::new(bell))
    }

    /// Ends the block of whoever waits for this bell, now or next.
    pub fn ring(&self) {
        // Fails only when the counter is full, and then the bell rings already.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Ends the ringing, if it rings.
    pub fn silence(&self) {
        // Fails only when another thread was faster.
        let _ = rustix::io::read(&self.fd, &mut [0_u8; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        let mut own = OWN.get().lock();
        if own
            .get(&self.number)
            .is_some_and(|bell| bell.strong_count() == 0)
        {
            own.remove(&self.number);
        }
    }
}
