//! Messages that the receiver reads in the sender's memory.

use std::ptr::NonNull;

use spark_ccl_compute::Helpers;
use spark_ccl_testing::{Need, has};

use super::super::{LEND_LEAST, Rx, Tx, layout, pair};
use crate::{Borrowing, Geometry, LEND_MOST, Lending, LinkError, LinkRx, LinkTx};

pub(super) const GEOMETRY: Geometry = Geometry {
    slot_bytes: 16 << 10,
    slots: 4,
};

/// A link whose receiver has found out that it can read the sender's memory. `None` if the kernel
/// does not allow reading other processes.
pub(super) fn lending() -> Option<(Tx, Rx)> {
    if !has(Need::SingleCopy) {
        return None;
    }
    let ((mut tx, _), (_, mut rx)) = pair(GEOMETRY).unwrap();
    tx.allow_lending();
    introduce(&mut tx, &mut rx);
    let first = [0; LEND_LEAST];
    assert!(matches!(lend(&mut tx, &first, 0), Lending::Lent { .. }));
    let mut room = [1; LEND_LEAST];
    let done = borrow(&mut rx, &mut room, 0).unwrap();
    assert_eq!((done, room), (Borrowing::Done(LEND_LEAST), [0; LEND_LEAST]));
    Some((tx, rx))
}

/// The first long message goes through a slot, and makes the receiver try.
fn introduce(tx: &mut Tx, rx: &mut Rx) {
    tx.reserve(GEOMETRY.slot_bytes).unwrap().unwrap();
    tx.commit(GEOMETRY.slot_bytes, 0).unwrap();
    rx.peek().unwrap().unwrap();
    rx.release();
}

pub(super) fn lend(tx: &mut Tx, payload: &[u8], tag: u64) -> Lending {
    // SAFETY: each test keeps what it lends valid and unchanged until the loan has returned, or the
    // link is withdrawn or no longer used.
    unsafe { tx.lend(NonNull::from(payload), tag) }.unwrap()
}

pub(super) fn lent(tx: &mut Tx, payload: &[u8], tag: u64) -> u64 {
    match lend(tx, payload, tag) {
        Lending::Lent { loan, bytes } if bytes == payload.len() => loan,
        other => panic!("{other:?} for {} bytes", payload.len()),
    }
}

pub(super) fn borrow(rx: &mut Rx, room: &mut [u8], tag: u64) -> Result<Borrowing, LinkError> {
    // SAFETY: no device writes over a link through shared memory.
    unsafe { rx.borrow(room, tag, Some(&Helpers::new(3, || {}))) }
}

pub(super) fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|index| ((index + seed) * 7) as u8).collect()
}

#[test]
fn lent_payloads_arrive_and_return_in_order() {
    let Some((mut tx, mut rx)) = lending() else {
        return;
    };
    let payloads = [LEND_LEAST, LEND_LEAST + 1, 100_003, LEND_MOST].map(|len| bytes(len, len));
    let numbers = payloads.each_ref().map(|payload| lent(&mut tx, payload, 5));
    let mut room = vec![0; LEND_MOST + 1];
    for (payload, number) in payloads.iter().zip(numbers) {
        assert!(!tx.has_returned(number).unwrap());
        assert!(rx.has_news());
        let done = borrow(&mut rx, &mut room, 5).unwrap();
        assert_eq!(done, Borrowing::Done(payload.len()));
        assert!(room[..payload.len()] == payload[..]);
        assert!(tx.has_returned(number).unwrap());
    }
    assert_eq!(borrow(&mut rx, &mut room, 5).unwrap(), Borrowing::NotYet);
    assert!(!rx.has_news());
}

#[test]
fn as_many_are_lent_as_there_are_cells() {
    let Some((mut tx, mut rx)) = lending() else {
        return;
    };
    let payload = bytes(LEND_LEAST, 1);
    let mut room = vec![0; LEND_LEAST];
    for _ in 0..layout::cells(GEOMETRY) {
        lent(&mut tx, &payload, 5);
    }
    assert_eq!(lend(&mut tx, &payload, 5), Lending::NotYet);
    borrow(&mut rx, &mut room, 5).unwrap();
    lent(&mut tx, &payload, 5);
    assert_eq!(lend(&mut tx, &payload, 5), Lending::NotYet);
}

#[test]
fn what_is_not_borrowed_can_be_peeked_at() {
    let Some((mut tx, mut rx)) = lending() else {
        return;
    };
    let payload = bytes(100_000, 1);
    let number = lent(&mut tx, &payload, 5);
    let mut room = vec![0; 100_000];
    // With another tag.
    assert_eq!(borrow(&mut rx, &mut room, 6).unwrap(), Borrowing::Unable);
    for _ in 0..2 {
        let arrival = rx.peek().unwrap().unwrap();
        assert_eq!(arrival.tag, 5);
        assert!(arrival.payload == &payload[..]);
    }
    assert!(!tx.has_returned(number).unwrap());
    rx.release();
    assert!(tx.has_returned(number).unwrap());
}

#[test]
fn to_ask_for_the_tag_takes_nothing_of_a_message() {
    let Some((mut tx, mut rx)) = lending() else {
        return;
    };
    assert_eq!(rx.next_tag().unwrap(), None);
    let payload = bytes(100_000, 1);
    lent(&mut tx, &payload, 5);
    for _ in 0..2 {
        assert_eq!(rx.next_tag().unwrap(), Some(5));
    }
    let mut room = vec![0; 100_000];
    assert_eq!(
        borrow(&mut rx, &mut room, 5).unwrap(),
        Borrowing::Done(100_000)
    );
    assert!(room == payload);
}

