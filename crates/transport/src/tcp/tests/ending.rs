//! When a link has ended, and when it goes on.

use std::sync::Arc;

use rustix::io::Errno;

use super::super::ended_by;
use super::super::ending::{Connected, end_of};
use super::super::stream::Stream;
use super::cable::{Cable, cable};
use super::cables::{GEOMETRY, Side, sides};
use super::spares::add_spare;
use super::*;
use crate::upkeep::Upkeep;

/// Carries, is silent, was given up or reset, or was closed by the peer, maybe before it was given
/// up.
#[derive(Clone, Copy)]
enum State {
    Live,
    Silent,
    Lost,
    Reset,
    Closed,
    Gone,
}
use State::{Closed, Gone, Live, Lost, Reset, Silent};

/// As one half of a link sees a connection.
struct Seen {
    cable: Arc<Cable>,
    ended: Option<LinkError>,
    is_silent: bool,
}

impl From<State> for Seen {
    fn from(state: State) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let cable = cable(0, ours);
        let lost = |error| {
            cable.break_off(error);
            ended_by("send", error)
        };
        let ended = match state {
            Live | Silent => None,
            Lost => lost(Errno::TIMEDOUT),
            Reset => lost(Errno::CONNRESET),
            Closed => {
                drop(theirs);
                let _ = cable.receive(&mut [std::io::IoSliceMut::new(&mut [0])]);
                Some(LinkError::Closed)
            }
            Gone => lost(Errno::PIPE),
        };
        Self {
            cable,
            ended,
            is_silent: matches!(state, Silent),
        }
    }
}

impl Connected for Seen {
    fn stream(&self) -> &dyn Stream {
        &*self.cable
    }

    fn ended(&self) -> Option<&LinkError> {
        self.ended.as_ref()
    }

    fn is_silent(&self) -> bool {
        self.is_silent
    }
}

#[test]
fn a_link_ends_with_its_connections_or_with_the_peer() {
    for (sockets, closed) in [
        (&[Live, Lost][..], None),
        (&[Closed, Live], None),
        (&[Closed, Lost, Live], None),
        (&[Lost, Silent], None),
        (&[Lost, Lost, Silent], None),
        // The peer has as many spare ones as it takes.
        (&[Silent, Silent, Closed], None),
        (&[Lost, Lost, Closed], None),
        // A firewall has forgotten them, or the peer was killed.
        (&[Reset, Reset, Closed], None),
        (&[Reset, Reset, Silent], None),
        (&[Lost, Lost, Gone], Some(false)),
        (&[Lost, Lost], Some(false)),
        (&[Lost, Gone, Lost], Some(true)),
        (&[Closed, Silent], Some(true)),
        (&[Gone, Silent], Some(true)),
        (&[Closed, Closed, Silent], Some(true)),
        (&[Closed, Closed, Closed], Some(true)),
    ] {
        let sockets: Vec<Seen> = sockets.iter().copied().map(Seen::from).collect();
        let end = end_of(&sockets, 2);
        let is_closed = end.map(|error| matches!(error, LinkError::Closed));
        assert_eq!(is_closed, closed);
    }
}

#[test]
fn a_reset_is_not_called_an_end_by_the_peer() {
    let [mut here, _there] = sides(GEOMETRY, 1);
    here.cables[0].break_off(Errno::CONNRESET);
    here.link.look();
    let found = here.rx.peek().map(|arrival| arrival.is_some());
    for error in [here.tx.reserve(8).unwrap_err(), found.unwrap_err()] {
        assert!(error.to_string().contains("reset"), "{error}");
        assert!(error.peer_may_be_gone());
    }
}

