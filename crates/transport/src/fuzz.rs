//! Fuzz targets for everything that peers send over sockets or write to shared memory.

pub(crate) mod input;

use std::os::fd::AsFd;

use input::{heard, soon, streams};
use spark_ccl_fork::Unshared;

use crate::memory::{SharedMemory, recv_fd, send_fd};
use crate::rdma::{Gid, Port, Roce, candidates, decode, encode};
use crate::tcp::Header;
use crate::{Arrival, Geometry, LinkRx, LinkTx, shm, tcp};

/// A name, a function that must accept any bytes, and valid inputs to start from.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// All targets of this crate.
pub const TARGETS: &[Target] = &[
    ("tcp-stream", tcp_stream, some_messages),
    ("passed-memory", passed_memory, || {
        vec![b"sparkmem\x01\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0".to_vec()]
    }),
    ("shared-memory", shared_memory, some_places),
    ("rdma-ports", rdma_ports, || {
        vec![encode(&mut ports(1)), encode(&mut ports(2))]
    }),
    (
        "rdma-messages",
        crate::rdma::link::fuzz::messages,
        crate::rdma::link::fuzz::some_messages,
    ),
    (
        "rdma-lent",
        crate::rdma::link::fuzz::lent,
        crate::rdma::link::fuzz::some_lent,
    ),
    (
        "rdma-immediates",
        crate::rdma::link::fuzz::immediates,
        crate::rdma::link::fuzz::some_immediates,
    ),
    (
        "rdma-offers",
        crate::rdma::link::fuzz::offers,
        crate::rdma::link::fuzz::some_offers,
    ),
];

const SMALL: Geometry = Geometry {
    slot_bytes: 256,
    slots: 4,
};

/// Receives until a link ends or has nothing more, but only a limited number of messages.
fn take_all(rx: &mut impl LinkRx) {
    for _ in 0..100 {
        match rx.peek() {
            Ok(Some(Arrival { payload, .. })) => assert!(payload.len() <= SMALL.slot_bytes),
            Ok(None) | Err(_) => break,
        }
        rx.release();
    }
}

fn tcp_stream(bytes: &[u8]) {
    let (ours, _theirs) = heard(bytes);
    let (_tx, mut rx) = tcp::link(vec![Unshared::new(ours)], SMALL).unwrap();
    take_all(&mut rx);
}

fn some_messages() -> Vec<Vec<u8>> {
    let message = |sequence| {
        let header = Header {
            sequence,
            len: 40,
            tag: 7,
        };
        [&header.encode()[..], &[sequence as u8; 40]].concat()
    };
    vec![message(0), [message(0), message(1), message(2)].concat()]
}

fn passed_memory(bytes: &[u8]) {
    let (ours, _theirs) = heard(bytes);
    assert!(shm::accept(&ours, SMALL, soon()).is_err());
}

/// The first two bytes tell at which offset a peer writes the rest into the memory of a link.
fn shared_memory(bytes: &[u8]) {
    let Some((place, rest)) = bytes.split_first_chunk() else {
        return;
    };
    let (ours, theirs) = streams();
    let _peer = shm::offer(&theirs, SMALL, soon()).unwrap();
    let passed = recv_fd(&ours, soon()).unwrap();
    let mapped = passed.len as usize;
    let memory = SharedMemory::from_fd(&passed.fd, mapped, mapped).unwrap();
    let at = usize::from(u16::from_le_bytes(*place)) % memory.len();
    let len = rest.len().min(memory.len() - at);
    // SAFETY: `at + len` is at most the mapping's length, `rest` has at least `len` bytes and is
    // not part of the mapping, and nothing holds a reference into the mapping.
    unsafe { memory.as_ptr().add(at).copy_from(rest.as_ptr(), len) };

    let (ours, theirs) = streams();
    send_fd(&theirs, passed.fd.as_fd(), passed.id, passed.len, soon()).unwrap();
    let Ok((mut tx, mut rx)) = shm::accept(&ours, SMALL, soon()) else {
        return;
    };
    take_all(&mut rx);
    let _ = tx.reserve(16).map(|slot| slot.map(|slot| slot.fill(1)));
    // SAFETY: no device writes over a link through shared memory.
    let _ = unsafe { rx.borrow(&mut [0; 300], 7, None) };
}

fn some_places() -> Vec<Vec<u8>> {
    let at = |place: u16| {
        [
            &place.to_le_bytes()[..],
            &[1, 0, 0, 0, 0, 0, 0, 0].repeat(32),
        ]
        .concat()
    };
    (0..32).map(|line| at(line * 64)).collect()
}

fn rdma_ports(bytes: &[u8]) {
    let Ok(mut peer) = decode(bytes) else {
        return;
    };
    assert_eq!(decode(&encode(&mut peer)), Ok(peer.clone()));
    let own = ports(1);
    let first = candidates(&own, &peer, true).map(|pairs| pairs.len());
    let second = candidates(&peer, &own, false).map(|pairs| pairs.len());
    assert_eq!(first.is_ok(), second.is_ok());
}

fn ports(host: u8) -> Vec<Port> {
    let gid = |index, address: &str, prefix| Gid {
        index,
        address: address.parse().unwrap(),
        roce: Roce::V2,
        prefix,
    };
    let mapped = |rail: u8| format!("::ffff:10.0.{rail}.{host}");
    let port = |rail: u8| Port {
        device: format!("rxe{rail}"),
        number: 1,
        pci: None,
        netdev: Some(format!("r{rail}a")),
        mtu: 4096,
        speed: Some(100_000),
        gids: vec![gid(0, "fe80::1", Some(64)), gid(1, &mapped(rail), Some(24))],
    };
    vec![port(0), port(1)]
}

#[cfg(test)]
#[test]
fn any_bytes_are_read_or_refused() {
    spark_ccl_testing::fuzz(TARGETS);
}
