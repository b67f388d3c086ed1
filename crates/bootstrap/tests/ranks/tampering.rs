//! A relay between a rank and the rendezvous changes, drops, repeats or moves one message.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use spark_ccl_bootstrap::{Error, Options, PeerInfo, Secret, Session, UniqueId};

/// Far longer than any of these worlds may take.
const WATCHDOG: Duration = Duration::from_secs(60);
/// A frame's length and kind. Once both ends are authenticated, a tag follows it, and another tag
/// follows the body.
const HEADER: usize = 5;
const TAG: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Change {
    /// The bit at this place, modulo the frame's length.
    Flip(usize),
    Drop,
    Repeat,
    /// Swapped with the next one.
    Swap,
}

/// Selects a message: its sender, and how many that sender has sent before, after both ends were
/// authenticated.
#[derive(Debug, Clone, Copy)]
struct Victim {
    from_rank: bool,
    number: usize,
}

const HELLO: Victim = Victim {
    from_rank: true,
    number: 0,
};
const REPORT: Victim = Victim {
    from_rank: true,
    number: 1,
};
const TABLE: Victim = Victim {
    from_rank: false,
    number: 0,
};
const VERDICT: Victim = Victim {
    from_rank: false,
    number: 1,
};

/// Starts a relay to the rendezvous. Returns its address.
fn relay(rendezvous: SocketAddr, victim: Victim, change: Change) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for near in listener.incoming() {
            let (near, far) = (near.unwrap(), TcpStream::connect(rendezvous).unwrap());
            let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let up = victim.from_rank.then_some((victim.number, change));
            let down = (!victim.from_rank).then_some((victim.number, change));
            // Each end sends two messages before it is authenticated.
            thread::spawn(move || pass(near, far, up));
            thread::spawn(move || pass(far_too, near_too, down));
        }
    });
    address
}

fn pass(mut from: TcpStream, mut to: TcpStream, change: Option<(usize, Change)>) {
    let _ = pass_frames(&mut from, &mut to, change);
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

fn pass_frames(
    from: &mut TcpStream,
    to: &mut TcpStream,
    change: Option<(usize, Change)>,
) -> io::Result<()> {
    let mut held = None;
    for number in 0_usize.. {
        let is_sealed = number >= 2;
        let mut frame = next_frame(from, is_sealed)?;
        let change = change.filter(|(victim, _)| number == victim + 2);
        match change.map(|(_, change)| change) {
            None => {}
            Some(Change::Flip(at)) => {
                let at = at % (frame.len() * 8);
                frame[at / 8] ^= 1 << (at % 8);
            }
            Some(Change::Drop) => continue,
            Some(Change::Repeat) => to.write_all(&frame)?,
            Some(Change::Swap) => {
                held = Some(frame);
                continue;
            }
        }
        to.write_all(&frame)?;
        if let Some(held) = held.take() {
            to.write_all(&held)?;
        }
    }
    Ok(())
}

fn next_frame(from: &mut TcpStream, is_sealed: bool) -> io::Result<Vec<u8>> {
    let tag = if is_sealed { TAG } else { 0 };
    let mut frame = vec![0; HEADER + tag];
    from.read_exact(&mut frame)?;
    let len = u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]) as usize;
    let mut body = vec![0; len + tag];
    from.read_exact(&mut body)?;
    frame.append(&mut body);
    Ok(frame)
}

/// A world of two whose rank 1 reaches the rendezvous through the relay; rank 0 reaches it
/// directly. Returns the outcome of each, and the tables that they got.
fn world(victim: Victim, change: Change) -> ([Result<(), Error>; 2], Vec<Vec<PeerInfo>>) {
    let secret = Secret::generate().unwrap();
    let options = Options {
        init_timeout: Duration::from_secs(2),
        ..Options::default()
    };
    let id = UniqueId::serve(Some(&secret), &options).unwrap();
    let between = relay(id.addresses()[0], victim, change);
    let ids = [
        id,
        UniqueId::of_rendezvous(Some(&secret), &[between]).unwrap(),
    ];
    let begin = Instant::now();
    let ranks = thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| {
            let (id, options) = (&ids[rank as usize], &options);
            scope.spawn(move || {
                let session = Session::join(id, rank, 2, options)?;
                let table = [0, 1].map(|rank| session.peer(rank).clone()).to_vec();
                let deadline = Instant::now() + Duration::from_secs(2);
                Ok::<_, Error>((session.seal(Ok(()), deadline), table))
            })
        });
        ranks.map(|rank| rank.join().unwrap())
    });
    assert!(begin.elapsed() < WATCHDOG, "{:?}", begin.elapsed());
    let mut tables = Vec::new();
    let outcomes = ranks.map(|rank| {
        let (outcome, table) = rank?;
        tables.push(table);
        outcome
    });
    (outcomes, tables)
}

/// Checks the tables. Returns the texts of the ranks' errors, rank 0's first.
fn told(victim: Victim, change: Change) -> [String; 2] {
    let (outcomes, tables) = world(victim, change);
    assert!(
        tables.windows(2).all(|pair| pair[0] == pair[1]),
        "{victim:?} {change:?}"
    );
    outcomes.map(|outcome| outcome.map_or_else(|error| error.to_string(), |()| String::new()))
}

const CHANGED: &str = "changed on the way";

/// Places all over the frames, within even the shortest one: its tags alone have 256 bits.
fn places() -> impl Iterator<Item = usize> {
    let seed: usize = std::env::var("SEED").map_or(7, |seed| seed.parse().unwrap());
    eprintln!("SEED={seed}");
    (0..6).map(move |place| (seed * 31 + place * 61) % 296)
}

#[test]
fn a_changed_bit_is_found_by_the_end_that_gets_it() {
    for place in places() {
        let change = Change::Flip(place);
        for victim in [TABLE, VERDICT] {
            let [_, rank] = told(victim, change);
            assert!(rank.contains(CHANGED), "{victim:?} {place}: {rank}");
            assert!(rank.contains("the rendezvous at 127.0.0.1"), "{rank}");
        }
        // The rendezvous tells it to every rank.
        for rank in told(REPORT, change) {
            assert!(
                rank.contains("rank 1 (") && rank.contains(CHANGED),
                "{place}: {rank}"
            );
        }
        let [other, rank] = told(HELLO, change);
        assert!(
            other.contains("rank 1 of 2 did not arrive"),
            "{place}: {other}"
        );
        assert!(other.contains("changed on the way"), "{place}: {other}");
        assert!(!rank.is_empty());
    }
}

#[test]
fn messages_that_are_left_out_repeated_or_moved_never_pass() {
    for victim in [TABLE, HELLO, REPORT, VERDICT] {
        for change in [Change::Drop, Change::Swap] {
            let [_, rank] = told(victim, change);
            assert!(!rank.is_empty(), "{victim:?} {change:?}");
        }
    }
    // A repeated hello takes the report's place, and the rendezvous tells all; a repeated table
    // takes the result's place.
    for rank in told(HELLO, Change::Repeat) {
        assert!(rank.contains(CHANGED), "{rank}");
    }
    let [_, rank] = told(TABLE, Change::Repeat);
    assert!(rank.contains(CHANGED), "{rank}");
}

#[test]
fn a_relay_that_changes_nothing_is_not_noticed() {
    let nothing = Victim {
        from_rank: true,
        number: usize::MAX - 2,
    };
    assert_eq!(told(nothing, Change::Drop), ["", ""]);
}
