//! Messages that are lent but then cannot be read, because the kernel starts to refuse.

use std::sync::Arc;
use std::thread;

use spark_ccl_testing::{Need, has};

use super::super::{Direction, Doorbell, LEND_LEAST, Layout, Rx, Segment, Tx, layout::BODY_BYTES};
use super::lending::{GEOMETRY, borrow, bytes, lend, lending, lent};
use crate::memory::SharedMemory;
use crate::{Borrowing, LEND_MOST, Lending, LinkError, LinkRx, LinkTx};

/// Makes the kernel refuse, from now on, that this thread reads any process's memory.
fn refuse_reading(error: i32) {
    let statement = |code: u32, jf, k| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    };
    let call = libc::SYS_process_vm_readv as u32;
    let refusal = libc::SECCOMP_RET_ERRNO | error as u32;
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, call),
        statement(libc::BPF_RET | libc::BPF_K, 0, refusal),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: `program` and the filter to which it points live during the calls. They change only
    // what this thread may do.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ) == 0
    };
    assert!(done, "{}", std::io::Error::last_os_error());
}

/// Runs a test with a link that lends, on its own thread.
fn with_link(test: impl FnOnce(Tx, Rx) + Send) {
    thread::scope(|scope| {
        scope.spawn(|| {
            if let Some((tx, rx)) = lending() {
                test(tx, rx);
            }
        });
    });
}

/// Receives the remaining `len` bytes of a lent message, up to `room` bytes at a time.
fn borrow_all(tx: &mut Tx, rx: &mut Rx, tag: u64, len: usize, room: usize) -> Vec<u8> {
    let (mut got, mut room) = (Vec::new(), vec![0; room]);
    while got.len() < len {
        match borrow(rx, &mut room, tag).unwrap() {
            Borrowing::Done(count) => got.extend_from_slice(&room[..count]),
            Borrowing::NotYet => assert!(!tx.flush().unwrap()),
            Borrowing::Unable => panic!("after {} bytes", got.len()),
        }
    }
    assert_eq!(got.len(), len);
    got
}

#[test]
fn what_is_lent_arrives_once_and_in_order_and_then_all_goes_through_slots() {
    for error in [libc::EFAULT, libc::EPERM, libc::ESRCH] {
        for room in [1000, 4096, LEND_MOST] {
            with_link(|mut tx, mut rx| {
                let payloads =
                    [LEND_LEAST, LEND_LEAST + 1, 100_003, LEND_MOST].map(|len| bytes(len, len));
                let mut numbers = Vec::new();
                for (tag, payload) in (0..).zip(&payloads) {
                    numbers.push(lent(&mut tx, payload, tag));
                    tx.reserve(3).unwrap().unwrap().fill(tag as u8);
                    tx.commit(3, tag).unwrap();
                }
                // The first message has been read in part.
                let mut start = [0; 3000];
                let begun = borrow(&mut rx, &mut start, 0).unwrap();
                assert_eq!(begun, Borrowing::Done(3000));
                refuse_reading(error);
                for (tag, payload) in (0..).zip(&payloads) {
                    let mut got = if tag == 0 { start.to_vec() } else { vec![] };
                    let rest = payload.len() - got.len();
                    assert!(!tx.has_returned(numbers[tag as usize]).unwrap());
                    got.extend(borrow_all(&mut tx, &mut rx, tag, rest, room));
                    assert!(got == *payload, "message {tag}");
                    assert!(tx.has_returned(numbers[tag as usize]).unwrap());
                    assert_eq!(rx.peek().unwrap().unwrap().payload, [tag as u8; 3]);
                    rx.release();
                }
                assert!(tx.flush().unwrap());
                assert_eq!(lend(&mut tx, &payloads[0], 9), Lending::Unable);
                let slot = tx.reserve(GEOMETRY.slot_bytes).unwrap().unwrap();
                slot.fill(9);
                tx.commit(GEOMETRY.slot_bytes, 9).unwrap();
                let arrival = rx.peek().unwrap().unwrap();
                assert_eq!(arrival.payload, [9; GEOMETRY.slot_bytes]);
            });
        }
    }
}

#[test]
fn pieces_can_be_peeked_at_when_all_are_there() {
    with_link(|mut tx, mut rx| {
        let payload = bytes(100_000, 1);
        let number = lent(&mut tx, &payload, 5);
        refuse_reading(libc::EFAULT);
        assert_eq!(
            borrow(&mut rx, &mut [0; 9], 6).unwrap(),
            Borrowing::Unable,
            "it has another tag"
        );
        for _ in 0..=payload.len() / BODY_BYTES {
            assert!(rx.peek().unwrap().is_none());
            assert!(!tx.flush().unwrap());
        }
        for _ in 0..2 {
            assert!(rx.peek().unwrap().unwrap().payload == &payload[..]);
        }
        assert!(!tx.has_returned(number).unwrap());
        rx.release();
        assert!(tx.has_returned(number).unwrap());
    });
}

