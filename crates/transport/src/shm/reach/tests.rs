//! Tests of reads of a peer's memory.

use nix::unistd::{ForkResult, fork};
use rustix::process::{Pid as ChildId, Signal, WaitOptions, kill_process, waitpid};
use spark_ccl_testing::{Need, has};

use super::*;
use crate::shm::detour::Detour;

/// A [`Reach`] to this process itself; `None` if the kernel does not allow reading.
fn own_reach() -> Option<Reach> {
    if !has(Need::SingleCopy) {
        return None;
    }
    let words = Words::<AtomicU64>::default();
    assert!(admit(&words));
    Some(probe(&words).unwrap())
}

#[test]
fn only_a_beacon_that_is_lit_and_found_makes_memory_readable() {
    let words = Words::<AtomicU64>::default();
    assert!(probe(&words).is_none() && !words.is_readable());

    assert!(admit(&words));
    if has(Need::SingleCopy) {
        assert!(probe(&words).is_some() && words.is_readable());
    }

    // What a process in another PID namespace would find.
    words.number.fetch_xor(1, Ordering::Relaxed);
    assert!(probe(&words).is_none() && !words.is_readable());
}

#[test]
fn addresses_of_nothing_are_an_error() {
    let Some(reach) = own_reach() else { return };
    let error = reach.read(4096, &mut [0; 8]).unwrap_err();
    assert_eq!(error, Unread::Partly(8));
    // Reading stops at the hole: the part before it is not a whole message.
    let page = rustix::param::page_size();
    let memory = Box::leak(vec![7_u8; 4 * page].into_boxed_slice());
    let start = memory.as_ptr().align_offset(page);
    let hole = memory[start + page..].as_mut_ptr();
    // SAFETY: the page lies within the memory, which is leaked (so never freed) and which only this
    // test uses.
    unsafe { rustix::mm::mprotect(hole.cast(), page, rustix::mm::MprotectFlags::empty()) }.unwrap();
    let mut into = vec![0; 2 * page];
    let error = reach.read(memory[start..].as_ptr() as u64, &mut into);
    assert_eq!(error, Err(Unread::Partly(page)));
}

/// The way that lent memory takes where copies between two places are slow.
#[test]
fn a_detour_brings_the_same() {
    let Some(reach) = own_reach() else { return };
    let lent: Vec<u8> = (0..50_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut detour = Detour::default();
    for len in [0, 1, 4096, 64 << 10, (64 << 10) + 1, lent.len() - 17] {
        for distance in [0, 1, 16, 31] {
            let mut into = vec![0xa5; len + 4096];
            let place = lent.as_ptr().addr() + 17 + distance;
            let start = place.wrapping_sub(into.as_ptr().addr()) % 4096;
            let room = &mut into[start..start + len];
            let address = lent[17..].as_ptr() as u64;
            detour.read_around(reach, address, room).unwrap();
            assert!(*room == lent[17..17 + len], "{len} {distance}");
            let others = (into[..start].iter()).chain(&into[start + len..]);
            assert!(others.copied().all(|byte| byte == 0xa5), "{len} {distance}");
        }
    }
    let error = detour.read_around(reach, 4096, &mut [0; 8]).unwrap_err();
    assert_eq!(error, Unread::Partly(8));
}

/// The process id may have been reused, even by a process that was forked off the peer and so has
/// the same contents at the same addresses.
#[test]
fn another_process_of_that_id_is_not_taken_for_the_peer() {
    let Some(reach) = own_reach() else { return };
    let lent = Box::new([7_u8; 4096]);
    // SAFETY: the child only calls `pause`, which is async-signal-safe, until it is killed.
    let child = match unsafe { fork() }.unwrap() {
        ForkResult::Child => loop {
            // SAFETY: `pause` takes no arguments and accesses no memory.
            unsafe { libc::pause() };
        },
        ForkResult::Parent { child } => child,
    };
    let other = Reach {
        beacon: Spot {
            process: child.as_raw() as u64,
            ..reach.beacon
        },
    };
    let read = other.read(lent.as_ptr() as u64, &mut [0; 4096]);
    let id = ChildId::from_raw(child.as_raw()).unwrap();
    kill_process(id, Signal::KILL).unwrap();
    waitpid(Some(id), WaitOptions::empty()).unwrap();
    assert_eq!(read, Err(Unread::Stranger(child.as_raw() as u64)));
}

#[test]
fn a_process_id_that_nobody_has_is_an_error() {
    let Some(reach) = own_reach() else { return };
    let nobody = Reach {
        beacon: Spot {
            process: i32::MAX as u64,
            ..reach.beacon
        },
    };
    let read = nobody.read(reach.beacon.address, &mut [0; 8]);
    assert_eq!(read, Err(Unread::Refused(Errno::SRCH)));
}
