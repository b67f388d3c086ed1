//! Failover: how a link continues when its rails fail.

use std::process::Command;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use spark_ccl_verbs::PairState;

mod loss;
mod revival;

use super::core::Dead;
use super::*;
use crate::Rails;

/// How many messages the link carries in each direction before the test intervenes, and at least as
/// many after it.
const MESSAGES: u64 = 100;
/// Watchdog against deadlock. Linux 6.1 may be stuck for 45 s sending on a device that is going
/// down.
const WATCHDOG: Duration = Duration::from_secs(120);
const ONE_SLOT: Geometry = Geometry {
    slot_bytes: 4096,
    slots: 1,
};

pub(super) type End = (Tx, Rx);

pub(super) fn ends(sides: &[Side; 2], geometry: Geometry) -> [End; 2] {
    connected(sides, geometry).map(|end| {
        let (tx, rx, _) = end.unwrap();
        (tx, rx)
    })
}

/// Both ends' ports, if they are joined by cables that can be cut.
fn cabled(rails: usize) -> Option<[Side; 2]> {
    has(Need::Cables).then(|| sides(rails))
}

fn rails(arguments: &[&str]) {
    let ended = Command::new("rails").args(arguments).status().unwrap();
    assert!(ended.success(), "rails {arguments:?}: {ended}");
}

/// Both ends' ports, if the first rail's cable can be cut.
pub(super) fn severable(rails: usize) -> Option<[Side; 2]> {
    (!is_on_ports() || has(Need::Cables)).then(|| sides(rails))
}

/// The first rail's cable carries nothing, until this is dropped. (Taking a port down while
/// something is being sent can stall the emulated kernel, Linux 6.1, for a minute.)
pub(super) struct Cut {
    _impaired: Option<Impaired>,
}

impl Cut {
    pub(super) fn new() -> Self {
        if !is_on_ports() {
            testing::cut(0, true);
        }
        let impaired = || Impaired::new(&["r0a", "r0b"], ["loss", "100%"]);
        Self {
            _impaired: is_on_ports().then(impaired),
        }
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        testing::cut(0, false);
    }
}

/// Impairs network devices (loss, delay, rate) until it is dropped.
struct Impaired(&'static [&'static str]);

impl Impaired {
    fn new(devices: &'static [&'static str], how: [&str; 2]) -> Self {
        for device in devices {
            rails(&["impair", device, how[0], how[1]]);
        }
        Self(devices)
    }
}

impl Drop for Impaired {
    fn drop(&mut self) {
        for device in self.0 {
            rails(&["impair", device]);
        }
    }
}

fn len(number: u64) -> usize {
    4000 - number as usize % 100
}

fn byte(number: u64) -> u8 {
    (number as usize * 7) as u8
}

/// Traffic in both directions: both ends of a link send until each direction has carried `goal`
/// messages.
struct Negotiation {
    goal: AtomicU64,
    /// The most messages that were sent in a direction.
    sent: AtomicU64,
    /// How many ends have sent and received everything.
    done: AtomicUsize,
}

/// One end of the traffic, and its progress.
struct Talker<'a> {
    negotiation: &'a Negotiation,
    end: End,
    sent: u64,
    read: u64,
}

impl Talker<'_> {
    /// Sends and receives until both ends are done: an end that is done keeps polling, because its
    /// peer may still need it.
    fn run(&mut self) -> Result<(), LinkError> {
        let until = Instant::now() + WATCHDOG;
        let mut is_done = false;
        while self.negotiation.done.load(Ordering::Relaxed) < 2 {
            assert!(Instant::now() < until, "{:?} {:?}", self.sent, self.read);
            let moved = self.send()? | self.receive()?;
            let goal = self.negotiation.goal.load(Ordering::Relaxed);
            if !is_done && self.read == goal {
                is_done = true;
                self.negotiation.done.fetch_add(1, Ordering::Relaxed);
            }
            if !moved {
                thread::sleep(Duration::from_micros(50));
            }
        }
        Ok(())
    }

    fn send(&mut self) -> Result<bool, LinkError> {
        let number = self.sent;
        let len = len(number);
        let tx = &mut self.end.0;
        if number == self.negotiation.goal.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let Some(slot) = tx.reserve(len)? else {
            return Ok(false);
        };
        slot.fill(byte(number));
        tx.commit(len, number)?;
        self.sent += 1;
        self.negotiation
            .sent
            .fetch_max(number + 1, Ordering::Relaxed);
        Ok(true)
    }

    fn receive(&mut self) -> Result<bool, LinkError> {
        let number = self.read;
        let rx = &mut self.end.1;
        let Some(arrival) = rx.peek()? else {
            return Ok(false);
        };
        let found = (arrival.tag, arrival.payload.len());
        assert_eq!(found, (number, len(number)));
        let expected = byte(number);
        assert!(arrival.payload.iter().all(|byte| *byte == expected));
        rx.release();
        self.read += 1;
        Ok(true)
    }
}

