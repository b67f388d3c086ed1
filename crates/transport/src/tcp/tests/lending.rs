//! Messages that are sent from where they lie, while cables go.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use super::super::SLOTLESS_BYTES;
use super::cables::{GEOMETRY, Side, sides};
use super::spares::add_spare;
use super::*;
use crate::upkeep::Upkeep;
use crate::{Lending, Lends};

const LEN: usize = 20_000;

/// Lends a message to a link, if that has room. Returns the loan.
pub(super) fn try_lend(tx: &mut Tx, payload: &[u8], message: usize) -> Option<u64> {
    // SAFETY: each test keeps what it lends valid and unchanged until it has returned, or the link
    // is withdrawn or no longer used.
    match unsafe { tx.lend(NonNull::from(payload), message as u64) }.unwrap() {
        Lending::Lent { loan, bytes } if bytes == payload.len() => Some(loan),
        Lending::NotYet => None,
        other => panic!("{other:?} for {} bytes", payload.len()),
    }
}

fn lend(tx: &mut Tx, payload: &[u8], message: usize) -> u64 {
    poll("room", || try_lend(tx, payload, message))
}

/// The owner gets the memory back although the cable is out, and changes it.
#[test]
fn what_a_silent_rail_has_not_delivered_is_kept_when_its_memory_returns() {
    let [mut here, mut there] = sides(GEOMETRY, 1);
    here.cables[0].pull(HEADER_BYTES + 5);
    let mut memory: Vec<_> = (0..3).map(|message| payload(message, LEN)).collect();
    let loans = memory.iter().enumerate();
    let loans: Vec<_> = loans
        .map(|(message, bytes)| lend(&mut here.tx, bytes, message))
        .collect();
    assert!(here.tx.has_returned(loans[2]).unwrap());
    for bytes in &mut memory {
        bytes.fill(0);
    }
    here.link.look();
    add_spare([&here, &there], 1);
    for message in 0..3 {
        receive(&mut there.rx, message, LEN);
    }
}

/// It is read until then, and would be sent from there.
#[test]
fn what_the_kernel_has_not_taken_does_not_return() {
    let [mut here, mut there] = sides(GEOMETRY, 1);
    here.cables[0].pull(0);
    let memory: Vec<_> = (0..6).map(|message| payload(message, LEN)).collect();
    let loans = memory.iter().enumerate();
    let loans: Vec<_> = loans
        .map(|(message, bytes)| lend(&mut here.tx, bytes, message))
        .collect();
    assert!(here.tx.has_returned(loans[2]).unwrap());
    assert!(!here.tx.has_returned(loans[5]).unwrap());
    here.link.look();
    add_spare([&here, &there], 1);
    for message in 0..6 {
        here.link.look();
        receive(&mut there.rx, message, LEN);
    }
    assert!(here.tx.has_returned(loans[5]).unwrap());
}

/// Receives messages of a slot's length, in which a payload comes.
fn receive_all([here, there]: [&mut Side; 2], bytes: &[u8]) {
    for part in bytes.chunks(GEOMETRY.slot_bytes) {
        poll("a message", || {
            here.link.look();
            here.tx.flush().unwrap();
            let arrival = there.rx.peek().unwrap()?;
            assert_eq!((arrival.tag, arrival.payload), (7, part));
            Some(())
        });
        there.rx.release();
    }
}

/// How many bytes a link takes of a payload, and the loan.
fn lend_all(tx: &mut Tx, payload: &[u8]) -> Option<(u64, usize)> {
    // SAFETY: each test keeps what it lends valid and unchanged until it has returned.
    match unsafe { tx.lend(NonNull::from(payload), 7) }.unwrap() {
        Lending::Lent { loan, bytes } => Some((loan, bytes)),
        _ => None,
    }
}

/// A receiver that peeks expects as much as a slot holds, and what is short in a slot.
#[test]
fn a_long_payload_is_lent_as_messages_of_a_slots_length() {
    let slot = GEOMETRY.slot_bytes;
    for (len, taken) in [
        (2 * slot, 2 * slot),
        (2 * slot + SLOTLESS_BYTES, 2 * slot + SLOTLESS_BYTES),
        (2 * slot + SLOTLESS_BYTES - 1, 2 * slot),
        (GEOMETRY.slots * slot, GEOMETRY.slots * slot),
        (GEOMETRY.slots * slot + LEN, GEOMETRY.slots * slot),
    ] {
        for cables in [1, 2] {
            let [mut here, mut there] = sides(GEOMETRY, cables);
            let bytes = payload(0, len);
            let (loan, lent) = lend_all(&mut here.tx, &bytes).unwrap();
            assert_eq!(lent, taken, "of {len} bytes over {cables}");
            receive_all([&mut here, &mut there], &bytes[..lent]);
            poll("the loan", || {
                here.tx.has_returned(loan).unwrap().then_some(())
            });
        }
    }
}

