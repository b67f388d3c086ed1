//! Reading straight out of the peer's memory, where the kernel lets us: one copy instead of two.
//!
//! The sender of a direction shows where its [beacon](super::beacon) is: its process, and where in its
//! memory a random number stands. The receiver tries to read that once. Only if it finds the number does
//! it say so, and only then are messages lent. Another user, a container or a security module may be in
//! the way; then all goes through slots.
//!
//! The number is read again with each message, by the same call of the kernel's: so what is read is the
//! sender's, whoever has its process id by now. Where that fails, for whatever reason, the receiver says
//! that it cannot read any more, and from then on all goes through slots; what is lent already comes in
//! [pieces](super::pieces).
//!
//! Pairings of the words of a [`Segment`](super::segment::Segment):
//! - `lit`: Release in [`Words::show`], Acquire in [`Words::spot`]: who sees it sees the other words.
//! - `verdict`: says only that; nothing is read on its account.

use std::fs;
use std::io::IoSliceMut;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use rustix::io::Errno;
use rustix::process::{PTracer, set_ptracer};

use super::beacon::{self, Spot};
use super::ring::Word;

/// The words of one direction, all zero at first.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Words<W = AtomicU64> {
    process: W,
    address: W,
    number: W,
    lit: W,
    verdict: W,
}

const READABLE: u64 = 1;
const UNREADABLE: u64 = 2;

/// Where it stands whether this process may be read by processes that are not its parents.
const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
const DESCENDANTS_ONLY: &str = "1";

/// The peer's memory, which can be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reach {
    beacon: Spot,
}

/// Why memory of the peer could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unread {
    #[error("process_vm_readv: {0}")]
    Refused(Errno),
    #[error("process_vm_readv reads no further than {0} bytes before the end")]
    Partly(usize),
    #[error("process {0} is not the peer")]
    Stranger(u64),
}

/// Lets the peer read this process's memory, if the kernel does; whether that was possible.
pub(super) fn admit(words: &Words) -> bool {
    let Some(beacon) = beacon::spot() else {
        return false;
    };
    admit_readers();
    words.show(beacon);
    true
}

impl<W: Word> Words<W> {
    fn show(&self, beacon: Spot) {
        self.process.store(beacon.process, Ordering::Relaxed);
        self.address.store(beacon.address, Ordering::Relaxed);
        self.number.store(beacon.number, Ordering::Relaxed);
        self.lit.store(1, Ordering::Release);
    }

    fn spot(&self) -> Option<Spot> {
        (self.lit.load(Ordering::Acquire) != 0).then(|| Spot {
            process: self.process.load(Ordering::Relaxed),
            address: self.address.load(Ordering::Relaxed),
            number: self.number.load(Ordering::Relaxed),
        })
    }

    /// Whether the receiver has said that it can read the sender's memory.
    #[inline]
    pub(super) fn is_readable(&self) -> bool {
        self.verdict.load(Ordering::Relaxed) == READABLE
    }

    /// Says that the receiver cannot read the sender's memory, from now on.
    pub(super) fn give_up(&self) {
        self.verdict.store(UNREADABLE, Ordering::Relaxed);
    }
}

/// Tries to read the sender's memory, and tells it how that went.
pub(super) fn probe(words: &Words) -> Option<Reach> {
    let reach = Reach {
        beacon: words.spot()?,
    };
    match reach.read(reach.beacon.address, &mut [0; 8]) {
        Ok(()) => {
            words.verdict.store(READABLE, Ordering::Relaxed);
            Some(reach)
        }
        Err(error) => {
            tracing::debug!("messages take two copies: {error}");
            words.give_up();
            None
        }
    }
}

impl Reach {
    /// Fills `into` from the address in the peer's memory. After an error it holds anything.
    pub(super) fn read(self, address: u64, into: &mut [u8]) -> Result<(), Unread> {
        let Spot {
            process, number, ..
        } = self.beacon;
        let mut done = 0;
        while done < into.len() {
            let rest = &mut into[done..];
            let mut found = [0; 8];
            let remote = [
                RemoteIoVec {
                    base: self.beacon.address as usize,
                    len: found.len(),
                },
                RemoteIoVec {
                    base: (address as usize).wrapping_add(done),
                    len: rest.len(),
                },
            ];
            let missing = rest.len();
            // One call reads the memory of one process, even if its id has changed hands.
            let mut local = [IoSliceMut::new(&mut found), IoSliceMut::new(rest)];
            let read = process_vm_readv(Pid::from_raw(process as i32), &mut local, &remote)
                .map_err(|error| Unread::Refused(Errno::from_raw_os_error(error as i32)))?;
            if u64::from_ne_bytes(found) != number {
                return Err(Unread::Stranger(process));
            }
            // Where the number is there, and then nothing, the kernel has met what it does not read.
            match read.saturating_sub(found.len()) {
                0 => return Err(Unread::Partly(missing)),
                more => done += more,
            }
        }
        Ok(())
    }
}

/// Lets processes of this user read this one where only its parents may (Yama's default on Ubuntu).
fn admit_readers() {
    let scope = fs::read_to_string(SCOPE).unwrap_or_default();
    if scope.trim() == DESCENDANTS_ONLY {
        // The probe finds out whether it helped.
        let _ = set_ptracer(PTracer::Any);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

// Run with `tests/models.sh`.
#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn who_sees_the_light_sees_where_the_number_stands() {
        loom::model(|| {
            let words = Arc::new(Words::<AtomicU64>::default());
            let spot = Spot {
                process: 1,
                address: 2,
                number: 3,
            };
            let sender = loom::thread::spawn({
                let words = Arc::clone(&words);
                move || words.show(spot)
            });
            assert!(words.spot().is_none_or(|seen| seen == spot));
            sender.join().unwrap();
        });
    }
}
