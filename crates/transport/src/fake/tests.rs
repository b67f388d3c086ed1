use super::*;
use crate::conformance::{self, Harness};
use crate::{LinkError, LinkRx, LinkTx};

const GEOMETRY: Geometry = Geometry {
    slot_bytes: 128,
    slots: 4,
    channels: 2,
};

struct Fake {
    clock: Clock,
    weather: Weather,
}

impl Harness for Fake {
    fn connect(&mut self, geometry: Geometry) -> (conformance::End, conformance::End) {
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

fn send(tx: &mut Tx, channel: usize, tag: u64) {
    tx.reserve(channel, 100).unwrap().unwrap().fill(tag as u8);
    tx.commit(channel, 100, tag).unwrap();
}

fn tag_at(rx: &mut Rx, channel: usize) -> Option<u64> {
    rx.peek(channel).unwrap().map(|arrival| arrival.tag)
}

#[test]
fn messages_take_their_time_and_wait_for_flush() {
    let clock = Clock::new();
    let weather = Weather {
        delay: 3..=3,
        ..Weather::calm()
    };
    let ((mut tx, _rx), (_tx, mut rx)) = pair(&clock, GEOMETRY, &weather);
    send(&mut tx, 0, 1);
    for _ in 0..10 {
        clock.tick();
        assert_eq!(tag_at(&mut rx, 0), None);
    }
    assert!(tx.flush().unwrap());
    for _ in 0..3 {
        assert_eq!(tag_at(&mut rx, 0), None);
        clock.tick();
    }
    assert_eq!(tag_at(&mut rx, 0), Some(1));
}

#[test]
fn a_flush_moves_part_of_a_message() {
    let clock = Clock::new();
    let weather = Weather {
        flush_bytes: 10,
        ..Weather::calm()
    };
    let ((mut tx, _rx), (_tx, mut rx)) = pair(&clock, GEOMETRY, &weather);
    send(&mut tx, 0, 1);
    let mut flushes = 1;
    while !tx.flush().unwrap() {
        assert_eq!(tag_at(&mut rx, 0), None);
        flushes += 1;
    }
    assert!(
        flushes >= 10,
        "{flushes} flushes of at most 10 bytes for a message of 100"
    );
    assert_eq!(tag_at(&mut rx, 0), Some(1));
}

#[test]
fn channels_overtake_each_other() {
    let clock = Clock::new();
    let weather = Weather {
        delay: 0..=10,
        ..Weather::calm()
    };
    let ((mut tx, _rx), (_tx, mut rx)) = pair(&clock, GEOMETRY, &weather);
    let mut overtaken = 0;
    for tag in 0..50 {
        send(&mut tx, 0, tag);
        tx.flush().unwrap();
        send(&mut tx, 1, tag);
        tx.flush().unwrap();
        let mut missing = [true, true];
        while missing != [false, false] {
            let arrived =
                [0, 1].map(|channel| missing[channel] && tag_at(&mut rx, channel).is_some());
            overtaken += usize::from(arrived[1] && missing[0] && !arrived[0]);
            for channel in (0..2).filter(|&channel| arrived[channel]) {
                rx.release(channel);
                missing[channel] = false;
            }
            clock.tick();
        }
        for _ in 0..10 {
            clock.tick();
        }
    }
    assert!((1..50).contains(&overtaken), "{overtaken} of 50 overtaken");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let clock = Clock::new();
        let ((mut tx, _rx), (_tx, mut rx)) = pair(&clock, GEOMETRY, &Weather::rough(seed));
        let mut arrivals = Vec::new();
        for turn in 0..500 {
            let channel = turn % 2;
            if let Some(slot) = tx.reserve(channel, 50).unwrap() {
                slot.fill(0);
                tx.commit(channel, 50, turn as u64).unwrap();
            }
            tx.flush().unwrap();
            if let Some(tag) = tag_at(&mut rx, channel) {
                arrivals.push((clock.now(), tag));
                rx.release(channel);
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
    send(&mut tx, 0, 1);
    tx.flush().unwrap();
    for _ in 0..4 {
        clock.tick();
    }
    send(&mut tx, 0, 2);
    tx.flush().unwrap();
    for _ in 0..10 {
        clock.tick();
    }
    assert_eq!(tag_at(&mut rx, 0), Some(1));
    rx.release(0);
    assert!(matches!(rx.peek(0), Err(LinkError::Closed)));
    assert!(matches!(tx.reserve(0, 1), Err(LinkError::Closed)));
    assert!(matches!(tx.flush(), Err(LinkError::Closed)));
}
