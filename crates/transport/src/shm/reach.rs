//! Reads directly from the peer's memory, if the kernel allows it: one copy instead of two.
//!
//! The sender of a direction publishes its [beacon](super::beacon): its process, and the address of
//! a random number in its memory. The receiver tries once to read it. Only if it finds the number
//! does it tell the sender so, and only then are messages lent. A different user, a container or a
//! security module may prevent this; then all messages go through slots.
//!
//! The same system call that reads a message reads the number again. This proves that the data are
//! the sender's, even if its process id has been reused. If a read fails for any reason, the
//! receiver announces that it cannot read any more, and from then on all messages go through slots;
//! messages that are already lent arrive in [pieces](super::pieces).
//!
//! Pairings of the words of a [`Segment`](super::segment::Segment):
//! - `lit`: Release in [`Words::show`], Acquire in [`Words::spot`]: a receiver that sees it sees
//!   the other words.
//! - `verdict`: publishes nothing, so relaxed ordering is enough.

use std::fs;
use std::io::IoSliceMut;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use rustix::io::Errno;
use rustix::process::{PTracer, set_ptracer};

use super::beacon::{self, Spot};
use super::ring::Word;

/// The words of one direction; all are zero at first.
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

/// Yama's setting for whether processes other than its ancestors may read this process's memory.
const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
const DESCENDANTS_ONLY: &str = "1";

/// Access to the peer's memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reach {
    beacon: Spot,
}

/// Why the peer's memory could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unread {
    #[error("process_vm_readv: {0}")]
    Refused(Errno),
    #[error("process_vm_readv reads no further than {0} bytes before the end")]
    Partly(usize),
    #[error("process {0} is not the peer")]
    Stranger(u64),
}

/// Lets the peer read this process's memory, as far as the kernel allows; returns whether that was
/// possible.
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

    /// Whether the receiver has announced that it can read the sender's memory.
    #[inline]
    pub(super) fn is_readable(&self) -> bool {
        self.verdict.load(Ordering::Relaxed) == READABLE
    }

    /// Announces that the receiver cannot read the sender's memory any more.
    pub(super) fn give_up(&self) {
        self.verdict.store(UNREADABLE, Ordering::Relaxed);
    }
}

/// Tries to read the sender's memory, and tells the sender whether that worked.
pub(super) fn probe(words: &Words) -> Option<Reach> {
    let reach = Reach::new(words.spot()?);
    match reach.read(reach.beacon.address, &mut [0; 8]) {
        Ok(()) => {
            words.verdict.store(READABLE, Ordering::Relaxed);
            Some(reach)
        }
        Err(error) => {
            spark_ccl_log::debug!("messages take two copies: {error}");
            words.give_up();
            None
        }
    }
}

impl Reach {
    /// Access to the process with this beacon.
    pub(super) fn new(beacon: Spot) -> Self {
        Self { beacon }
    }

    /// Fills `into` from the address in the peer's memory. After an error its contents are
    /// unspecified.
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
            // A single call reads from a single process, even if its id has been reused.
            let mut local = [IoSliceMut::new(&mut found), IoSliceMut::new(rest)];
            let read = process_vm_readv(Pid::from_raw(process as i32), &mut local, &remote)
                .map_err(|error| Unread::Refused(Errno::from_raw_os_error(error as i32)))?;
            if u64::from_ne_bytes(found) != number {
                return Err(Unread::Stranger(process));
            }
            // If the number was read but nothing after it, the payload is in memory that the kernel
            // does not read.
            match read.saturating_sub(found.len()) {
                0 => return Err(Unread::Partly(missing)),
                more => done += more,
            }
        }
        Ok(())
    }
}

/// Lets processes of this user read this one if only its ancestors may (Yama's default on Ubuntu).
fn admit_readers() {
    let scope = fs::read_to_string(SCOPE).unwrap_or_default();
    if scope.trim() == DESCENDANTS_ONLY {
        // The receiver's probe shows whether it worked.
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