#[test]
fn what_is_withdrawn_is_not_given() {
    for drops in [false, true] {
        with_link(|mut tx, mut rx| {
            let payload = bytes(LEND_LEAST, 3);
            lent(&mut tx, &payload, 1);
            refuse_reading(libc::EFAULT);
            let mut room = vec![0; LEND_LEAST];
            assert_eq!(borrow(&mut rx, &mut room, 1).unwrap(), Borrowing::NotYet);
            assert!(!tx.flush().unwrap());
            // The piece that was given before the withdrawal is still valid.
            assert_eq!(
                borrow(&mut rx, &mut room, 1).unwrap(),
                Borrowing::Done(BODY_BYTES)
            );
            assert!(room[..BODY_BYTES] == payload[..BODY_BYTES]);
            assert_eq!(borrow(&mut rx, &mut room, 1).unwrap(), Borrowing::NotYet);
            let sender = if drops {
                drop(tx);
                None
            } else {
                tx.withdraw();
                assert!(tx.flush().unwrap());
                Some(tx)
            };
            drop(payload);
            assert!(matches!(
                borrow(&mut rx, &mut room, 1),
                Err(LinkError::Closed)
            ));
            assert!(matches!(rx.peek(), Err(LinkError::Closed)));
            drop(sender);
        });
    }
}

#[test]
fn a_receiver_that_is_gone_wants_nothing_more() {
    with_link(|mut tx, mut rx| {
        let payload = bytes(LEND_LEAST, 3);
        let number = lent(&mut tx, &payload, 1);
        refuse_reading(libc::EFAULT);
        let asked = borrow(&mut rx, &mut [0; LEND_LEAST], 1).unwrap();
        assert_eq!(asked, Borrowing::NotYet);
        drop(rx);
        assert!(matches!(tx.flush(), Err(LinkError::Closed)));
        assert!(matches!(tx.has_returned(number), Err(LinkError::Closed)));
    });
}

/// A peer that asks for arbitrary pieces gets only what is lent.
#[test]
#[allow(clippy::cast_ptr_alignment)]
fn what_is_not_lent_is_not_given() {
    if !has(Need::SingleCopy) {
        return;
    }
    let layout = Layout::new(GEOMETRY.into()).unwrap();
    let payload = bytes(LEND_LEAST, 3);
    for (message, byte) in [(1, 0), (4, 0), (3, LEND_LEAST), (3, LEND_MOST - 1), (2, 0)] {
        let (memory, fd) = SharedMemory::create(layout.bytes(), layout.bytes()).unwrap();
        let forger = SharedMemory::from_fd(&fd, layout.bytes(), layout.bytes()).unwrap();
        let segment = Arc::new(Segment::create(memory, layout));
        let [ours, theirs] =
            [Direction::Forth, Direction::Back].map(|direction| Doorbell::new(&segment, direction));
        let mut tx = Tx::new(&segment, Direction::Forth, ours);
        let mut rx = Rx::new(&segment, Direction::Forth, theirs);
        tx.allow_lending();
        tx.reserve(GEOMETRY.slot_bytes).unwrap().unwrap();
        tx.commit(GEOMETRY.slot_bytes, 0).unwrap();
        rx.peek().unwrap().unwrap();
        rx.release();
        assert_eq!(lent(&mut tx, &payload, 1), 2);
        borrow(&mut rx, &mut [0; LEND_LEAST], 1).unwrap();
        assert!(tx.has_returned(2).unwrap());
        assert_eq!(lent(&mut tx, &payload, 1), 3);
        // SAFETY: the words lie within the mapping and are aligned, and no other thread accesses
        // them.
        unsafe {
            let wanted = forger.as_ptr().add(Layout::wanted(Direction::Forth));
            wanted.cast::<u64>().write(message << 20 | byte as u64);
            // As if no loan had returned.
            let released = forger.as_ptr().add(Layout::released(Direction::Forth));
            released.cast::<u64>().write(1);
        }
        let error = tx.flush().unwrap_err();
        assert!(matches!(error, LinkError::Protocol(_)), "{error}");
        assert!(error.to_string().contains("is not lent"), "{error}");
    }
}

/// Has the kernel refuse to read these pages, or allow it again.
fn open(payload: &[u8], is_open: bool) {
    let protection = if is_open {
        libc::PROT_READ | libc::PROT_WRITE
    } else {
        libc::PROT_NONE
    };
    let start = payload.as_ptr().cast_mut().cast();
    // SAFETY: whole pages of a mapping that the test has made, and does not use while they are
    // closed.
    let done = unsafe { libc::mprotect(start, payload.len(), protection) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_payload_of_which_one_thread_cannot_read_its_part_arrives_in_pieces() {
    let Some((mut tx, mut rx)) = lending() else {
        return;
    };
    let values = bytes(LEND_MOST, 1);
    let mut memory = vec![0; LEND_MOST + 2 * 4096];
    let start = memory.as_ptr().align_offset(4096);
    let payload = &mut memory[start..start + LEND_MOST];
    payload.copy_from_slice(&values);
    let payload = &*payload;
    let number = lent(&mut tx, payload, 5);
    let hidden = &payload[LEND_MOST / 2..];
    open(hidden, false);
    // At the same place in its page, so that no processor copies slowly.
    let mut room = vec![0; LEND_MOST + 4096];
    let start = room.as_ptr().align_offset(4096);
    let borrowed = borrow(&mut rx, &mut room[start..][..LEND_MOST], 5);
    open(hidden, true);
    assert_eq!(
        borrowed.unwrap(),
        Borrowing::NotYet,
        "nothing counts as read"
    );
    assert!(borrow_all(&mut tx, &mut rx, 5, LEND_MOST, LEND_MOST) == values);
    assert!(tx.has_returned(number).unwrap());
}
