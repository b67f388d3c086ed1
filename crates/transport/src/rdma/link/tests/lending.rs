//! Messages that real devices read in the lender's memory.

use std::ptr::NonNull;
use std::sync::Arc;

use super::*;
use crate::rdma::{Reach, RegisteredMemory, Registration, Registry};
use crate::{Borrowing, Lending, Lends};

pub(super) const BYTES: usize = 64 << 10;
const SLOTS: Geometry = Geometry {
    slot_bytes: BYTES,
    slots: 4,
};

/// Registered memory of one side; deregistered before it is freed.
pub(super) struct Lot {
    pub(super) registration: Registration,
    pub(super) memory: Box<[u8]>,
}

impl Lot {
    pub(super) fn new(registry: &Arc<Registry>, bytes: usize) -> Self {
        let mut memory = vec![0; bytes].into_boxed_slice();
        let start = NonNull::from(&mut *memory).cast();
        // SAFETY: `registration` is declared first, so it is dropped before the memory is freed.
        // Each test waits for its loans in both directions, or deregisters the memory, before it
        // uses the memory for anything else.
        let registration =
            unsafe { registry.register(RegisteredMemory::Host { start, bytes }, Reach::Lent) }
                .unwrap();
        Self {
            registration,
            memory,
        }
    }

    /// Memory in which every byte differs from those near it.
    pub(super) fn filled(registry: &Arc<Registry>, bytes: usize) -> Self {
        let mut lot = Self::new(registry, bytes);
        for (index, byte) in lot.memory.iter_mut().enumerate() {
            *byte = (index * 7 + (index >> 8)) as u8;
        }
        lot
    }
}

pub(super) fn linked(sides: &[Side; 2]) -> [(Tx, Rx); 2] {
    connected(sides, SLOTS).map(|end| {
        let (tx, rx, _) = end.unwrap();
        (tx, rx)
    })
}

pub(super) fn lend(tx: &mut Tx, payload: &[u8], tag: u64) -> u64 {
    // SAFETY: the payload is part of memory that outlives the link, or the test keeps it unchanged
    // until it has returned.
    match unsafe { tx.lend(NonNull::from(payload), tag) }.unwrap() {
        Lending::Lent { loan, bytes } if bytes == payload.len() => loan,
        other => panic!("{other:?}"),
    }
}

pub(super) fn try_borrow(rx: &mut Rx, room: &mut [u8], tag: u64) -> Result<Borrowing, LinkError> {
    // SAFETY: each test leaves the room alone until it has been received, the link is withdrawn or
    // no longer used, or the memory is deregistered.
    unsafe { rx.borrow(room, tag, None) }
}

fn borrow(rx: &mut Rx, room: &mut [u8], tag: u64) -> usize {
    let until = soon();
    loop {
        match try_borrow(rx, room, tag).unwrap() {
            Borrowing::Done(bytes) => return bytes,
            Borrowing::NotYet => assert!(Instant::now() < until, "it does not come"),
            Borrowing::Unable => panic!("unable"),
        }
        thread::yield_now();
    }
}

/// Starts reading everything that has been lent, on all rails at once. Returns how much has already
/// been received.
pub(super) fn ask(rx: &mut Rx, room: &mut [u8]) -> usize {
    // Gives all of the lent messages time to arrive.
    thread::sleep(Duration::from_millis(200));
    let until = soon();
    let mut done = 0;
    while done < room.len() && rx.core.lock().rails().any(|rail| rail.reads.count == 0) {
        match try_borrow(rx, &mut room[done..], 9).unwrap() {
            Borrowing::Done(bytes) => done += bytes,
            Borrowing::NotYet => assert!(Instant::now() < until, "it does not come"),
            Borrowing::Unable => panic!("unable"),
        }
    }
    done
}

pub(super) fn returns(tx: &mut Tx, loan: u64) {
    let until = soon();
    while !tx.has_returned(loan).unwrap() {
        assert!(Instant::now() < until, "it does not return");
        thread::yield_now();
    }
}

#[test]
fn lent_messages_are_read_to_registered_memory_by_all_rails() {
    let sides = sides(2);
    let [(mut tx, _rx), (other_tx, mut other_rx)] = linked(&sides);
    let from = Lot::filled(sides[0].0.registry(), 3 * BYTES + 40_000);
    let mut to = Lot::new(sides[1].0.registry(), from.memory.len());
    assert_eq!(
        tx.lends(from.memory.as_ptr(), from.memory.len()),
        Lends::Registered
    );
    let loans: Vec<_> = from
        .memory
        .chunks(BYTES)
        .map(|part| lend(&mut tx, part, 9))
        .collect();
    // SAFETY: the link refuses the loan, as the next line checks, so it does not keep the payload.
    let refused = unsafe { tx.lend(NonNull::from(&from.memory[..BYTES]), 9) };
    assert_eq!(refused.unwrap(), Lending::NotYet);
    let mut done = 0;
    while done < to.memory.len() {
        assert!(!tx.has_returned(loans[done / BYTES]).unwrap());
        done += borrow(&mut other_rx, &mut to.memory[done..], 9);
    }
    assert!(to.memory == from.memory);
    returns(&mut tx, loans[3]);
    for rail in other_tx.core.lock().rails() {
        assert!(rail.posted >= 2, "{} carried {}", rail.name, rail.posted);
        assert_eq!((rail.reads.count, rail.reads.bytes), (0, 0));
    }
}

