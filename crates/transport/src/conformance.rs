//! The contract of every link, as a test suite that runs over any transport.
//!
//! A transport implements [`Harness`] and calls [`run`] in a test, or the properties one by one.
//! The suite runs on one thread, which drives both ends of a link in turn.

#![allow(clippy::panic, clippy::missing_panics_doc)]

mod credits;
mod ending;
mod order;
mod slots;

use std::time::{Duration, Instant};

pub use credits::{
    a_full_link_delivers_what_it_took, credits_are_the_slots, released_slots_return,
};
pub use ending::{
    a_closed_peer_ends_sending, a_closed_sender_is_seen_after_draining,
    misuse_is_an_error_and_harms_nothing,
};
pub use order::{
    many_laps_wrap_around, messages_keep_their_order, one_slot_is_enough, tags_are_kept,
    traffic_flows_both_ways,
};
pub use slots::{
    flush_says_when_nothing_is_held_back, payloads_of_all_sizes_arrive, peeking_repeats_itself,
    reserving_repeats_itself, what_was_reserved_is_what_is_sent,
};

use crate::{Arrival, Geometry, LinkError, LinkRx, LinkTx};

/// Watchdog against deadlock: how long an expected event may take on a loaded machine.
const WATCHDOG: Duration = Duration::from_secs(30);
/// How many consecutive "not yet" results count as final.
const QUIET: usize = 200;

/// One end of a link.
pub struct LinkEnd {
    /// Its sending half.
    pub tx: Box<dyn LinkTx>,
    /// Its receiving half.
    pub rx: Box<dyn LinkRx>,
}

impl<T: LinkTx + 'static, R: LinkRx + 'static> From<(T, R)> for LinkEnd {
    fn from((tx, rx): (T, R)) -> Self {
        Self {
            tx: Box::new(tx),
            rx: Box::new(rx),
        }
    }
}

/// A transport under test.
pub trait Harness {
    /// Two ends of a new link.
    fn connect(&mut self, geometry: Geometry) -> (LinkEnd, LinkEnd);

    /// Lets time pass; called between polls.
    fn pass_time(&mut self) {
        std::thread::yield_now();
    }

    /// Whether a link accepts exactly `slots` messages while the receiver does nothing. A transport
    /// with other buffers accepts `slots` or more.
    fn exact_credits(&self) -> bool {
        true
    }
}

/// Runs every property.
pub fn run(harness: &mut dyn Harness) {
    messages_keep_their_order(harness);
    many_laps_wrap_around(harness);
    one_slot_is_enough(harness);
    tags_are_kept(harness);
    traffic_flows_both_ways(harness);
    payloads_of_all_sizes_arrive(harness);
    reserving_repeats_itself(harness);
    peeking_repeats_itself(harness);
    what_was_reserved_is_what_is_sent(harness);
    flush_says_when_nothing_is_held_back(harness);
    credits_are_the_slots(harness);
    released_slots_return(harness);
    a_full_link_delivers_what_it_took(harness);
    a_closed_sender_is_seen_after_draining(harness);
    a_closed_peer_ends_sending(harness);
    misuse_is_an_error_and_harms_nothing(harness);
}

const SMALL: Geometry = Geometry {
    slot_bytes: 256,
    slots: 4,
};

/// Fills and commits one message, if the link accepts it now.
fn try_send(tx: &mut dyn LinkTx, payload: &[u8], tag: u64) -> bool {
    match tx.reserve(payload.len()) {
        Ok(Some(slot)) => {
            assert_eq!(slot.len(), payload.len(), "length of a reserved slot");
            slot.copy_from_slice(payload);
        }
        Ok(None) => return false,
        Err(error) => panic!("reserve: {error}"),
    }
    commit(tx, payload.len(), tag);
    true
}

fn commit(tx: &mut dyn LinkTx, len: usize, tag: u64) {
    if let Err(error) = tx.commit(len, tag) {
        panic!("commit: {error}");
    }
}

/// Sends one message; waits for a free slot, which must come without any action of the receiver.
fn send(h: &mut dyn Harness, tx: &mut dyn LinkTx, payload: &[u8], tag: u64) {
    eventually(h, "a slot to send from", || {
        let sent = try_send(tx, payload, tag);
        flush(tx);
        sent.then_some(())
    });
}

/// Sends until the link accepts no more for good, or `most` messages. Returns how many were sent.
fn fill(h: &mut dyn Harness, tx: &mut dyn LinkTx, size: usize, most: usize) -> usize {
    let mut sent = 0;
    let mut quiet = 0;
    while sent < most && quiet < QUIET {
        if try_send(tx, &pattern(sent, size), sent as u64) {
            sent += 1;
            quiet = 0;
        } else {
            quiet += 1;
        }
        flush(tx);
        h.pass_time();
    }
    sent
}

fn flush(tx: &mut dyn LinkTx) -> bool {
    match tx.flush() {
        Ok(done) => done,
        Err(error) => panic!("flush: {error}"),
    }
}

/// A copy of the next message, if it is there now. Does not release it.
fn peeked(rx: &mut dyn LinkRx) -> Option<(u64, Vec<u8>)> {
    match rx.peek() {
        Ok(arrival) => arrival.map(|Arrival { tag, payload }| (tag, payload.to_vec())),
        Err(error) => panic!("peek: {error}"),
    }
}

/// Waits for the next message. Does not release it.
fn wait_peeked(h: &mut dyn Harness, tx: &mut dyn LinkTx, rx: &mut dyn LinkRx) -> (u64, Vec<u8>) {
    eventually(h, "a message", || {
        flush(tx);
        peeked(rx)
    })
}

/// Receives one message that `tx` has committed.
fn receive(h: &mut dyn Harness, tx: &mut dyn LinkTx, rx: &mut dyn LinkRx) -> (u64, Vec<u8>) {
    let message = wait_peeked(h, tx, rx);
    rx.release();
    message
}

/// Asserts that nothing arrives.
fn stays_empty(h: &mut dyn Harness, rx: &mut dyn LinkRx) {
    for _ in 0..QUIET {
        assert_eq!(peeked(rx), None, "a message that nobody sent");
        h.pass_time();
    }
}

/// Polls until there is a result.
fn eventually<T>(h: &mut dyn Harness, what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = poll() {
            return answer;
        }
        assert!(start.elapsed() < WATCHDOG, "waited {WATCHDOG:?} for {what}");
        h.pass_time();
    }
}

/// Bytes that differ from message to message and from offset to offset.
fn pattern(message: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (message.wrapping_mul(131) ^ at.wrapping_mul(31) ^ (at >> 8)) as u8)
        .collect()
}

fn is_misuse<T>(result: &Result<T, LinkError>) -> bool {
    matches!(result, Err(LinkError::Misuse(_)))
}
