//! Packets that are lost or delayed, and retransmitted.

use super::super::lending::{BYTES, Lot, ask, lend, linked, returns, try_borrow};
use super::*;
use crate::Borrowing;

/// Receives the rest of what is lent.
fn borrow_all(rx: &mut Rx, room: &mut [u8]) {
    let until = soon();
    let mut done = 0;
    while done < room.len() {
        assert!(Instant::now() < until, "it does not come");
        match try_borrow(rx, &mut room[done..], 9).unwrap() {
            Borrowing::Done(bytes) => done += bytes,
            _ => thread::yield_now(),
        }
    }
}

/// Waits for packets in flight to arrive, and for the rail failures that they would cause.
fn assert_no_rail_is_dropped(ends: [&Tx; 2]) {
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        for tx in ends {
            tx.core.lock().look_around();
            assert_eq!(tx.rails().dropped, 0, "{:?}", tx.core.lock().dead());
        }
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_read_whose_answer_is_lost_is_answered_again_after_what_was_sent_later() {
    let Some(sides) = cabled(1) else { return };
    let [(mut tx, mut rx), (mut other_tx, mut other_rx)] = linked(&sides);
    let from = Lot::filled(sides[0].0.registry(), BYTES);
    let mut to = Lot::new(sides[1].0.registry(), BYTES);
    let loan = lend(&mut tx, &from.memory, 9);
    let until = soon();
    // A peek would read it.
    while other_rx.core.lock().next_to_read().unwrap().is_none() {
        assert!(Instant::now() < until, "it does not come");
    }
    let unanswered = Impaired::new(&["r0a"], ["loss", "100%"]);
    let asked = try_borrow(&mut other_rx, &mut to.memory, 9).unwrap();
    assert_eq!(asked, Borrowing::NotYet);
    commit(&mut other_tx, 2);
    expect(&mut rx, 2);
    drop(unanswered);
    borrow_all(&mut other_rx, &mut to.memory);
    assert!(to.memory == from.memory);
    returns(&mut tx, loan);
    assert_no_rail_is_dropped([&tx, &other_tx]);
}

#[test]
fn a_rail_that_is_slow_is_not_dropped() {
    let Some(sides) = cabled(1) else { return };
    let [(mut tx, _rx), (other_tx, mut other_rx)] = linked(&sides);
    let from = Lot::filled(sides[0].0.registry(), 4 * BYTES);
    let mut to = Lot::new(sides[1].0.registry(), from.memory.len());
    from.memory.chunks(BYTES).for_each(|part| {
        lend(&mut tx, part, 9);
    });
    // Each message takes two seconds; a device that reports nothing is given up after four.
    let slow = Impaired::new(&["r0a"], ["rate", "250kbit"]);
    borrow_all(&mut other_rx, &mut to.memory);
    assert!(to.memory == from.memory);
    drop(slow);
    assert_no_rail_is_dropped([&tx, &other_tx]);
}

#[test]
fn what_was_lent_does_not_return_before_the_last_repetition_of_its_read() {
    let Some(sides) = cabled(2) else { return };
    let [(mut tx, _rx), (other_tx, mut other_rx)] = linked(&sides);
    let from = Lot::filled(sides[0].0.registry(), 2 * BYTES);
    let mut to = Lot::new(sides[1].0.registry(), from.memory.len());
    let loans: Vec<_> = from
        .memory
        .chunks(BYTES)
        .map(|part| lend(&mut tx, part, 9))
        .collect();
    // Longer than a device waits for a response, so it repeats the request.
    let late = Impaired::new(&["r1b"], ["delay", "400ms"]);
    let done = ask(&mut other_rx, &mut to.memory);
    borrow_all(&mut other_rx, &mut to.memory[done..]);
    assert!(to.memory == from.memory);
    for loan in loans {
        returns(&mut tx, loan);
    }
    from.registration.deregister().unwrap();
    assert_no_rail_is_dropped([&tx, &other_tx]);
    drop(late);
}

#[test]
fn what_a_rail_has_read_returns_by_another_when_it_is_dropped() {
    let Some(sides) = cabled(2) else { return };
    let [(mut tx, _rx), (other_tx, mut other_rx)] = linked(&sides);
    let from = Lot::filled(sides[0].0.registry(), 2 * BYTES);
    let mut to = Lot::new(sides[1].0.registry(), from.memory.len());
    let loans: Vec<_> = from
        .memory
        .chunks(BYTES)
        .map(|part| lend(&mut tx, part, 9))
        .collect();
    let done = ask(&mut other_rx, &mut to.memory);
    assert_eq!(done, 0);
    let until = soon();
    while other_tx
        .core
        .lock()
        .rails()
        .any(|rail| rail.reads.count > 0)
    {
        assert!(Instant::now() < until, "it does not come");
        other_tx.core.lock().look_around();
    }
    // The reads have completed; the notice that the second one has returned is lost.
    let silent = Impaired::new(&["r1b"], ["loss", "100%"]);
    borrow_all(&mut other_rx, &mut to.memory);
    returns(&mut tx, loans[0]);
    thread::sleep(Duration::from_millis(200));
    assert!(!tx.has_returned(loans[1]).unwrap());
    other_tx.core.lock().drop_rail(1, "a test".to_owned());
    other_tx.core.lock().look_around();
    returns(&mut tx, loans[1]);
    drop(silent);
}
