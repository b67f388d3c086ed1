//! Reading straight out of the peer's memory, where the kernel lets us: one copy instead of two.
//!
//! The sender of a direction lights a beacon: its process, and where in its memory a random number
//! stands. The receiver tries to read that once. Only if it finds the number does it say so, and only
//! then are messages lent. Another user, a container or a security module may be in the way; then all
//! goes through slots.
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
use rustix::process::{PTracer, getpid, set_ptracer};
use rustix::rand::{GetRandomFlags, getrandom};

use super::ring::Word;
use crate::LinkError;

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

/// Where a number stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Spot {
    process: u64,
    address: u64,
    number: u64,
}

const READABLE: u64 = 1;
const UNREADABLE: u64 = 2;

/// Where it stands whether this process may be read by processes that are not its parents.
const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
const DESCENDANTS_ONLY: &str = "1";

/// A number in this process's memory for the peer to find.
#[derive(Debug)]
pub(super) struct Beacon {
    number: Box<u64>,
}

/// The process of the peer, which can be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reach {
    process: Pid,
}

impl Beacon {
    /// Shows the peer where to find a number; `None` if there is no random one.
    pub(super) fn light(words: &Words) -> Option<Self> {
        let mut number = [0; 8];
        getrandom(&mut number, GetRandomFlags::empty()).ok()?;
        let beacon = Self {
            number: Box::new(u64::from_ne_bytes(number)),
        };
        admit_readers();
        words.show(Spot {
            process: getpid().as_raw_nonzero().get() as u64,
            address: std::ptr::from_ref(beacon.number.as_ref()) as u64,
            number: *beacon.number,
        });
        Some(beacon)
    }
}

impl<W: Word> Words<W> {
    fn show(&self, spot: Spot) {
        self.process.store(spot.process, Ordering::Relaxed);
        self.address.store(spot.address, Ordering::Relaxed);
        self.number.store(spot.number, Ordering::Relaxed);
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
}

/// Tries to read the sender's memory, and tells it how that went.
pub(super) fn probe(words: &Words) -> Option<Reach> {
    let spot = words.spot()?;
    let reach = Reach {
        process: Pid::from_raw(spot.process as i32),
    };
    let mut found = [0; 8];
    let readable = match reach.read(spot.address, &mut found) {
        Ok(()) => u64::from_ne_bytes(found) == spot.number,
        Err(error) => {
            tracing::debug!("messages take two copies: {error}");
            false
        }
    };
    let verdict = if readable { READABLE } else { UNREADABLE };
    words.verdict.store(verdict, Ordering::Relaxed);
    readable.then_some(reach)
}

impl Reach {
    /// Fills `into` from the address in the peer's memory.
    pub(super) fn read(self, address: u64, into: &mut [u8]) -> Result<(), LinkError> {
        let mut done = 0;
        while done < into.len() {
            let rest = &mut into[done..];
            let remote = RemoteIoVec {
                base: (address as usize).wrapping_add(done),
                len: rest.len(),
            };
            match process_vm_readv(self.process, &mut [IoSliceMut::new(rest)], &[remote]) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(read) => done += read,
                Err(error) => {
                    return Err(LinkError::Os {
                        call: "process_vm_readv",
                        error: Errno::from_raw_os_error(error as i32),
                    });
                }
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
mod tests {
    use super::*;

    #[test]
    fn only_a_beacon_that_is_lit_and_found_makes_memory_readable() {
        let words = Words::<AtomicU64>::default();
        assert!(probe(&words).is_none() && !words.is_readable());

        let _beacon = Beacon::light(&words).unwrap();
        let found = probe(&words).is_some();
        assert_eq!(words.is_readable(), found);

        // What a process of another namespace would find.
        words.number.fetch_xor(1, Ordering::Relaxed);
        assert!(probe(&words).is_none() && !words.is_readable());
    }

    #[test]
    fn addresses_of_nothing_are_an_error() {
        let words = Words::<AtomicU64>::default();
        let _beacon = Beacon::light(&words).unwrap();
        if let Some(reach) = probe(&words) {
            let error = reach.read(4096, &mut [0; 8]).unwrap_err();
            assert!(error.to_string().contains("process_vm_readv"), "{error}");
        }
    }
}

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