/// Runs traffic between both ends, and calls `act` in the middle. Returns each end's result and the
/// state of its rails.
fn negotiation(ends: [End; 2], act: impl FnOnce()) -> [(Result<(), LinkError>, Rails); 2] {
    let negotiation = &Negotiation {
        goal: AtomicU64::new(u64::MAX),
        sent: AtomicU64::new(0),
        done: AtomicUsize::new(0),
    };
    let run = move |end: End| {
        let mut talker = Talker {
            negotiation,
            end,
            sent: 0,
            read: 0,
        };
        (talker.run(), talker.end)
    };
    thread::scope(|scope| {
        let ends = ends.map(|end| scope.spawn(move || run(end)));
        let until = soon();
        while negotiation.sent.load(Ordering::Relaxed) < MESSAGES && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        act();
        // Between the load and the store, neither end can send that many messages.
        let sent = negotiation.sent.load(Ordering::Relaxed);
        negotiation.goal.store(sent + MESSAGES, Ordering::Relaxed);
        // Neither end is dropped before both are done.
        let ended = ends.map(|end| end.join().unwrap());
        ended.map(|(ended, (tx, _))| (ended, tx.rails()))
    })
}

#[test]
fn everything_arrives_when_a_rail_fails() {
    let Some(sides) = severable(2) else { return };
    let mut cut = None;
    let ended = negotiation(ends(&sides, GEOMETRY), || cut = Some(Cut::new()));
    drop(cut);
    for (ended, rails) in ended {
        ended.unwrap();
        assert_eq!((rails.in_use, rails.dropped), (1, 1));
    }
}

#[test]
fn everything_arrives_when_a_rail_fails_for_a_moment() {
    let Some(sides) = cabled(2) else { return };
    let ended = negotiation(ends(&sides, GEOMETRY), || rails(&["down", "r0b", "0.3"]));
    for (ended, rails) in ended {
        ended.unwrap();
        assert!(rails.dropped <= 1, "{rails:?}");
    }
}

#[test]
fn a_link_whose_only_rail_fails_ends_with_its_name() {
    let Some(sides) = severable(1) else { return };
    let mut cut = None;
    let ended = negotiation(ends(&sides, GEOMETRY), || cut = Some(Cut::new()));
    drop(cut);
    for (ended, _) in ended {
        match ended.unwrap_err() {
            LinkError::Rdma { rail, .. } => assert!(is_first(&rail), "{rail}"),
            other => panic!("{other}"),
        }
    }
}

fn posted(tx: &Tx) -> u64 {
    tx.core.lock().rails().map(|rail| rail.posted).sum()
}

fn drop_first(tx: &Tx) {
    tx.core.lock().drop_rail(0, "a test".to_owned());
    assert_eq!(state(tx), PairState::Error);
}

fn state(tx: &Tx) -> PairState {
    let core = tx.core.lock();
    core.dead()[0].pair.as_ref().unwrap().query_state().unwrap()
}

fn commit(tx: &mut Tx, number: u64) {
    let until = soon();
    loop {
        if let Some(slot) = tx.reserve(4096).unwrap() {
            slot.fill(byte(number));
            break;
        }
        assert!(Instant::now() < until, "no slot for {number}");
        thread::yield_now();
    }
    tx.commit(4096, number).unwrap();
}

fn expect(rx: &mut Rx, number: u64) {
    let until = soon();
    while rx.peek().unwrap().is_none() {
        assert!(Instant::now() < until, "{number} does not come");
        thread::yield_now();
    }
    let arrival = rx.peek().unwrap().unwrap();
    assert_eq!(arrival.tag, number);
    assert!(arrival.payload.iter().all(|at| *at == byte(number)));
}

