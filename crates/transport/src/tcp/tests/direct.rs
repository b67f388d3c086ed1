//! Messages that are sent from, and received into, the caller's memory.

use super::super::SLOTLESS_BYTES;
use super::*;
use crate::Sending;

const LARGE: Geometry = Geometry {
    slot_bytes: 64 << 10,
    slots: 4,
};

/// Receives without a slot, if the link can. Returns whether it could.
pub(super) fn receive(rx: &mut Rx, message: usize, len: usize) -> bool {
    let mut bytes = vec![0; len];
    let direct = poll("a message", || {
        let moved = rx.receive_into(&mut bytes, message as u64).unwrap();
        (moved != Direct::NotYet).then_some(moved)
    });
    if direct == Direct::Unable {
        super::receive(rx, message, len);
        return false;
    }
    assert!(bytes == payload(message, len), "bytes of message {message}");
    true
}

fn send(tx: &mut Tx, message: usize, len: usize) {
    let bytes = payload(message, len);
    let direct = poll("room", || {
        tx.flush().unwrap();
        let moved = tx.send_from(&bytes, message as u64).unwrap();
        (moved != Sending::NotYet).then_some(moved)
    });
    if direct == Sending::Unable {
        super::send(tx, message, len);
    }
}

#[test]
fn messages_with_and_without_slots_keep_their_order() {
    let geometry = Geometry {
        slot_bytes: 64 << 10,
        slots: 3,
    };
    let lens: Vec<_> = (0..400).map(|n| n * 7919 % ((64 << 10) + 1)).collect();
    for (sockets, buffer) in [(1, 1), (3, 1), (1, 1 << 20), (2, 1 << 20)] {
        let ((mut tx, _rx), (_tx, mut rx)) = ends(geometry, sockets, || {
            let (here, there) = tcp_pair(v4());
            let here = Socket::from(here);
            here.set_send_buffer_size(buffer).unwrap();
            (here, there.into())
        });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (message, &len) in lens.iter().enumerate() {
                    if message % 3 == 0 {
                        super::send(&mut tx, message, len);
                    } else {
                        send(&mut tx, message, len);
                    }
                }
                poll("flush", || tx.flush().unwrap().then_some(()));
            });
            for (message, &len) in lens.iter().enumerate() {
                if message % 5 == 0 {
                    super::receive(&mut rx, message, len);
                } else {
                    let direct = receive(&mut rx, message, len);
                    assert_eq!(direct, len >= SLOTLESS_BYTES, "{len} bytes");
                }
            }
        });
    }
}

#[test]
fn what_is_sent_from_elsewhere_may_change_at_once() {
    let (mut peer, mut tx, _rx) = raw(LARGE);
    let mut expected = Vec::new();
    // Until both the kernel's buffer and the slots are full.
    let mut message = 0;
    loop {
        let len = LARGE.slot_bytes - message % 20;
        let mut bytes = payload(message, len);
        match tx.send_from(&bytes, message as u64).unwrap() {
            Sending::Done(_) => expected.extend(frame(message, len)),
            Sending::NotYet => break,
            Sending::Unable => panic!("a large message"),
        }
        bytes.fill(0xee);
        message += 1;
    }
    let mut seen = vec![0; expected.len()];
    std::thread::scope(|scope| {
        scope.spawn(|| peer.read_exact(&mut seen).unwrap());
        poll("flush", || tx.flush().unwrap().then_some(()));
    });
    assert!(seen == expected);
}

/// They go in one system call, as far as the kernel takes them, and may change at once.
#[test]
fn messages_of_a_slot_each_are_sent_at_once() {
    for (sockets, buffer) in [(1, 1), (1, 1 << 20), (2, 1 << 20)] {
        let ((mut tx, _rx), (_tx, mut rx)) = ends(LARGE, sockets, || {
            let (here, there) = tcp_pair(v4());
            let here = Socket::from(here);
            here.set_send_buffer_size(buffer).unwrap();
            (here, there.into())
        });
        let lens: Vec<_> = (0..20)
            .map(|n| if n % 20 == 19 { 5 } else { LARGE.slot_bytes })
            .collect();
        // All have one tag, so one number.
        let all: Vec<_> = lens.iter().flat_map(|&len| payload(7, len)).collect();
        let mut most = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut done = 0;
                while all.len() - done >= SLOTLESS_BYTES {
                    let mut rest = all[done..].to_vec();
                    let sent = poll("room", || {
                        tx.flush().unwrap();
                        match tx.send_from(&rest, 7).unwrap() {
                            Sending::Done(bytes) => Some(bytes),
                            Sending::NotYet => None,
                            Sending::Unable => panic!("large messages"),
                        }
                    });
                    rest.fill(0xee);
                    most = most.max(sent);
                    done += sent;
                }
                if done < all.len() {
                    super::send(&mut tx, 7, all.len() - done);
                }
                poll("flush", || tx.flush().unwrap().then_some(()));
            });
            for &len in &lens {
                receive(&mut rx, 7, len);
            }
        });
        if (sockets, buffer) == (1, 1 << 20) {
            assert!(most > LARGE.slot_bytes, "{most} bytes at once");
        }
    }
}

#[test]
fn another_message_than_was_meant_stays() {
    let (mut peer, _tx, mut rx) = raw(LARGE);
    let len = LARGE.slot_bytes;
    peer.write_all(&frame(0, len)).unwrap();
    let mut bytes = vec![0; len];
    for (wrong_len, wrong_tag) in [(len - 1, 0), (len, 1)] {
        let bytes = &mut bytes[..wrong_len];
        let moved = poll("an answer", || {
            let moved = rx.receive_into(bytes, wrong_tag).unwrap();
            (moved != Direct::NotYet).then_some(moved)
        });
        assert_eq!(moved, Direct::Unable);
    }
    assert!(bytes.iter().all(|&byte| byte == 0));
    super::receive(&mut rx, 0, len);
}

#[test]
fn a_message_that_is_received_elsewhere_is_received_there_to_the_end() {
    let (mut peer, _tx, mut rx) = raw(LARGE);
    let len = LARGE.slot_bytes;
    let whole = frame(0, len);
    let (first, rest) = whole.split_at(len / 2);
    peer.write_all(first).unwrap();
    let mut bytes = vec![0; len];
    poll("its begin", || {
        let moved = rx.receive_into(&mut bytes, 0).unwrap();
        assert_eq!(moved, Direct::NotYet);
        (bytes[100..200] == payload(0, len)[100..200]).then_some(())
    });
    assert!(matches!(rx.peek(), Err(LinkError::Misuse(_))));
    let other = rx.receive_into(&mut vec![0; len - 1], 0);
    assert!(matches!(other, Err(LinkError::Misuse(_))));
    peer.write_all(rest).unwrap();
    peer.write_all(&frame(1, 10)).unwrap();
    poll("its end", || {
        (rx.receive_into(&mut bytes, 0).unwrap() == Direct::Done).then_some(())
    });
    assert!(bytes == payload(0, len));
    super::receive(&mut rx, 1, 10);
    peer.write_all(&frame(2, len)[..len]).unwrap();
    drop(peer);
    let error = poll("the end", || rx.receive_into(&mut bytes, 2).err());
    assert!(matches!(error, LinkError::Closed), "{error}");
}
