//! How much memory a link allocates.

use std::os::fd::OwnedFd;

use super::super::layout::{BODY_BYTES, cells};
use super::super::ring::Producer;
use super::super::segment::Ring;
use super::*;
use crate::memory::pretend_available;

const LARGE: Geometry = Geometry {
    slot_bytes: 4 << 20,
    slots: 4,
};

/// A link, and the file of its memory.
fn link(size: impl Into<Size> + Copy) -> (LinkEnd, LinkEnd, OwnedFd) {
    let (here, there) = streams();
    let near = offer(&here, size, soon()).unwrap();
    let passed = recv_fd(&there, soon()).unwrap();
    let again = streams();
    send_fd(&again.0, passed.fd.as_fd(), SEGMENT_ID, passed.len, soon()).unwrap();
    (near, accept(&again.1, size, soon()).unwrap(), passed.fd)
}

fn taken(fd: &OwnedFd) -> usize {
    rustix::fs::fstat(fd).unwrap().st_blocks as usize * 512
}

fn pass(tx: &mut Tx, rx: &mut Rx, len: usize) {
    let payload: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
    tx.reserve(len).unwrap().unwrap().copy_from_slice(&payload);
    tx.commit(len, 7).unwrap();
    assert_eq!(rx.peek().unwrap().unwrap().payload, payload);
    rx.release();
}

#[test]
fn a_link_takes_as_much_as_it_is_used_for() {
    let ((mut tx, _rx), (_tx, mut rx), fd) = link(LARGE);
    let headers = taken(&fd);
    assert!(headers <= 64 << 10, "{headers}");
    for _ in 0..100 {
        pass(&mut tx, &mut rx, INLINE_BYTES);
    }
    assert_eq!(taken(&fd), headers);
    pass(&mut tx, &mut rx, 1000);
    let body = taken(&fd) - headers;
    assert!((1..=8 << 10).contains(&body), "{body}");
    pass(&mut tx, &mut rx, 1 << 20);
    let slot = taken(&fd) - headers - body;
    assert!((1 << 20..=(1 << 20) + (8 << 10)).contains(&slot), "{slot}");
    // More messages reuse the same memory.
    for _ in 0..100 {
        pass(&mut tx, &mut rx, 1000);
    }
    assert!(taken(&fd) - headers - body - slot <= 32 * (8 << 10));
}

/// The bytes of the link's memory that each mapping of it has in the page table.
fn entered(fd: &OwnedFd) -> Vec<usize> {
    let inode = format!(" {} ", rustix::fs::fstat(fd).unwrap().st_ino);
    let is_of_file = |line: &str| line.contains(&inode) && line.contains("/memfd:spark-ccl");
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines();
    let mut entered = Vec::new();
    while lines.any(is_of_file) {
        let rss = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
        let kib = rss.trim().strip_suffix(" kB").unwrap();
        entered.push(kib.parse::<usize>().unwrap() << 10);
    }
    entered
}

#[test]
fn a_link_that_goes_on_finds_its_memory_allocated_and_entered_at_both_ends() {
    let geometry = Geometry {
        slot_bytes: 64 << 10,
        slots: 8,
    };
    let (bodies, slots) = (64 * BODY_BYTES, 8 * (32 << 10));
    for (len, several, all) in [
        (1000, 16, bodies),
        (BODY_BYTES, 16, bodies),
        (BODY_BYTES + 1, 4, slots),
        (32 << 10, 4, slots),
    ] {
        let deadline = soon();
        let ((mut tx, _rx), (_tx, mut rx), fd) = link(geometry);
        let before = entered(&fd);
        assert!(!before.is_empty());
        let headers = taken(&fd);
        for _ in 1..several {
            pass(&mut tx, &mut rx, len);
        }
        assert!(taken(&fd) - headers < all, "{len}");
        pass(&mut tx, &mut rx, len);
        let is_there = || {
            let now = entered(&fd);
            let mut ends = before.iter().zip(&now);
            ends.all(|(before, now)| now - before >= all)
        };
        while !is_there() {
            let (now, late) = (entered(&fd), Instant::now() > deadline);
            assert!(!late, "{len}: {before:?}, then {now:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn memory_for_a_short_piece_is_that_of_the_body() {
    let layout = Layout::new(LARGE.into()).unwrap();
    let (memory, fd) = SharedMemory::create(layout.bytes(), layout.at_once()).unwrap();
    let segment = Arc::new(Segment::create(memory, layout));
    let ring = Ring::new(&segment, Direction::Forth);
    let first = Producer::new(cells(LARGE)).poll(&ring, 1).unwrap().unwrap();
    let headers = taken(&fd);
    ring.provide(first, 8).unwrap();
    assert!(taken(&fd) > headers, "where the piece is written");
}

#[test]
fn few_bodies_bound_what_is_on_its_way_and_carry_everything() {
    let size = Size::among(4000, GEOMETRY);
    let ((mut tx, _rx), (_tx, mut rx), _fd) = link(size);
    let mut sent = 0;
    while let Some(slot) = tx.reserve(200).unwrap() {
        slot.fill(sent);
        tx.commit(200, u64::from(sent)).unwrap();
        sent += 1;
    }
    assert_eq!(usize::from(sent), GEOMETRY.slots);
    for number in 0..sent {
        let arrival = rx.peek().unwrap().unwrap();
        assert_eq!(
            (arrival.tag, arrival.payload),
            (number.into(), &[number; 200][..])
        );
        rx.release();
    }
    for len in (0..300).map(|n| n % 257) {
        pass(&mut tx, &mut rx, len);
    }
}

#[test]
fn no_memory_for_a_message_is_an_error_and_the_link_goes_on() {
    let ((mut tx, _rx), (_tx, mut rx), _fd) = link(LARGE);
    pass(&mut tx, &mut rx, 8);
    pretend_available(Some(1 << 20));
    let error = tx.reserve(4 << 20).unwrap_err();
    assert!(
        matches!(error, LinkError::Memory(MemoryError::Exhausted { .. })),
        "{error}"
    );
    assert!(error.to_string().contains("bytes of memory"), "{error}");
    pass(&mut tx, &mut rx, 8);
    pretend_available(None);
    pass(&mut tx, &mut rx, 4 << 20);
}