#[test]
fn lent_messages_are_peeked_at_like_others() {
    let sides = sides(1);
    let [(mut tx, _rx), (_tx, mut other_rx)] = linked(&sides);
    let from = Lot::filled(sides[0].0.registry(), 2 * BYTES);
    let first = lend(&mut tx, &from.memory[..40_000], 1);
    tx.reserve(5).unwrap().unwrap().fill(5);
    tx.commit(5, 2).unwrap();
    let last = lend(&mut tx, &from.memory[BYTES..], 3);
    let until = soon();
    for (tag, expected) in [
        (1, &from.memory[..40_000]),
        (2, &[5; 5][..]),
        (3, &from.memory[BYTES..]),
    ] {
        // The first peek requests what is lent.
        while other_rx.peek().unwrap().is_none() {
            assert!(Instant::now() < until, "{tag} does not come");
            thread::yield_now();
        }
        let arrival = other_rx.peek().unwrap().unwrap();
        assert_eq!(arrival.tag, tag);
        assert!(arrival.payload == expected);
        other_rx.release();
    }
    returns(&mut tx, first);
    returns(&mut tx, last);
}

#[test]
fn what_cannot_be_lent_or_borrowed_goes_through_slots() {
    let sides = sides(1);
    let [(mut tx, _rx), (_tx, mut other_rx)] = linked(&sides);
    let from = Lot::filled(sides[0].0.registry(), BYTES + 1);
    let ordinary = vec![7; BYTES];
    assert_eq!(tx.lends(ordinary.as_ptr(), BYTES), Lends::Nothing);
    for payload in [&ordinary, &from.memory[..1000], &from.memory[..]] {
        // SAFETY: the link refuses the loan, as the next line checks, so it does not keep the
        // payload.
        let refused = unsafe { tx.lend(NonNull::from(payload), 1) };
        assert_eq!(refused.unwrap(), Lending::Unable);
    }
    let loan = lend(&mut tx, &from.memory[..BYTES], 1);
    let mut to = Lot::new(sides[1].0.registry(), 2 * BYTES);
    let until = soon();
    while try_borrow(&mut other_rx, &mut to.memory, 2).unwrap() == Borrowing::NotYet {
        assert!(Instant::now() < until, "it does not come");
    }
    // Another tag, no room, or memory that is not registered.
    let mut refused = |room: &mut [u8], tag| {
        assert_eq!(
            try_borrow(&mut other_rx, room, tag).unwrap(),
            Borrowing::Unable
        );
    };
    refused(&mut to.memory, 2);
    refused(&mut to.memory[..BYTES - 1], 1);
    refused(&mut vec![0; BYTES], 1);
    while other_rx.peek().unwrap().is_none() {
        assert!(Instant::now() < until, "it does not come");
        thread::yield_now();
    }
    assert!(other_rx.peek().unwrap().unwrap().payload == &from.memory[..BYTES]);
    other_rx.release();
    returns(&mut tx, loan);
}

#[test]
fn what_a_failed_rail_has_not_read_is_read_by_another() {
    let sides = sides(2);
    let [(mut tx, mut rx), (other_tx, mut other_rx)] = linked(&sides);
    let from = Lot::filled(sides[0].0.registry(), 4 * BYTES);
    let mut to = Lot::new(sides[1].0.registry(), from.memory.len());
    from.memory.chunks(BYTES).for_each(|part| {
        lend(&mut tx, part, 9);
    });
    let mut done = ask(&mut other_rx, &mut to.memory);
    other_tx.core.lock().drop_rail(0, "a test".to_owned());
    while done < to.memory.len() {
        assert!(rx.peek().unwrap().is_none());
        done += borrow(&mut other_rx, &mut to.memory[done..], 9);
    }
    assert!(to.memory == from.memory);
}

#[test]
fn what_a_device_has_said_already_is_not_waited_for_when_its_rail_is_dropped() {
    let sides = sides(1);
    let [(mut tx, _rx), (other_tx, mut other_rx)] = linked(&sides);
    let from = Lot::filled(sides[0].0.registry(), BYTES);
    let mut to = Lot::new(sides[1].0.registry(), BYTES);
    lend(&mut tx, &from.memory, 9);
    from.registration.deregister().unwrap();
    let until = soon();
    while let Ok(borrowed) = try_borrow(&mut other_rx, &mut to.memory, 9) {
        assert_eq!(borrowed, Borrowing::NotYet);
        assert!(Instant::now() < until, "nothing is said");
        // Long enough that one poll finds all completions.
        thread::sleep(Duration::from_millis(100));
    }
    // Without a completion in time, it would have been destroyed.
    assert!(other_tx.core.lock().dead()[0].pair.is_some());
}

