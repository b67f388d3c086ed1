//! Tests of failed rails that return.

use std::io::Write;
use std::sync::Arc;

use spark_ccl_log::Mutex;

use super::super::lending::{BYTES, Lot, lend, linked, try_borrow};
use super::*;
use crate::Borrowing;
use crate::rdma::link::core::Core;
use crate::rdma::link::message::ControlMessage;

/// The cores of both ends, for inspection while other threads use the ends.
type Cores = [Arc<Mutex<Core>>; 2];

fn cores(ends: &[End; 2]) -> Cores {
    ends.each_ref().map(|(tx, _)| Arc::clone(&tx.core))
}

/// Waits until `is_so` holds at both ends, while other threads use them.
#[track_caller]
fn wait_for(cores: &Cores, is_so: impl Fn(Rails) -> bool) {
    let until = Instant::now() + WATCHDOG;
    let rails = || cores.each_ref().map(|core| core.lock().health());
    while !rails().into_iter().all(&is_so) {
        for core in cores {
            assert!(core.lock().failed().is_none(), "{:?}", core.lock().failed());
        }
        assert!(Instant::now() < until, "{:?}", rails());
        thread::sleep(Duration::from_millis(2));
    }
}

/// How many requests each end has posted to the first rail.
fn first_rail(cores: &Cores) -> [u64; 2] {
    let posted = |core: &Core| {
        let mut rails = core.rails();
        let rail = rails.find(|rail| is_first(&rail.name));
        rail.map_or(0, |rail| rail.posted)
    };
    cores.each_ref().map(|core| posted(&core.lock()))
}

#[test]
fn everything_arrives_while_a_rail_fails_and_returns_twice() {
    let Some(sides) = severable(2) else { return };
    let ends = ends(&sides, GEOMETRY);
    let cores = cores(&ends);
    let ended = negotiation(ends, || {
        for round in 1..=2 {
            let cut = Cut::new();
            wait_for(&cores, |rails| rails.dropped == round);
            drop(cut);
            wait_for(&cores, |rails| rails.returned == round);
            let begin = first_rail(&cores);
            let until = soon();
            while first_rail(&cores)
                .iter()
                .zip(begin)
                .any(|(now, then)| *now < then + 20)
            {
                assert!(Instant::now() < until, "it carries nothing");
                thread::sleep(Duration::from_millis(2));
            }
        }
    });
    for (ended, rails) in ended {
        ended.unwrap();
        let expected = Rails {
            in_use: 2,
            dropped: 2,
            returned: 2,
        };
        assert_eq!(rails, expected);
    }
}

/// Polls both ends until `is_so` holds at both.
#[track_caller]
fn look_until(cores: &Cores, is_so: impl Fn(Rails) -> bool) {
    let until = Instant::now() + WATCHDOG;
    let look = |core: &Arc<Mutex<Core>>| {
        let mut core = core.lock();
        core.look_around();
        core.health()
    };
    loop {
        let seen = cores.each_ref().map(look);
        if seen.into_iter().all(&is_so) {
            return;
        }
        let dead = || {
            cores
                .each_ref()
                .map(|core| format!("{:?}", core.lock().dead()))
        };
        assert!(Instant::now() < until, "{seen:?} {:?}", dead());
        thread::sleep(Duration::from_millis(1));
    }
}

/// Makes both ends drop the first rail, and waits until both have confirmed it. They have dropped
/// `before` rails before.
fn drop_at_both(ends: &[End; 2], before: u64) {
    drop_first(&ends[0].0);
    look_until(&cores(ends), |rails| rails.dropped == before + 1);
    ends[0].0.core.lock().look_around();
}

#[test]
fn a_rail_returns_that_was_dropped_at_one_end() {
    let sides = sides(2);
    let mut ends = ends(&sides, ONE_SLOT);
    let cores = cores(&ends);
    for round in 1..=2 {
        let dropping = usize::from(round == 1);
        drop_first(&ends[dropping].0);
        look_until(&cores, |rails| rails.returned == round);
        for number in 0..20 {
            let [(tx, _), (_, rx)] = &mut ends;
            commit(tx, number);
            expect(rx, number);
            rx.release();
        }
        let posted = first_rail(&cores);
        assert!(posted[0] > 5, "{posted:?}");
    }
    look_until(&cores, |rails| rails.in_use == 2 && rails.dropped == 2);
}