/// Nothing is left to be sent by the first one, whose error nobody would get otherwise.
#[test]
fn a_link_ends_with_the_first_error_once_all_its_connections_are_lost() {
    let [mut here, mut there] = sides(GEOMETRY, 1);
    here.cables[0].pull(0);
    super::send(&mut here.tx, 0, 100);
    here.link.look();
    let spare = add_spare([&here, &there], 1);
    super::receive(&mut there.rx, 0, 100);
    here.cables[0].break_off(Errno::TIMEDOUT);
    here.link.look();
    here.tx.reserve(8).unwrap();
    spare.break_off(Errno::CONNRESET);
    here.link.look();
    let error = here.tx.reserve(8).unwrap_err();
    assert!(error.to_string().contains("timed out"), "{error}");
}

/// A cable or a spare connection that is silent may carry again, but not a peer that has left.
#[test]
fn both_halves_agree_on_whether_the_peer_has_left_while_others_are_silent() {
    let errors = [
        (Errno::PIPE, true),
        (Errno::CONNRESET, false),
        (Errno::TIMEDOUT, false),
    ];
    for (error, has_left) in errors {
        let [mut here, there] = sides(GEOMETRY, 2);
        add_spare([&here, &there], 2).pull(0);
        here.cables[1].pull(0);
        here.link.look();
        here.cables[0].break_off(error);
        here.link.look();
        assert_eq!(here.tx.reserve(8).is_err(), has_left);
        let found = here.rx.peek().map(|arrival| arrival.is_some());
        assert_eq!(found.is_err(), has_left, "{found:?}");
    }
}

/// Its cable says nothing of a peer that has left.
#[test]
fn a_link_whose_first_connections_have_ended_waits_for_no_silent_spare() {
    let [mut here, there] = sides(GEOMETRY, 2);
    add_spare([&here, &there], 2).pull(0);
    for cable in &there.cables {
        Stream::close(&**cable);
    }
    assert!(matches!(super::ending(&mut here.rx), LinkError::Closed));
}

#[test]
fn a_link_whose_first_connections_the_kernel_gave_up_waits_for_a_silent_spare() {
    let [mut here, mut there] = sides(GEOMETRY, 2);
    let spare = add_spare([&here, &there], 2);
    spare.pull(0);
    for cable in &here.cables {
        cable.break_off(Errno::TIMEDOUT);
    }
    assert!(here.rx.peek().unwrap().is_none());
    assert!(here.rx.peek().unwrap().is_none());
    spare.plug_in();
    there.cables.iter().for_each(|cable| cable.pull(0));
    there.link.look();
    super::send(&mut there.tx, 0, 100);
    super::receive(&mut here.rx, 0, 100);
}

/// A firewall has forgotten one of them; hours later the other cable is out for a while.
#[test]
fn a_reset_does_not_shorten_a_later_outage() {
    let [mut here, mut there] = sides(GEOMETRY, 2);
    for side in [&here, &there] {
        side.cables[1].break_off(Errno::CONNRESET);
        side.link.look();
        assert_eq!(side.tx.silent_rails(), [], "no call waits for it");
    }
    let exchange = |from: &mut Side, to: &mut Side, messages| {
        for message in messages {
            super::send(&mut from.tx, message, 100);
            super::receive(&mut to.rx, message, 100);
        }
    };
    exchange(&mut here, &mut there, 0..4);
    exchange(&mut there, &mut here, 0..4);
    for side in [&mut here, &mut there] {
        side.cables[0].pull(0);
        side.link.look();
        assert!(side.rx.peek().unwrap().is_none());
        side.tx.reserve(8).unwrap();
    }
    for side in [&here, &there] {
        side.cables[0].plug_in();
        side.link.look();
    }
    exchange(&mut here, &mut there, 4..8);
    exchange(&mut there, &mut here, 4..8);
}

