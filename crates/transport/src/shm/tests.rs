//! Tests of links over shared memory.

mod growth;
pub(super) mod lending;
mod pieces;

use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use socket2::{Domain, Type};

use super::*;
use crate::conformance::{self, Harness};
use crate::{Geometry, LinkError, LinkRx, LinkTx};

const GEOMETRY: Geometry = Geometry {
    slot_bytes: 256,
    slots: 4,
};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn streams() -> (Socket, Socket) {
    Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap()
}

struct WithinProcess;

impl Harness for WithinProcess {
    fn connect(&mut self, geometry: Geometry) -> (conformance::LinkEnd, conformance::LinkEnd) {
        let (here, there) = pair(geometry).unwrap();
        (here.into(), there.into())
    }

    fn exact_credits(&self) -> bool {
        false
    }
}

struct Passed;

impl Harness for Passed {
    fn connect(&mut self, geometry: Geometry) -> (conformance::LinkEnd, conformance::LinkEnd) {
        let (here, there) = streams();
        let offered = offer(&here, geometry, soon()).unwrap();
        let accepted = accept(&there, geometry, soon()).unwrap();
        (offered.into(), accepted.into())
    }

    fn exact_credits(&self) -> bool {
        false
    }
}

#[test]
fn a_pair_conforms() {
    conformance::run(&mut WithinProcess);
}

#[test]
fn a_passed_link_conforms() {
    conformance::run(&mut Passed);
}

/// `ThreadSanitizer` reports it if the new sender writes what is polled.
#[test]
fn a_receiver_may_poll_before_the_sender_has_its_end() {
    for round in 0..50 {
        let (here, there) = streams();
        let (_tx, mut rx) = offer(&here, GEOMETRY, soon()).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                let (mut tx, _rx) = accept(&there, GEOMETRY, soon()).unwrap();
                tx.reserve(1).unwrap().unwrap()[0] = 7;
                tx.commit(1, round).unwrap();
            });
            let until = soon();
            let arrival = loop {
                assert!(Instant::now() < until, "nothing has come");
                // Once more below, as a borrow that is returned lasts for the whole loop.
                if rx.peek().unwrap().is_some() {
                    break rx.peek().unwrap().unwrap();
                }
            };
            assert_eq!((arrival.tag, arrival.payload), (round, &[7][..]));
        });
    }
}

#[test]
fn different_geometries_do_not_link() {
    // A segment of another size; and one of the same size with another layout.
    let equal_bytes = Geometry {
        slots: 4,
        slot_bytes: 192,
    };
    let swapped = Geometry {
        slot_bytes: 256,
        ..equal_bytes
    };
    for (offered, expected) in [(GEOMETRY, equal_bytes), (equal_bytes, swapped)] {
        let (here, there) = streams();
        let _ends = offer(&here, offered, soon()).unwrap();
        let error = accept(&there, expected, soon()).unwrap_err();
        assert!(matches!(error, MemoryError::Refused(_)), "{error}");
        assert!(
            error
                .to_string()
                .contains("set the same slot sizes on all ranks"),
            "{error}"
        );
    }
}

#[test]
fn other_memory_is_no_link() {
    let (here, there) = streams();
    let (_memory, fd) = SharedMemory::create(4096, 4096).unwrap();
    send_fd(&here, fd.as_fd(), 77, 4096, soon()).unwrap();
    let error = accept(&there, GEOMETRY, soon()).unwrap_err();
    assert!(
        error.to_string().contains("memory of another kind"),
        "{error}"
    );
}

#[test]
fn a_peer_that_never_comes_is_a_timeout() {
    let (_here, there) = streams();
    let deadline = Instant::now() + Duration::from_millis(20);
    assert!(matches!(
        accept(&there, GEOMETRY, deadline),
        Err(MemoryError::TimedOut { .. })
    ));
}

#[test]
fn bodies_are_aligned_for_any_element() {
    let ((mut tx, _), (_, mut rx)) = pair(GEOMETRY).unwrap();
    for _ in 0..GEOMETRY.slots {
        assert_eq!(
            tx.reserve(INLINE_BYTES + 1)
                .unwrap()
                .unwrap()
                .as_ptr()
                .align_offset(64),
            0
        );
        tx.commit(INLINE_BYTES + 1, 0).unwrap();
        assert_eq!(
            rx.peek()
                .unwrap()
                .unwrap()
                .payload
                .as_ptr()
                .align_offset(64),
            0
        );
        rx.release();
    }
    assert_eq!(
        tx.reserve(INLINE_BYTES)
            .unwrap()
            .unwrap()
            .as_ptr()
            .align_offset(8),
        0
    );
}

