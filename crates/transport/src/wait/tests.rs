//! Tests of two ends that block for each other: neither blocks longer than the other takes to act.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use spark_ccl_fork::Unshared;

use super::{Bell, Wait, register_for_barriers};
use crate::memory::{MemoryError, send_fd};
use crate::{Geometry, LinkError, LinkRx, LinkTx, shm, tcp};

const GEOMETRY: Geometry = Geometry {
    slot_bytes: 64 << 10,
    slots: 2,
};
/// A block that lasts this long has missed its wake-up.
const FOREVER: Duration = Duration::from_secs(60);
const MOMENT: Duration = Duration::from_millis(20);

/// One end, and the bell that wakes it.
struct End {
    tx: Box<dyn LinkTx>,
    rx: Box<dyn LinkRx>,
    bell: Bell,
}

impl End {
    /// Repeats `look` until it returns something, and blocks in between.
    fn wait<R>(&mut self, mut look: impl FnMut(&mut Self) -> Option<R>) -> R {
        loop {
            let mut wait = Wait::default();
            self.rx.arm(&mut wait);
            wait.settle();
            assert!(!wait.is_blind());
            let found = look(self);
            if found.is_none() {
                self.rx.watch(&mut wait);
                self.tx.watch(&mut wait);
                let since = Instant::now();
                wait.block(&self.bell, FOREVER);
                assert!(since.elapsed() < FOREVER, "nobody woke it up");
            }
            self.rx.disarm();
            if let Some(found) = found {
                return found;
            }
        }
    }

    fn send(&mut self, bytes: usize, tag: u64) {
        self.wait(|end| {
            end.tx.flush().unwrap();
            end.tx.reserve(bytes).unwrap()?.fill(tag as u8);
            Some(())
        });
        self.tx.commit(bytes, tag).unwrap();
    }

    fn flush(&mut self) {
        self.wait(|end| end.tx.flush().unwrap().then_some(()));
    }

    fn receive(&mut self, bytes: usize, tag: u64) {
        self.wait(|end| {
            let arrival = end.rx.peek().unwrap()?;
            assert_eq!((arrival.tag, arrival.payload.len()), (tag, bytes));
            assert!(arrival.payload.iter().all(|&byte| byte == tag as u8));
            Some(())
        });
        self.rx.release();
    }
}

fn soon() -> Instant {
    Instant::now() + FOREVER
}

fn streams() -> (Socket, Socket) {
    Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap()
}

fn over_memory() -> (End, End) {
    let (here, there) = streams();
    let ends = (
        shm::offer(&here, GEOMETRY, soon()).unwrap(),
        shm::accept(&there, GEOMETRY, soon()).unwrap(),
    );
    let bells = (Bell::new().unwrap(), Bell::new().unwrap());
    shm::send_bell(&here, &bells.0, soon()).unwrap();
    shm::send_bell(&there, &bells.1, soon()).unwrap();
    for (stream, end) in [(&here, &ends.0), (&there, &ends.1)] {
        let bell = shm::take_bell(stream, soon()).unwrap();
        shm::Chime::of(end).set(&bell);
    }
    let end = |(tx, rx): shm::LinkEnd, bell| End {
        tx: Box::new(tx),
        rx: Box::new(rx),
        bell,
    };
    (end(ends.0, bells.0), end(ends.1, bells.1))
}

fn over_sockets() -> (End, End) {
    let (here, there) = streams();
    let end = |socket| {
        let (tx, rx) = tcp::link(vec![Unshared::new(socket)], GEOMETRY).unwrap();
        End {
            tx: Box::new(tx),
            rx: Box::new(rx),
            bell: Bell::new().unwrap(),
        }
    };
    (end(here), end(there))
}

/// Links whose ends can block on this machine: the kernel may refuse the barrier.
fn links() -> Vec<(End, End)> {
    let mut links = vec![over_sockets()];
    if register_for_barriers() {
        links.push(over_memory());
    }
    links
}