#[test]
fn memory_that_is_deregistered_is_not_written_any_more() {
    let sides = sides(1);
    let [(mut tx, _rx), (_tx, mut other_rx)] = linked(&sides);
    let from = Lot::filled(sides[0].0.registry(), 4 * BYTES);
    let mut to = Lot::new(sides[1].0.registry(), from.memory.len());
    from.memory.chunks(BYTES).for_each(|part| {
        lend(&mut tx, part, 9);
    });
    let until = soon();
    while try_borrow(&mut other_rx, &mut to.memory, 9).unwrap() == Borrowing::NotYet {
        if !other_rx.has_news() && other_rx.core.lock().is_awaited() {
            break;
        }
        assert!(Instant::now() < until, "nothing is asked for");
    }
    to.registration.deregister().unwrap();
    let seen = to.memory.clone();
    thread::sleep(Duration::from_millis(500));
    assert!(to.memory == seen);
    // What was requested cannot arrive any more: the call returns an error.
    let error = loop {
        assert!(Instant::now() < until, "nothing is said");
        match other_rx.peek() {
            Err(error) => break error,
            Ok(_) => thread::yield_now(),
        }
    };
    assert!(
        matches!(error, LinkError::Rdma { .. } | LinkError::Misuse(_)),
        "{error}"
    );
}

#[test]
fn what_is_lent_while_a_rail_is_dropped_can_be_read_by_it_when_it_is_back() {
    let sides = sides(2);
    let [(mut tx, _rx), (other_tx, mut other_rx)] = linked(&sides);
    let from = Lot::filled(sides[0].0.registry(), 4 * BYTES);
    let mut to = Lot::new(sides[1].0.registry(), from.memory.len());
    tx.core.lock().drop_rail(0, "a test".to_owned());
    from.memory.chunks(BYTES).for_each(|part| {
        lend(&mut tx, part, 9);
    });
    let until = soon();
    while [&tx, &other_tx].iter().any(|tx| tx.rails().returned == 0) {
        assert!(Instant::now() < until, "the rail does not return");
        tx.core.lock().look_around();
        other_tx.core.lock().look_around();
        thread::yield_now();
    }
    let mut done = 0;
    while done < to.memory.len() {
        done += borrow(&mut other_rx, &mut to.memory[done..], 9);
    }
    assert!(to.memory == from.memory);
    assert_eq!((other_tx.rails().in_use, other_tx.rails().dropped), (2, 1));
    for rail in other_tx.core.lock().rails() {
        assert!(rail.posted >= 2, "{} carried {}", rail.name, rail.posted);
    }
}

#[test]
fn memory_of_a_link_that_is_given_up_is_not_written_any_more() {
    let sides = sides(1);
    let [(mut tx, _rx), (mut other_tx, mut other_rx)] = linked(&sides);
    let from = Lot::filled(sides[0].0.registry(), 4 * BYTES);
    let mut to = Lot::new(sides[1].0.registry(), from.memory.len());
    from.memory.chunks(BYTES).for_each(|part| {
        lend(&mut tx, part, 9);
    });
    let mut done = ask(&mut other_rx, &mut to.memory);
    other_tx.withdraw();
    let seen = to.memory.clone();
    thread::sleep(Duration::from_millis(500));
    assert!(to.memory == seen);
    // What had arrived before can still be received.
    let ended = loop {
        match try_borrow(&mut other_rx, &mut to.memory[done..], 9) {
            Ok(Borrowing::Done(bytes)) => done += bytes,
            ended => break ended,
        }
    };
    assert!(matches!(ended, Err(LinkError::Closed)), "{ended:?}");
    assert!(to.memory[..done] == from.memory[..done]);
}

#[test]
fn what_is_written_after_a_withdrawal_is_never_taken_for_what_was_lent() {
    let sides = sides(1);
    let [(mut tx, _rx), (_tx, mut other_rx)] = linked(&sides);
    let mut from = Lot::filled(sides[0].0.registry(), BYTES);
    let lent = from.memory.clone();
    let mut to = Lot::new(sides[1].0.registry(), BYTES);
    lend(&mut tx, &from.memory, 9);
    thread::sleep(Duration::from_millis(100));
    tx.withdraw();
    from.memory.fill(0xee);
    let until = soon();
    loop {
        assert!(Instant::now() < until, "nothing is said");
        match try_borrow(&mut other_rx, &mut to.memory, 9) {
            Ok(Borrowing::Done(_)) => assert!(to.memory == lent),
            Ok(_) => thread::yield_now(),
            Err(_) => break,
        }
    }
}
