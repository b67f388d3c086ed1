//! Reading straight out of the peer's memory, where the kernel lets us: one copy instead of two.
//!
//! The sender of a direction lights a beacon: its process, and where in its memory a random number
//! stands. The receiver tries to read that once. Only if it finds the number does it say so, and only
//! then are messages lent. Another user, a container or a security module may be in the way; then all
//! goes through slots.
//!
//! Pairings of the words of a [`Segment`](super::segment::Segment):
//! - `lit`: Release in [`Beacon::light`], Acquire in [`probe`]: who sees it sees the other words.
//! - `verdict`: says only that; nothing is read on its account.

use std::fs;
use std::io::IoSliceMut;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use rustix::io::Errno;
use rustix::process::{PTracer, getpid, set_ptracer};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::LinkError;

/// The words of one direction, all zero at first.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Words {
    process: AtomicU64,
    address: AtomicU64,
    number: AtomicU64,
    lit: AtomicU64,
    verdict: AtomicU64,
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
        let process = getpid().as_raw_nonzero().get();
        let address = std::ptr::from_ref(beacon.number.as_ref()) as u64;
        words.process.store(process as u64, Ordering::Relaxed);
        words.address.store(address, Ordering::Relaxed);
        words.number.store(*beacon.number, Ordering::Relaxed);
        words.lit.store(1, Ordering::Release);
        Some(beacon)
    }
}

impl Words {
    /// Whether the receiver has said that it can read the sender's memory.
    #[inline]
    pub(super) fn is_readable(&self) -> bool {
        self.verdict.load(Ordering::Relaxed) == READABLE
    }
}

/// Tries to read the sender's memory, and tells it how that went.
pub(super) fn probe(words: &Words) -> Option<Reach> {
    if words.lit.load(Ordering::Acquire) == 0 {
        return None;
    }
    let reach = Reach {
        process: Pid::from_raw(words.process.load(Ordering::Relaxed) as i32),
    };
    let mut found = [0; 8];
    let address = words.address.load(Ordering::Relaxed);
    let expected = words.number.load(Ordering::Relaxed);
    let readable = match reach.read(address, &mut found) {
        Ok(()) => u64::from_ne_bytes(found) == expected,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn dark() -> Words {
        Words {
            process: AtomicU64::new(0),
            address: AtomicU64::new(0),
            number: AtomicU64::new(0),
            lit: AtomicU64::new(0),
            verdict: AtomicU64::new(0),
        }
    }

    #[test]
    fn only_a_beacon_that_is_lit_and_found_makes_memory_readable() {
        let words = dark();
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
        let words = dark();
        let _beacon = Beacon::light(&words).unwrap();
        if let Some(reach) = probe(&words) {
            let error = reach.read(4096, &mut [0; 8]).unwrap_err();
            assert!(error.to_string().contains("process_vm_readv"), "{error}");
        }
    }
}
