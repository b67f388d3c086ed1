//! A relay between two ranks that changes, leaves out, repeats or moves a record of a control
//! stream in use.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use socket2::Socket;
use spark_ccl_control::{Dial, Fault, Monitor, Redial, Unreached};
use spark_ccl_fork::Unshared;
use spark_ccl_seal::{Seals, Stream};

use crate::common::{names, until, words};

/// A record is a length, its tag, the content and its tag.
const LENGTH: usize = 4;
const TAG: usize = 16;

#[derive(Debug, Clone, Copy)]
enum Change {
    /// Flips the bit at this place, modulo the record's length.
    Flip(usize),
    Drop,
    Repeat,
    /// Swaps it with the next one.
    Swap,
    /// Sent back to where it comes from, in place of what the other end sends next.
    Reflect,
}

/// Redials reach nobody, so a stream that has ended stays so.
struct Nobody;

impl Dial for Nobody {
    fn dial(&self, _: u32, _: u32, _: Instant) -> Result<Stream, Unreached> {
        Err(Unreached::NoAnswer("there is no route".to_owned()))
    }
}

/// Two ranks that a relay joins. It makes the change to record `number` of rank 0.
fn world(number: usize, change: Change) -> [Arc<Monitor>; 2] {
    let [(mine, near), (far, theirs)] = [tcp_pair(), tcp_pair()];
    let back = near.try_clone().unwrap();
    let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    thread::spawn(move || pass(near, far, back, Some((number, change))));
    let back = far_too.try_clone().unwrap();
    thread::spawn(move || pass(far_too, near_too, back, None));
    let keys = [[1; 32], [2; 32]];
    let seals = [
        Seals::new(&keys[0], &keys[1]),
        Seals::new(&keys[1], &keys[0]),
    ];
    let ends = [mine, theirs].into_iter().zip(seals).zip(0..);
    let monitors = ends.map(|((socket, seals), me)| {
        let stream = Stream {
            socket: Unshared::new(Socket::from(socket)),
            seals: Some(seals),
        };
        let redial = Redial {
            dial: Arc::new(Nobody),
            unheard: Duration::from_secs(60),
            heard: Duration::from_secs(60),
        };
        Monitor::start(me, names(2), vec![(1 - me, stream)], Some(redial)).unwrap()
    });
    monitors.collect::<Vec<_>>().try_into().ok().unwrap()
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

fn pass(
    mut from: TcpStream,
    mut to: TcpStream,
    mut back: TcpStream,
    change: Option<(usize, Change)>,
) {
    let _ = pass_records(&mut from, &mut to, &mut back, change);
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

fn pass_records(
    from: &mut TcpStream,
    to: &mut TcpStream,
    back: &mut TcpStream,
    change: Option<(usize, Change)>,
) -> io::Result<()> {
    let mut held = Vec::new();
    for number in 0_usize.. {
        let mut record = next_record(from)?;
        match change.filter(|(victim, _)| number == *victim) {
            None => {}
            Some((_, Change::Flip(at))) => {
                let at = at % (record.len() * 8);
                record[at / 8] ^= 1 << (at % 8);
            }
            Some((_, Change::Drop)) => continue,
            Some((_, Change::Repeat)) => to.write_all(&record)?,
            Some((_, Change::Swap)) => {
                held = record;
                continue;
            }
            Some((_, Change::Reflect)) => back.write_all(&record)?,
        }
        to.write_all(&record)?;
        to.write_all(&std::mem::take(&mut held))?;
    }
    Ok(())
}

fn next_record(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut record = vec![0; LENGTH + TAG];
    from.read_exact(&mut record)?;
    let length = u32::from_le_bytes([record[0], record[1], record[2], record[3]]) as usize;
    let mut rest = vec![0; length + TAG];
    from.read_exact(&mut rest)?;
    record.append(&mut rest);
    Ok(record)
}

/// Makes the change, and checks that rank `finder` reports it, and names the other rank.
fn is_found_by(finder: usize, number: usize, change: Change) {
    let monitors = world(number, change);
    let watches = [0, 1].map(|rank: usize| monitors[rank].watch(7, vec![0, 1], words));
    let mut round = 0;
    until("a fault", || {
        // Something new is said each time.
        round += 1;
        for watch in &watches {
            watch.announce(round, [1, round], None);
        }
        watches[finder].failed()
    });
    let fault = watches[finder].fault().unwrap();
    let Fault::Lost { .. } = &*fault else {
        panic!("{number} {change:?}: {fault}")
    };
    let text = fault.to_string();
    assert!(text.contains("changed on the way"), "{change:?}: {text}");
    assert!(text.contains(&names(2)[1 - finder]), "{change:?}: {text}");
}

#[test]
fn a_changed_bit_is_found() {
    let seed: usize = std::env::var("SEED").map_or(7, |seed| seed.parse().unwrap());
    eprintln!("SEED={seed}");
    for round in 0..12 {
        is_found_by(1, (seed + round) % 5, Change::Flip(seed * 31 + round * 57));
    }
}

#[test]
fn records_that_are_left_out_repeated_moved_or_sent_back_are_found() {
    for number in [0, 1, 4] {
        for change in [Change::Drop, Change::Repeat, Change::Swap] {
            is_found_by(1, number, change);
        }
        is_found_by(0, number, Change::Reflect);
    }
}
