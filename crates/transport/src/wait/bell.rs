//! Bells, which wake a rank that blocks: eventfds that processes share.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::rand::{GetRandomFlags, getrandom};
use spark_ccl_fork::PerProcess;
use spark_ccl_log::Mutex;

/// A bell that several processes can ring. Rings that have not been silenced yet are merged.
///
/// A thread that silences the bell sees everything that was written before the rings: the kernel
/// counts rings under a lock.
#[derive(Debug)]
pub struct Bell {
    fd: OwnedFd,
    /// Identifies it among the bells of all processes.
    number: u64,
}

/// The bells of this process, by number.
static OWN: PerProcess<Mutex<BTreeMap<u64, Weak<Bell>>>> = PerProcess::new();

impl Bell {
    /// Makes a bell.
    ///
    /// # Errors
    /// When no file descriptor is left.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let mut number = [0; 8];
        getrandom(&mut number, GetRandomFlags::empty())?;
        Ok(Self {
            fd: eventfd(0, flags)?,
            number: u64::from_ne_bytes(number),
        })
    }

    /// Makes a bell that other ranks of this process recognise when it is passed to them, so that
    /// they need no descriptor for it.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn shared() -> io::Result<Arc<Self>> {
        let bell = Arc::new(Self::new()?);
        OWN.get().lock().insert(bell.number, Arc::downgrade(&bell));
        Ok(bell)
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// A peer's bell; `None` if ringing it could block.
    pub(crate) fn of_peer(fd: OwnedFd, number: u64) -> Option<Arc<Self>> {
        if let Some(own) = OWN.get().lock().get(&number).and_then(Weak::upgrade) {
            return Some(own);
        }
        let flags = fcntl_getfl(&fd).ok()?;
        let bell = Self { fd, number };
        flags.contains(OFlags::NONBLOCK).then(|| Arc::new(bell))
    }

    /// Ends the current or the next block on this bell.
    pub fn ring(&self) {
        // Fails only if the counter is full; then the bell is ringing already.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Resets the bell, if it is ringing.
    pub fn silence(&self) {
        // Fails only if another thread has reset it already.
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