#[test]
fn a_rail_that_fails_its_try_is_tried_again() {
    let Some(sides) = severable(2) else { return };
    let mut ends = ends(&sides, ONE_SLOT);
    let cores = cores(&ends);
    drop_at_both(&ends, 0);
    let cut = Cut::new();
    // At both ends: the one that starts attempts, and the one that responds.
    for is_tried in [true, false] {
        let seen = || {
            cores
                .each_ref()
                .map(|core| core.lock().dead()[0].is_tried())
        };
        let until = Instant::now() + WATCHDOG;
        while seen() != [is_tried; 2] {
            assert!(Instant::now() < until, "{:?}", seen());
            look_until(&cores, |rails| rails.in_use == 1);
        }
    }
    drop(cut);
    look_until(&cores, |rails| rails.returned == 1);
    for number in 0..20 {
        let [(tx, _), (_, rx)] = &mut ends;
        commit(tx, number);
        expect(rx, number);
        rx.release();
    }
    assert!(first_rail(&cores)[0] > 5);
}

#[test]
fn a_rail_returns_between_ends_that_look_rarely() {
    let sides = sides(2);
    let ends = ends(&sides, ONE_SLOT);
    let cores = cores(&ends);
    drop_at_both(&ends, 0);
    let is_tried = || {
        cores
            .each_ref()
            .map(|core| core.lock().dead()[0].is_tried())
    };
    let until = soon();
    while is_tried() != [true; 2] {
        assert!(Instant::now() < until, "the rail is not tried");
        look_until(&cores, |rails| rails.dropped == 1);
    }
    // As in a program that calls something every few seconds.
    while cores.iter().any(|core| core.lock().health().returned == 0) {
        for core in &cores {
            let mut core = core.lock();
            assert!(core.health().returned == 1 || core.dead()[0].is_tried());
            core.pass(Duration::from_secs(3));
            core.look_around();
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// An outage that falls into a try would end a link that nobody uses.
#[test]
fn no_rail_is_tried_between_ends_that_nobody_polls() {
    let sides = sides(2);
    let ends = ends(&sides, ONE_SLOT);
    let cores = cores(&ends);
    drop_at_both(&ends, 0);
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        for core in &cores {
            let mut core = core.lock();
            core.poll_if_neglected();
            assert!(!core.dead()[0].is_tried());
        }
        thread::sleep(Duration::from_millis(5));
    }
    look_until(&cores, |rails| rails.returned == 1);
}

#[test]
fn a_try_that_the_last_poll_began_ends_when_nobody_polls() {
    let sides = sides(2);
    let ends = ends(&sides, ONE_SLOT);
    let cores = cores(&ends);
    // A try whose queue pair is made at once is offered at once, too, and goes on.
    for round in 1..10 {
        drop_at_both(&ends, round - 1);
        let first = cores.iter().find(|core| core.lock().dead()[0].is_first());
        let mut core = first.unwrap().lock();
        let until = soon();
        while !core.dead()[0].is_tried() {
            assert!(Instant::now() < until, "no try was begun");
            thread::sleep(Duration::from_millis(5));
            core.look_around();
        }
        let is_secret = core.dead()[0].is_unknown_to_peer();
        if is_secret {
            // The first call only notes that the link was polled.
            core.poll_if_neglected();
            core.poll_if_neglected();
            assert!(!core.dead()[0].is_tried());
        }
        drop(core);
        look_until(&cores, |rails| rails.returned == round);
        if is_secret {
            return;
        }
    }
    panic!("each try was offered at once");
}

#[test]
fn a_peer_that_does_not_answer_holds_up_nothing() {
    let sides = sides(2);
    let mut ends = ends(&sides, ONE_SLOT);
    drop_at_both(&ends, 0);
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        ends[0].0.core.lock().look_around();
        assert!(ends[0].1.peek().unwrap().is_none());
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(ends[0].0.rails().returned, 0);
    commit(&mut ends[0].0, 0);
    expect(&mut ends[1].1, 0);
    ends[1].1.release();
    look_until(&cores(&ends), |rails| rails.returned == 1);
}

#[test]
fn a_peer_that_goes_while_a_rail_is_tried_is_noticed() {
    let sides = sides(2);
    for looks in [0, 1, 3, 6] {
        let ends = ends(&sides, ONE_SLOT);
        drop_at_both(&ends, 0);
        let [(tx, mut rx), other] = ends;
        let is_tried = || {
            other
                .0
                .core
                .lock()
                .dead()
                .first()
                .is_none_or(Dead::is_tried)
        };
        let until = soon();
        while looks > 0 && !is_tried() {
            assert!(Instant::now() < until, "the rail is not tried");
            tx.core.lock().look_around();
            other.0.core.lock().look_around();
        }
        for _ in 0..looks {
            tx.core.lock().look_around();
            other.0.core.lock().look_around();
            thread::sleep(Duration::from_millis(1));
        }
        let left = thread::spawn(move || drop(other));
        let error = loop {
            assert!(Instant::now() < until, "nothing noticed");
            if let Err(error) = rx.peek() {
                break error;
            }
        };
        assert!(matches!(error, LinkError::Closed), "{looks}: {error}");
        left.join().unwrap();
    }
}

#[test]
fn a_peer_that_goes_before_it_agrees_is_noticed() {
    let Some(sides) = cabled(2) else { return };
    let ends = ends(&sides, ONE_SLOT);
    drop_at_both(&ends, 0);
    // Both the first end's greeting and its device's acknowledgement of the other greeting are
    // slow.
    let late = Impaired::new(&["r0a"], ["delay", "500ms"]);
    let [(tx, mut rx), other] = ends;
    let until = soon();
    while !tx.core.lock().dead()[0].is_undecided() {
        assert!(Instant::now() < until, "the rail is not tried");
        tx.core.lock().look_around();
        other.0.core.lock().look_around();
        thread::sleep(Duration::from_millis(1));
    }
    assert!(!other.0.core.lock().dead()[0].is_undecided());
    let left = thread::spawn(move || drop(other));
    let error = loop {
        assert!(Instant::now() < until, "nothing noticed");
        if let Err(error) = rx.peek() {
            break error;
        }
    };
    assert!(matches!(error, LinkError::Closed), "{error}");
    left.join().unwrap();
    drop(late);
}

/// Makes the first end report that the rail carries, but not the other end.
#[track_caller]
fn agree_at_first(ends: &[End; 2]) {
    let [first, other] = cores(ends);
    let until = soon();
    loop {
        other.lock().look_around();
        // The first end processes what the other one has done before the other polls again.
        for _ in 0..50 {
            let mut first = first.lock();
            first.look_around();
            if first.dead()[0].is_undecided() {
                return;
            }
            drop(first);
            thread::sleep(Duration::from_millis(1));
        }
        assert!(Instant::now() < until, "the rail is not tried");
    }
}

#[test]
fn what_is_withdrawn_while_a_rail_returns_is_not_read_by_it() {
    let sides = sides(2);
    let mut ends = linked(&sides);
    let mut from = Lot::filled(sides[0].0.registry(), BYTES);
    let lent = from.memory.clone();
    let mut to = Lot::new(sides[1].0.registry(), BYTES);
    drop_at_both(&ends, 0);
    agree_at_first(&ends);
    lend(&mut ends[0].0, &from.memory, 9);
    // Time for the verdict to arrive.
    thread::sleep(Duration::from_millis(200));
    ends[0].0.withdraw();
    from.memory.fill(0xee);
    assert!(!ends[0].0.core.lock().dead()[0].is_tried());
    let until = Instant::now() + WATCHDOG;
    while ends[1].0.rails().returned == 0 {
        assert!(Instant::now() < until, "the rail does not return");
        ends[1].0.core.lock().look_around();
    }
    let [(tx, _), (_, other_rx)] = &mut ends;
    loop {
        assert!(Instant::now() < until, "nothing is said");
        tx.core.lock().look_around();
        match try_borrow(other_rx, &mut to.memory, 9) {
            Ok(Borrowing::Done(_)) => assert!(to.memory == lent),
            Ok(_) => thread::yield_now(),
            Err(_) => break,
        }
    }
    assert_eq!((tx.rails().in_use, tx.rails().returned), (0, 0));
    let core = tx.core.lock();
    assert!(core.dead().iter().all(|dead| !dead.is_tried()));
}

#[test]
fn a_rail_does_not_return_when_nothing_can_be_agreed() {
    let sides = sides(2);
    let mut ends = ends(&sides, ONE_SLOT);
    drop_at_both(&ends, 0);
    let stream = Arc::clone(&ends[0].0.core.lock().control().stream);
    stream.shutdown(std::net::Shutdown::Both).unwrap();
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        for (tx, _) in &ends {
            tx.core.lock().look_around();
        }
        thread::sleep(Duration::from_millis(5));
    }
    commit(&mut ends[0].0, 0);
    expect(&mut ends[1].1, 0);
    for (tx, _) in &ends {
        assert_eq!((tx.rails().in_use, tx.rails().returned), (1, 0));
    }
}

#[test]
fn what_is_said_out_of_turn_ends_the_link() {
    let sides = sides(2);
    for said in [
        ControlMessage::TrialResult {
            rail: 0,
            works: true,
        },
        ControlMessage::Offer {
            rail: 0,
            end: offer::End {
                qp_num: 1,
                psn: 1,
                rkey: 1,
                reads: 1,
            },
        },
    ] {
        let [(mut tx, _rx), (other_tx, _other_rx)] = ends(&sides, ONE_SLOT);
        let stream = Arc::clone(&other_tx.core.lock().control().stream);
        (&**stream).write_all(&said.encode()).unwrap();
        tx.core.lock().look_around();
        let error = tx.reserve(1).map(|_| ()).unwrap_err();
        assert!(matches!(error, LinkError::Protocol(_)), "{said:?}: {error}");
    }
}