/// A receiver whose peer has forged the header of the first message.
#[allow(clippy::cast_ptr_alignment)]
fn rx_with_forged(len: u32) -> Rx {
    let layout = Layout::new(GEOMETRY.into()).unwrap();
    let (memory, fd) = SharedMemory::create(layout.bytes(), layout.bytes()).unwrap();
    let forger = SharedMemory::from_fd(&fd, layout.bytes(), layout.bytes()).unwrap();
    let segment = Arc::new(Segment::create(memory, layout));
    let cell = layout.headers(Direction::Forth);
    // SAFETY: the header of the ring's first cell lies within the mapping, its fields are aligned,
    // and nothing reads it yet.
    unsafe {
        let header = forger.as_ptr().add(cell);
        header.add(layout::LEN).cast::<u32>().write(len);
        header.add(layout::FILLED).cast::<u64>().write(1);
    }
    let doorbell = Doorbell::new(&segment, Direction::Back);
    Rx::new(&segment, Direction::Forth, doorbell)
}

#[test]
fn a_length_beyond_the_slot_is_a_protocol_violation() {
    for len in [257, 1 << 20, u32::MAX] {
        let mut rx = rx_with_forged(len);
        for _ in 0..2 {
            let error = rx.peek().unwrap_err();
            assert!(matches!(error, LinkError::Protocol(_)), "{error}");
            assert!(error.to_string().contains(&len.to_string()), "{error}");
        }
        rx.release();
    }
    assert_eq!(
        rx_with_forged(256).peek().unwrap().unwrap().payload.len(),
        256
    );
}

proptest! {
    #[test]
    fn any_header_is_read_within_its_slot(len: u32, fill in 0_u32..300) {
        for len in [len, fill] {
            match rx_with_forged(len).peek() {
                Ok(arrival) => {
                    let arrival = arrival.unwrap();
                    prop_assert!(arrival.payload.len() == len as usize && len <= 256);
                }
                Err(error) => prop_assert!(matches!(error, LinkError::Protocol(_)) && len > 256),
            }
        }
    }

    #[test]
    #[allow(clippy::cast_ptr_alignment)]
    fn a_segment_of_any_identity_is_opened_or_refused(at in 0_usize..4, word: u64) {
        let layout = Layout::new(GEOMETRY.into()).unwrap();
        let (memory, fd) = SharedMemory::create(layout.bytes(), layout.bytes()).unwrap();
        let theirs = SharedMemory::from_fd(&fd, layout.bytes(), layout.bytes()).unwrap();
        let _segment = Segment::create(memory, layout);
        // SAFETY: `at` is less than four; the segment begins with the aligned words of its
        // identity, and nothing else accesses them yet.
        let changed = unsafe {
            let place = theirs.as_ptr().cast::<u64>().add(at);
            place.replace(word) != word
        };
        prop_assert_eq!(Segment::open(theirs, layout).is_err(), changed);
    }
}

/// Polls until `poll` breaks; a watchdog ends it on deadlock.
fn drive(what: &str, mut poll: impl FnMut() -> ControlFlow<()>) {
    let start = Instant::now();
    while poll().is_continue() {
        assert!(start.elapsed() < Duration::from_secs(60), "stuck: {what}");
        thread::yield_now();
    }
}

/// Sends `count` messages of varying lengths.
fn stream_out(tx: &mut Tx, count: usize) {
    for number in 0..count {
        let len = (number * 7) % 257;
        drive("sender", || match tx.reserve(len).unwrap() {
            Some(slot) => {
                slot.fill(number as u8);
                ControlFlow::Break(())
            }
            None => ControlFlow::Continue(()),
        });
        tx.commit(len, number as u64).unwrap();
    }
}

fn stream_in(rx: &mut Rx, count: usize) {
    for number in 0..count {
        let len = (number * 7) % 257;
        drive("receiver", || match rx.peek().unwrap() {
            Some(arrival) => {
                assert_eq!((arrival.tag, arrival.payload.len()), (number as u64, len));
                assert!(arrival.payload.iter().all(|&byte| byte == number as u8));
                ControlFlow::Break(())
            }
            None => ControlFlow::Continue(()),
        });
        rx.release();
    }
}

#[test]
fn threads_stream_both_ways() {
    const COUNT: usize = 50_000;
    let ((mut here_tx, mut here_rx), (mut there_tx, mut there_rx)) = pair(GEOMETRY).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| stream_out(&mut here_tx, COUNT));
        scope.spawn(|| stream_in(&mut there_rx, COUNT));
        scope.spawn(|| stream_out(&mut there_tx, COUNT));
        scope.spawn(|| stream_in(&mut here_rx, COUNT));
    });
}