/// The number of the last message stands for all: each has its copy when the loan returns, or
/// has arrived.
#[test]
fn a_loan_of_several_messages_returns_as_a_whole() {
    for (cables, passes) in [(1, 0), (1, 30_000), (2, 0), (2, 45_000)] {
        let [mut here, mut there] = sides(GEOMETRY, cables);
        here.cables[0].pull(passes);
        let bytes = payload(0, GEOMETRY.slots * GEOMETRY.slot_bytes);
        let mut memory = bytes.clone();
        let (loan, lent) = lend_all(&mut here.tx, &memory).unwrap();
        assert_eq!(lent, memory.len());
        here.link.look();
        if cables == 1 {
            // The kernel has no room for the last one where nothing passes.
            assert_eq!(here.tx.has_returned(loan).unwrap(), passes > 0);
            add_spare([&here, &there], cables);
        }
        poll("the loan", || {
            here.link.look();
            here.tx.has_returned(loan).unwrap().then_some(())
        });
        memory.fill(0);
        here.link.look();
        receive_all([&mut here, &mut there], &bytes);
    }
}

/// What has room goes, and the rest when there is more.
#[test]
fn a_full_link_takes_a_part_of_a_long_payload() {
    let [mut here, mut there] = sides(GEOMETRY, 1);
    here.cables[0].pull(0);
    let slot = GEOMETRY.slot_bytes;
    let bytes = payload(0, 8 * slot);
    let (_, mut done) = lend_all(&mut here.tx, &bytes).unwrap();
    // The kernel takes a few messages, whose slots are free then.
    while let Some((_, more)) = lend_all(&mut here.tx, &bytes[done..]) {
        assert!(more > 0 && more % slot == 0);
        done += more;
    }
    assert!(done < bytes.len());
    here.cables[0].plug_in();
    while done < bytes.len() {
        here.tx.flush().unwrap();
        done += lend_all(&mut here.tx, &bytes[done..]).map_or(0, |(_, more)| more);
        let _ = there.rx.peek().unwrap();
    }
    here.tx.flush().unwrap();
    receive_all([&mut here, &mut there], &bytes);
}

/// Nothing is left of it then, be the cable out or not.
#[test]
fn a_link_that_is_withdrawn_reads_no_lent_memory() {
    let [mut here, mut there] = sides(GEOMETRY, 1);
    here.cables[0].pull(0);
    let memory: Vec<_> = (0..6).map(|message| payload(message, LEN)).collect();
    for (message, bytes) in memory.iter().enumerate() {
        lend(&mut here.tx, bytes, message);
    }
    here.tx.withdraw();
    drop(memory);
    here.link.look();
    add_spare([&here, &there], 1);
    here.link.look();
    assert!(there.rx.peek().unwrap().is_none());
    assert!(matches!(here.tx.has_returned(5), Err(LinkError::Closed)));
    let Side { tx, cables, .. } = here;
    drop(tx);
    cables[0].plug_in();
}

/// Acknowledgements come although nothing is kept any more.
#[test]
fn a_link_that_is_withdrawn_ends_in_order() {
    for cables in [1, 2] {
        let [mut here, _there] = sides(GEOMETRY, cables);
        // As many as it has slots: it has not asked for acknowledgements before.
        let memory: Vec<_> = (0..GEOMETRY.slots)
            .map(|message| payload(message, LEN))
            .collect();
        for (message, bytes) in memory.iter().enumerate() {
            if message == 2 {
                super::send(&mut here.tx, message, 100);
            } else {
                lend(&mut here.tx, bytes, message);
            }
        }
        here.tx.withdraw();
        drop(memory);
        here.link.look();
        assert!(!here.tx.holds_back());
        drop(here.tx);
    }
}

/// Within a host there is no copy to make, and no network that could go. Short messages go through
/// slots, and so does all that fits into short slots.
#[test]
fn only_links_between_hosts_lend() {
    let bytes = payload(0, LEN);
    let lends = |tx: &Tx, len| tx.lends(bytes.as_ptr(), len);
    let [here, _there] = sides(GEOMETRY, 1);
    assert_eq!(lends(&here.tx, LEN), Lends::Slots);
    assert_eq!(lends(&here.tx, SLOTLESS_BYTES - 1), Lends::Nothing);
    let short = Geometry {
        slot_bytes: SLOTLESS_BYTES - 64,
        ..GEOMETRY
    };
    let [mut here, _there] = sides(short, 1);
    assert_eq!(lends(&here.tx, LEN), Lends::Nothing);
    // SAFETY: nothing is lent.
    let lent = unsafe { here.tx.lend(NonNull::from(&bytes[..]), 0) };
    assert_eq!(lent.unwrap(), Lending::Unable);
    let ((mut tx, _rx), _there) = over_tcp(GEOMETRY, 1, v4());
    assert_eq!(lends(&tx, LEN), Lends::Nothing);
    // SAFETY: `bytes` is made before the link and outlives it, and nothing writes it.
    let lent = unsafe { tx.lend(NonNull::from(&bytes[..]), 0) };
    assert_eq!(lent.unwrap(), Lending::Unable);
}

#[test]
fn nothing_is_lent_while_a_slot_is_reserved() {
    let [mut here, _there] = sides(GEOMETRY, 1);
    here.tx.reserve(8).unwrap().unwrap();
    let bytes = payload(0, LEN);
    // SAFETY: the link refuses while a slot is reserved, so it keeps no pointer to the bytes.
    let lent = unsafe { here.tx.lend(NonNull::from(&bytes[..]), 0) };
    assert!(matches!(lent, Err(LinkError::Misuse(_))));
}