/// It is larger than what one look reads, and late.
#[test]
fn a_message_that_has_come_over_a_silent_cable_is_read_although_the_peer_has_left() {
    let geometry = Geometry {
        slot_bytes: 60_000,
        slots: 4,
    };
    let [mut here, mut there] = sides(geometry, 2);
    assert!(here.rx.peek().unwrap().is_none());
    std::thread::sleep(Duration::from_millis(600));
    super::send(&mut there.tx, 0, 60_000);
    here.cables[0].pull(0);
    Stream::close(&*there.cables[1]);
    let len = poll("the message", || {
        let arrival = here.rx.peek().unwrap();
        arrival.map(|arrival| arrival.payload.len())
    });
    assert_eq!(len, 60_000);
}

/// The peer has enough of them by that way, but reads this one, too.
#[test]
fn a_spare_that_the_peer_closes_keeps_a_link_whose_other_connections_are_lost() {
    let [mut here, mut there] = sides(GEOMETRY, 1);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let [ours, theirs] = [ours, theirs].map(|socket| cable(3, socket));
    here.link.add(1, ours);
    theirs.close();
    here.cables[0].break_off(Errno::TIMEDOUT);
    here.link.look();
    for _ in 0..3 {
        assert!(here.rx.peek().unwrap().is_none());
    }
    there.cables[0].pull(0);
    there.link.look();
    add_spare([&here, &there], 2);
    super::send(&mut there.tx, 0, 100);
    super::receive(&mut here.rx, 0, 100);
}

#[test]
fn a_connection_that_has_ended_is_not_read_again() {
    let [mut here, mut there] = sides(GEOMETRY, 2);
    here.cables[0].break_off(Errno::CONNRESET);
    assert!(here.rx.peek().unwrap().is_none());
    let reads = here.cables[0].reads();
    assert!(reads > 0);
    there.cables[0].break_off(Errno::CONNRESET);
    there.link.look();
    for message in 0..4 {
        assert!(here.rx.peek().unwrap().is_none());
        super::send(&mut there.tx, message, 100);
        super::receive(&mut here.rx, message, 100);
    }
    assert_eq!(here.cables[0].reads(), reads);
}

/// Waiters look again and again.
#[test]
fn a_look_that_finds_nothing_is_one_system_call() {
    let [mut here, mut there] = sides(GEOMETRY, 1);
    let asks = here.cables[0].asks();
    for _ in 0..5 {
        assert!(here.rx.peek().unwrap().is_none());
    }
    assert_eq!((here.cables[0].reads(), here.cables[0].asks()), (5, asks));
    super::send(&mut there.tx, 0, 100);
    super::receive(&mut here.rx, 0, 100);
}

/// There may be no memory for a moment.
#[test]
fn a_read_that_the_kernel_refuses_is_an_error_and_ends_no_connection() {
    for is_home in [true, false] {
        let [mut here, mut there] = sides(GEOMETRY, 2);
        if !is_home {
            here.cables[0].break_off(Errno::CONNRESET);
            there.cables[0].break_off(Errno::CONNRESET);
            there.link.look();
        }
        here.cables[usize::from(!is_home)].refuse_next(Errno::NOMEM);
        let found = here.rx.peek().map(|arrival| arrival.is_some());
        let error = found.unwrap_err().to_string();
        assert!(error.contains("memory"), "{error}");
        for message in 0..4 {
            super::send(&mut there.tx, message, 100);
            super::receive(&mut here.rx, message, 100);
        }
    }
}

/// A look is made for each message, and again and again while none comes.
#[test]
fn a_spare_that_the_peer_has_closed_is_not_asked_about_at_each_look() {
    const LOOKS: usize = 1000;
    let [mut here, _there] = sides(GEOMETRY, 1);
    here.cables[0].pull(0);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let spare = cable(1, ours);
    here.link.add(1, Arc::clone(&spare) as _);
    drop(theirs);
    assert!(here.rx.peek().unwrap().is_none());
    std::thread::sleep(Duration::from_millis(600));
    let asks = spare.asks();
    for _ in 0..LOOKS {
        assert!(here.rx.peek().unwrap().is_none());
    }
    assert!(spare.asks() - asks < LOOKS, "{} times", spare.asks() - asks);
}
