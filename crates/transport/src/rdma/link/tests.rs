//! Links over queue pairs. The variable RAILS describes their ports (of CI's emulated machine).
//! Without it, they are fake devices, which carry data within this process as badly as RDMA allows.
//! Tests that need cables are skipped on these.

use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use spark_ccl_config::{Env, Rdma, Settings};
use spark_ccl_fork::Unshared;
use spark_ccl_testing::{Need, has, seed};
use spark_ccl_verbs::testing;

mod failover;
mod lending;
mod putting;
mod stopping;

use super::*;
use crate::conformance::{self, Harness};
use crate::{Geometry, LinkError, LinkRx, LinkTx};

const GEOMETRY: Geometry = Geometry {
    slot_bytes: 4096,
    slots: 4,
};

type Side = (Nics, Rdma);
type Connected = Result<(Tx, Rx, Vec<String>), NoLink>;

/// Whether these tests run on ports, and not on fake devices.
fn is_on_ports() -> bool {
    let are_there = std::env::var_os("RAILS").is_some();
    let required = std::env::var("SPARK_CCL_TEST_REQUIRE").unwrap_or_default();
    let must_be = required.split(',').any(|need| need == Need::Rails.word());
    assert!(are_there || !must_be, "RAILS describes no ports");
    are_there
}

/// Whether a rail has the first of the devices.
fn is_first(rail: &str) -> bool {
    ["rxe0", "loop0"].iter().any(|device| rail.contains(device))
}

/// Both ends' ports, `rails` at each end.
fn sides(rails: usize) -> [Side; 2] {
    let names = match std::env::var("RAILS").as_deref() {
        Err(_) => ["loop"; 2].map(|name| (name, "")),
        Ok("one") => ["rxe"; 2].map(|name| (name, "")),
        Ok("wire" | "link-local") => [("rxe", "a"), ("rxe", "b")],
        Ok(other) => panic!("RAILS={other} is no layout"),
    };
    names.map(|(device, end)| {
        let names: Vec<_> = (0..rails)
            .map(|rail| format!("{device}{rail}{end}"))
            .collect();
        side(&format!("={}", names.join(",")))
    })
}

fn side(hcas: &str) -> Side {
    let env = Env::from_pairs([("NCCL_IB_HCA", hcas), ("NCCL_IB_TIMEOUT", "16")]);
    let settings = Settings::from_env(&env).unwrap().rdma;
    let nics = if is_on_ports() {
        Nics::open(&settings)
    } else {
        Nics::of(testing::network(seed()), &settings).unwrap()
    };
    (nics, settings)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

fn patiently() -> Wait<'static> {
    let deadline = soon();
    Wait {
        deadline,
        go_on: &|| true,
    }
}

fn connected(sides: &[Side; 2], geometry: Geometry) -> [Connected; 2] {
    let (here, there) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
    let (here, there) = (Unshared::new(here), Unshared::new(there));
    thread::scope(|scope| {
        let (nics, settings) = &sides[1];
        let second =
            scope.spawn(move || connect(nics, settings, there, geometry, false, patiently()));
        let (nics, settings) = &sides[0];
        let first = connect(nics, settings, here, geometry, true, patiently());
        [first, second.join().unwrap()]
    })
}

struct OverRails([Side; 2]);

impl Harness for OverRails {
    fn connect(&mut self, geometry: Geometry) -> (conformance::LinkEnd, conformance::LinkEnd) {
        let [first, second] = connected(&self.0, geometry);
        let (tx, rx, _) = first.unwrap();
        let (other_tx, other_rx, _) = second.unwrap();
        ((tx, rx).into(), (other_tx, other_rx).into())
    }

    /// On an emulated processor, soft-RoCE makes progress only while this program sleeps.
    fn pass_time(&mut self) {
        thread::sleep(Duration::from_micros(50));
    }
}

#[test]
fn a_link_of_one_rail_conforms() {
    conformance::run(&mut OverRails(sides(1)));
}

#[test]
fn a_link_of_two_rails_conforms() {
    conformance::run(&mut OverRails(sides(2)));
}

#[test]
fn both_rails_are_found_and_used() {
    let sides = sides(2);
    let [first, second] = connected(&sides, GEOMETRY);
    let (mut tx, _rx, names) = first.unwrap();
    let (_tx, mut rx, other_names) = second.unwrap();
    assert_eq!(
        (names.len(), other_names.len()),
        (2, 2),
        "{names:?} {other_names:?}"
    );
    carry(&mut tx, &mut rx, 4);
    for rail in tx.core.lock().rails() {
        assert!(rail.posted >= 3, "{} carried {}", rail.name, rail.posted);
    }
}

#[test]
fn the_most_slots_that_may_be_set_are_used() {
    let sides = sides(1);
    let geometry = Geometry {
        slot_bytes: 64,
        slots: 1024,
    };
    let [first, second] = connected(&sides, geometry);
    let (mut tx, _rx, _) = first.unwrap();
    let (_tx, mut rx, _) = second.unwrap();
    carry(&mut tx, &mut rx, 1024);
}

/// Sends `count` full slots at once, then reads them.
fn carry(tx: &mut Tx, rx: &mut Rx, count: u64) {
    let bytes = tx.core.lock().outgoing().geometry().slot_bytes;
    for number in 0..count {
        let slot = tx.reserve(bytes).unwrap().unwrap();
        slot.fill(number as u8);
        tx.commit(bytes, number).unwrap();
    }
    let until = soon();
    for number in 0..count {
        while rx.peek().unwrap().is_none() {
            assert!(Instant::now() < until);
            thread::yield_now();
        }
        let arrival = rx.peek().unwrap().unwrap();
        assert_eq!(arrival.tag, number);
        assert_eq!(arrival.payload, vec![number as u8; bytes]);
        rx.release();
    }
}

#[test]
fn ranks_without_a_port_agree_that_there_is_no_link() {
    let none = side("=no_such_device");
    assert!(none.0.none_because.is_some());
    let [first, second] = connected(&[side("=no_such_device"), none], GEOMETRY);
    for ended in [first, second] {
        let error = ended.map(|_| ()).unwrap_err();
        assert!(error.is_agreed(), "{error}");
    }
}

#[test]
fn a_peer_that_goes_is_noticed() {
    let sides = sides(1);
    let [first, second] = connected(&sides, GEOMETRY);
    let (mut tx, mut rx, _) = first.unwrap();
    drop(second);
    let until = soon();
    let error = loop {
        assert!(Instant::now() < until, "nothing noticed");
        if let Err(error) = tx
            .reserve(1)
            .map(|_| ())
            .and_then(|()| rx.peek().map(|_| ()))
        {
            break error;
        }
    };
    assert!(matches!(error, LinkError::Closed), "{error}");
}

#[test]
fn a_link_that_has_failed_does_not_keep_others_from_blocking() {
    let sides = sides(1);
    let [first, second] = connected(&sides, GEOMETRY);
    let (mut tx, mut rx, _) = first.unwrap();
    let watched = |rx: &mut Rx| {
        let mut wait = crate::Wait::default();
        rx.arm(&mut wait);
        rx.watch(&mut wait);
        assert!(!wait.is_blind());
        wait.files()
    };
    // The rail's completion channel, and the control stream.
    assert_eq!(watched(&mut rx), 2);
    tx.withdraw();
    drop(second);
    assert_eq!(watched(&mut rx), 0);
}
