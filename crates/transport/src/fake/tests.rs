//! Tests of the fake link.

use super::*;
use crate::conformance::{self, Harness};
use crate::{LinkError, LinkRx, LinkTx};

const GEOMETRY: Geometry = Geometry {
    slot_bytes: 128,
    slots: 4,
};

struct Fake {
    clock: Clock,
    weather: Weather,
}

impl Harness for Fake {
    fn connect(&mut self, geometry: Geometry) -> (conformance::LinkEnd, conformance::LinkEnd) {
        self.weather.seed += 1;
        let (here, there) = pair(&self.clock, geometry, &self.weather);
        (here.into(), there.into())
    }

    fn pass_time(&mut self) {
        self.clock.tick();
    }
}

#[test]
fn conforms_in_calm_weather() {
    conformance::run(&mut Fake {
        clock: Clock::new(),
        weather: Weather::calm(),
    });
}

#[test]
fn conforms_in_rough_weather() {
    for seed in 0..5 {
        conformance::run(&mut Fake {
            clock: Clock::new(),
            weather: Weather::rough(seed << 32),
        });
    }
}

fn send(tx: &mut Tx, tag: u64) {
    tx.reserve(100).unwrap().unwrap().fill(tag as u8);
    tx.commit(100, tag).unwrap();
}

fn tag_at(rx: &mut Rx) -> Option<u64> {
    rx.peek().unwrap().map(|arrival| arrival.tag)
}

#[test]
fn messages_take_their_time_and_wait_for_flush() {
    let clock = Clock::new();
    let weather = Weather {
        delay: 3..=3,
        ..Weather::calm()
    };
    let ((mut tx, _rx), (_tx, mut rx)) = pair(&clock, GEOMETRY, &weather);
    send(&mut tx, 1);
    for _ in 0..10 {
        clock.tick();
        assert_eq!(tag_at(&mut rx), None);
    }
    assert!(tx.flush().unwrap());
    for _ in 0..3 {
        assert_eq!(tag_at(&mut rx), None);
        clock.tick();
    }
    assert_eq!(tag_at(&mut rx), Some(1));
}

#[test]
fn a_flush_moves_part_of_a_message() {
    let clock = Clock::new();
    let weather = Weather {
        flush_bytes: 10,
        ..Weather::calm()
    };
    let ((mut tx, _rx), (_tx, mut rx)) = pair(&clock, GEOMETRY, &weather);
    send(&mut tx, 1);
    let mut flushes = 1;
    while !tx.flush().unwrap() {
        assert_eq!(tag_at(&mut rx), None);
        flushes += 1;
    }
    assert!(
        flushes >= 10,
        "{flushes} flushes of at most 10 bytes for a message of 100"
    );
    assert_eq!(tag_at(&mut rx), Some(1));
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let clock = Clock::new();
        let ((mut tx, _rx), (_tx, mut rx)) = pair(&clock, GEOMETRY, &Weather::rough(seed));
        let mut arrivals = Vec::new();
        for turn in 0..500 {
            if let Some(slot) = tx.reserve(50).unwrap() {
                slot.fill(0);
                tx.commit(50, turn as u64).unwrap();
            }
            tx.flush().unwrap();
            if let Some(tag) = tag_at(&mut rx) {
                arrivals.push((clock.now(), tag));
                rx.release();
            }
            clock.tick();
        }
        arrivals
    };
    assert!(run(7).len() > 50);
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn a_break_loses_what_is_on_its_way() {
    let clock = Clock::new();
    let weather = Weather {
        delay: 5..=5,
        breaks_at: Some(8),
        ..Weather::calm()
    };
    let ((mut tx, _rx), (_tx, mut rx)) = pair(&clock, GEOMETRY, &weather);
    send(&mut tx, 1);
    tx.flush().unwrap();
    for _ in 0..4 {
        clock.tick();
    }
    send(&mut tx, 2);
    tx.flush().unwrap();
    for _ in 0..10 {
        clock.tick();
    }
    assert_eq!(tag_at(&mut rx), Some(1));
    rx.release();
    assert!(matches!(rx.peek(), Err(LinkError::Closed)));
    assert!(matches!(tx.reserve(1), Err(LinkError::Closed)));
    assert!(matches!(tx.flush(), Err(LinkError::Closed)));
}