#[test]
fn nothing_is_sent_again_before_both_ends_have_failed_the_rail() {
    let sides = sides(2);
    let [(mut tx, _rx), (other_tx, mut other_rx)] = ends(&sides, ONE_SLOT);
    drop_first(&other_tx);
    let before = posted(&tx);
    commit(&mut tx, 0);
    assert_eq!(posted(&tx), before + 1);
    // Time for a message that must not arrive.
    thread::sleep(Duration::from_millis(100));
    assert!(other_tx.core.lock().incoming().read_header(1).is_err());
    let by_second = tx.core.lock().rails().nth(1).unwrap().posted;
    drop_first(&tx);
    assert_eq!(posted(&tx), by_second);
    tx.core.lock().look_after();
    assert_eq!(posted(&tx), by_second + 1);
    assert_eq!(
        (state(&tx), state(&other_tx)),
        (PairState::Error, PairState::Error)
    );
    expect(&mut other_rx, 0);
    other_rx.release();
    commit(&mut tx, 1);
    expect(&mut other_rx, 1);
}

#[test]
fn a_busy_rail_does_not_keep_an_end_from_hearing_of_another() {
    let sides = sides(2);
    let geometry = Geometry {
        slots: 2000,
        ..ONE_SLOT
    };
    let [(mut tx, _rx), (other_tx, _other_rx)] = ends(&sides, geometry);
    drop_first(&tx);
    // Polls that find something.
    for number in 0..geometry.slots as u64 {
        commit(&mut tx, number);
        thread::sleep(Duration::from_micros(500));
        other_tx.core.lock().poll().unwrap();
    }
    assert_eq!(other_tx.rails().dropped, 1);
}

#[test]
fn a_late_write_of_a_failed_rail_lands_nowhere() {
    let Some(sides) = cabled(2) else { return };
    let [(mut tx, _rx), (other_tx, mut other_rx)] = ends(&sides, ONE_SLOT);
    let late = Impaired::new(&["r0a"], ["delay", "1000ms"]);
    commit(&mut tx, 0);
    assert!(other_rx.peek().unwrap().is_none());
    drop_first(&other_tx);
    tx.core.lock().look_after();
    assert_eq!(state(&tx), PairState::Error);
    expect(&mut other_rx, 0);
    other_rx.release();
    commit(&mut tx, 1);
    expect(&mut other_rx, 1);
    // Now the first message arrives over the rail that failed.
    thread::sleep(Duration::from_millis(1500));
    expect(&mut other_rx, 1);
    drop(late);
}

/// The end of a rank that waits elsewhere, for instance.
#[test]
fn a_message_of_an_end_that_nobody_polls_arrives_over_another_rail() {
    let Some(sides) = severable(2) else { return };
    let [(mut tx, _rx), (_other_tx, mut other_rx)] = ends(&sides, ONE_SLOT);
    keep_polled(&tx).unwrap();
    let cut = Cut::new();
    commit(&mut tx, 0);
    expect(&mut other_rx, 0);
    drop(cut);
}

#[test]
fn a_link_that_cannot_agree_on_a_failure_ends() {
    let sides = sides(2);
    let [(mut tx, _rx), (other_tx, _other_rx)] = ends(&sides, ONE_SLOT);
    let stream = std::sync::Arc::clone(&other_tx.core.lock().control().stream);
    stream.shutdown(std::net::Shutdown::Both).unwrap();
    commit(&mut tx, 0);
    tx.core.lock().drop_rail(0, "a test".to_owned());
    match tx.reserve(1).map(|_| ()).unwrap_err() {
        LinkError::Rdma { problem, .. } => assert!(problem.contains("a test"), "{problem}"),
        other => panic!("{other}"),
    }
}

#[test]
fn a_peer_that_ends_without_a_word_is_noticed() {
    let sides = sides(2);
    let [(_tx, mut rx), (mut other_tx, other_rx)] = ends(&sides, ONE_SLOT);
    // Its rails are stopped, so no notice that it closes can be sent over them.
    other_tx.withdraw();
    drop((other_tx, other_rx));
    let until = Instant::now() + WATCHDOG;
    let error = loop {
        assert!(Instant::now() < until, "nothing noticed");
        match rx.peek() {
            Err(error) => break error,
            Ok(_) => thread::sleep(Duration::from_millis(1)),
        }
    };
    assert!(matches!(error, LinkError::Rdma { .. }), "{error}");
}