#[test]
fn a_message_wakes_its_receiver() {
    for (mut here, mut there) in links() {
        thread::scope(|scope| {
            scope.spawn(|| {
                for tag in 0..5 {
                    thread::sleep(MOMENT);
                    here.send(8, tag);
                }
            });
            (0..5).for_each(|tag| there.receive(8, tag));
        });
    }
}

#[test]
fn ends_that_block_at_every_turn_lose_no_ring() {
    const TURNS: u64 = 20_000;
    for (mut here, mut there) in links() {
        thread::scope(|scope| {
            scope.spawn(|| {
                for tag in 0..TURNS {
                    here.send(8, tag);
                    here.receive(8, tag);
                }
            });
            for tag in 0..TURNS {
                there.receive(8, tag);
                there.send(8, tag);
            }
        });
    }
}

#[test]
fn a_slot_that_is_read_wakes_a_sender_without_room() {
    for (mut here, mut there) in links() {
        thread::scope(|scope| {
            scope.spawn(|| {
                for tag in 0..40 {
                    here.send(GEOMETRY.slot_bytes, tag);
                }
                here.flush();
            });
            for tag in 0..40 {
                if tag % 8 == 0 {
                    thread::sleep(MOMENT);
                }
                there.receive(GEOMETRY.slot_bytes, tag);
            }
        });
    }
}

#[test]
fn an_end_that_goes_wakes_the_other() {
    for (here, mut there) in links() {
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(MOMENT);
                drop(here);
            });
            let error = there.wait(|end| end.rx.peek().err());
            assert!(matches!(error, LinkError::Closed), "{error}");
        });
    }
}

/// It stays open: a rank whose call has failed still has its links.
#[test]
fn a_link_that_is_withdrawn_wakes_the_other_end() {
    if !register_for_barriers() {
        return;
    }
    let (mut here, mut there) = over_memory();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(MOMENT);
            here.tx.withdraw();
        });
        let error = there.wait(|end| end.rx.peek().err());
        assert!(matches!(error, LinkError::Closed), "{error}");
    });
}

/// Otherwise every wait for another link would end at once while the message is there.
#[test]
fn a_message_for_which_nobody_looks_does_not_end_a_wait() {
    let (mut here, mut there) = over_sockets();
    here.send(8, 0);
    let watched = |end: &mut End| {
        let mut wait = Wait::default();
        end.rx.arm(&mut wait);
        let found = end.rx.peek().unwrap().is_some();
        end.rx.watch(&mut wait);
        (found, wait.files())
    };
    let mut wait = Wait::default();
    there.rx.arm(&mut wait);
    there.rx.watch(&mut wait);
    assert_eq!(wait.files(), 0);
    there.receive(8, 0);
    assert_eq!(watched(&mut there), (false, 1));
}

#[test]
fn a_bell_that_rings_before_the_block_ends_it() {
    let bell = Bell::new().unwrap();
    bell.ring();
    bell.ring();
    Wait::default().block(&bell, FOREVER);
    // The wake-up has silenced the bell.
    let since = Instant::now();
    Wait::default().block(&bell, MOMENT);
    assert!(since.elapsed() >= MOMENT);
}

#[test]
fn an_end_without_the_peers_bell_waits_blindly() {
    let ((_tx, mut rx), _there) = shm::pair(GEOMETRY).unwrap();
    let mut wait = Wait::default();
    rx.arm(&mut wait);
    wait.settle();
    assert!(wait.is_blind());
}

#[test]
fn what_could_block_a_sender_is_no_bell() {
    let (blocking, mut other) = UnixStream::pair().unwrap();
    other.write_all(b"x").unwrap();
    let (here, there) = streams();
    let _own = shm::offer(&here, GEOMETRY, soon()).unwrap();
    let _end = shm::accept(&there, GEOMETRY, soon()).unwrap();
    let bell = u64::from_le_bytes(*b"shm bell");
    for (id, fd) in [(bell, blocking.as_fd()), (7, Bell::new().unwrap().as_fd())] {
        send_fd(&there, fd, id, 0, soon()).unwrap();
        let error = shm::take_bell(&here, soon()).unwrap_err();
        assert!(matches!(error, MemoryError::Refused(_)), "{error}");
        assert!(error.to_string().contains("expected a bell"), "{error}");
    }
}