#[test]
fn a_lent_payload_can_be_received_in_parts() {
    let Some((mut tx, mut rx)) = lending() else {
        return;
    };
    let payload = bytes(100_000, 1);
    let number = lent(&mut tx, &payload, 5);
    let mut got = Vec::new();
    for room in [1, 4095, 50_000, 1_000_000] {
        assert!(!tx.has_returned(number).unwrap());
        let mut part = vec![0; room];
        let Borrowing::Done(len) = borrow(&mut rx, &mut part, 5).unwrap() else {
            panic!("{} of {} bytes", got.len(), payload.len());
        };
        got.extend_from_slice(&part[..len]);
    }
    assert!(got == payload);
    assert!(tx.has_returned(number).unwrap());
}

/// Some distances between the places in their pages take a detour.
#[test]
fn a_lent_payload_arrives_wherever_it_goes() {
    let Some((mut tx, mut rx)) = lending() else {
        return;
    };
    let payload: &[u8] = &(0..50_000_u32)
        .flat_map(u32::to_le_bytes)
        .collect::<Vec<u8>>();
    let mut memory = vec![0; payload.len() + 3 * 4096];
    for distance in [0, 1, 16, 31, 32, 64, 4095] {
        let place = payload.as_ptr().addr() + distance;
        let start = place.wrapping_sub(memory.as_ptr().addr()) % 4096;
        memory.fill(0xa5);
        let number = lent(&mut tx, payload, 5);
        let room = &mut memory[start..start + payload.len()];
        let done = borrow(&mut rx, room, 5).unwrap();
        assert_eq!(done, Borrowing::Done(payload.len()));
        assert!(room == payload, "{distance}");
        let others = (memory[..start].iter()).chain(&memory[start + payload.len()..]);
        assert!(others.copied().all(|byte| byte == 0xa5), "{distance}");
        assert!(tx.has_returned(number).unwrap());
    }
}

#[test]
fn lent_messages_and_slots_keep_their_order() {
    let Some((mut tx, mut rx)) = lending() else {
        return;
    };
    let payload = bytes(LEND_LEAST, 3);
    let mut room = vec![0; LEND_LEAST];
    for lap in 0..20 {
        lent(&mut tx, &payload, lap);
        tx.reserve(3).unwrap().unwrap().fill(lap as u8);
        tx.commit(3, lap).unwrap();
        let done = borrow(&mut rx, &mut room, lap).unwrap();
        assert_eq!(done, Borrowing::Done(LEND_LEAST));
        assert_eq!(borrow(&mut rx, &mut room, lap).unwrap(), Borrowing::Unable);
        assert_eq!(rx.peek().unwrap().unwrap().payload, [lap as u8; 3]);
        rx.release();
    }
}

#[test]
fn short_and_overlong_payloads_are_not_lent() {
    let Some((mut tx, _rx)) = lending() else {
        return;
    };
    let payload = vec![0; LEND_MOST + 1];
    for unable in [&payload[..LEND_LEAST - 1], &payload] {
        assert_eq!(lend(&mut tx, unable, 0), Lending::Unable);
    }
}

#[test]
fn nothing_is_lent_without_leave() {
    let ((mut tx, _), (_, mut rx)) = pair(GEOMETRY).unwrap();
    introduce(&mut tx, &mut rx);
    let payload = [0; LEND_LEAST];
    assert_eq!(lend(&mut tx, &payload, 0), Lending::Unable);
}

#[test]
fn withdrawn_memory_is_not_taken_for_the_message() {
    let Some((mut tx, mut rx)) = lending() else {
        return;
    };
    let payload = bytes(LEND_LEAST, 3);
    lent(&mut tx, &payload, 1);
    tx.withdraw();
    let mut room = vec![0; LEND_LEAST];
    let error = borrow(&mut rx, &mut room, 1).unwrap_err();
    assert!(matches!(error, LinkError::Closed), "{error}");
    assert!(matches!(rx.peek(), Err(LinkError::Closed)));
}

#[test]
fn a_borrower_that_is_gone_is_an_error_unless_it_was_done() {
    let Some((mut tx, mut rx)) = lending() else {
        return;
    };
    let payload = bytes(LEND_LEAST, 3);
    let first = lent(&mut tx, &payload, 1);
    let second = lent(&mut tx, &payload, 1);
    let mut room = vec![0; LEND_LEAST];
    borrow(&mut rx, &mut room, 1).unwrap();
    drop(rx);
    assert!(tx.has_returned(first).unwrap());
    assert!(matches!(tx.has_returned(second), Err(LinkError::Closed)));
}

#[test]
fn a_reader_of_registered_memory_sees_the_withdrawal() {
    let ((mut tx, rx), (other_tx, other_rx)) = pair(GEOMETRY).unwrap();
    assert!(rx.still_lends() && other_rx.still_lends());
    tx.withdraw();
    assert!(!other_rx.still_lends());
    assert!(rx.still_lends(), "what the other end lends is its own");
    drop(other_tx);
    assert!(!rx.still_lends());
}

#[test]
fn what_is_lent_is_held_back_until_it_has_returned() {
    let Some((mut tx, mut rx)) = lending() else {
        return;
    };
    assert!(tx.flush().unwrap() && !tx.holds_back());
    let payload = bytes(LEND_LEAST, 3);
    lent(&mut tx, &payload, 1);
    assert!(tx.holds_back() && !tx.flush().unwrap());
    borrow(&mut rx, &mut [0; LEND_LEAST], 1).unwrap();
    assert!(tx.flush().unwrap() && !tx.holds_back());
}
