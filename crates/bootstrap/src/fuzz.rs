//! Fuzz targets: the parsers of input from strangers and other ranks.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use spark_ccl_seal::{Opener, Sealer};

use crate::frame::{Frame, FrameReader};
use crate::handshake::{Intent, Open, PROTOCOL};
use crate::hello::{Endpoint, Hello, PeerInfo, Table};
use crate::init_result::{InitFailure, InitFailureKind, InitReport};
use crate::wire::{FrameKind, frame};
use crate::{HostId, Secret, StreamId, StreamKind, UniqueId, hello_check, sealed_frame};

/// A target's name, the function that must accept any bytes, and valid inputs to start from.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// All targets of this crate.
pub const TARGETS: &[Target] = &[
    ("bootstrap-frames", frames, some_frames),
    ("bootstrap-sealed-frames", sealed_frames, some_sealed_frames),
    ("bootstrap-open", open, || vec![an_open().encode()]),
    ("bootstrap-hello", hello, || vec![a_hello(1).encode()]),
    ("bootstrap-table", table, || vec![a_table().encode()]),
    ("bootstrap-report", report, || vec![a_report().encode()]),
    ("bootstrap-verdict", init_result, || {
        vec![an_init_failure().encode()]
    }),
    ("unique-id", unique_id, || vec![an_id().as_bytes().to_vec()]),
    ("unique-id-text", unique_id_text, || {
        vec![an_id().to_string().into()]
    }),
];

const LIMIT: usize = 5000;

fn frames(bytes: &[u8]) {
    for (_, body) in read(FrameReader::default(), bytes) {
        assert!(body.len() <= LIMIT);
    }
}

/// Reads only what was sealed, in order.
fn sealed_frames(bytes: &[u8]) {
    let read = read(FrameReader::sealed(Opener::new(&[7; 32])), bytes);
    assert!(sent().starts_with(&read), "{read:?}");
}

fn read(mut reader: FrameReader, bytes: &[u8]) -> Vec<Frame> {
    let (mut here, there) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
    there.set_nonblocking(true).unwrap();
    here.write_all(&bytes[..bytes.len().min(100_000)]).unwrap();
    drop(here);
    std::iter::from_fn(|| reader.poll(&there, LIMIT).ok()?).collect()
}

fn open(bytes: &[u8]) {
    if let Ok(open) = Open::decode(bytes) {
        assert_eq!(open.encode(), bytes);
    }
}

/// The rendezvous must also handle any hello quickly, whatever size and rank it claims.
fn hello(bytes: &[u8]) {
    let Ok(hello) = Hello::decode(bytes) else {
        return;
    };
    assert_eq!(hello.encode(), bytes);
    let other = a_hello(0);
    let both = [&hello, &other];
    if hello_check::disagreement(&both).is_none() {
        assert!(!hello_check::missing(&both, hello.time_left, "").is_empty());
    }
}

fn table(bytes: &[u8]) {
    for size in [2, 1 << 20] {
        if let Ok(table) = Table::decode(bytes, size) {
            assert_eq!(table.encode(), bytes);
        }
    }
}

fn report(bytes: &[u8]) {
    if let Ok(report) = InitReport::decode(bytes) {
        let again = InitReport::decode(&report.encode());
        assert_eq!(
            again.as_ref().map(|again| again.time_left),
            Ok(report.time_left)
        );
    }
}

fn init_result(bytes: &[u8]) {
    if let Ok(init_result) = InitFailure::decode(bytes) {
        assert_eq!(init_result.encode(), bytes);
    }
}

fn unique_id(bytes: &[u8]) {
    if let Some(bytes) = bytes.first_chunk() {
        let id = UniqueId::from_bytes(bytes);
        assert!(id.is_err() || !id.unwrap().addresses().is_empty());
    }
}

fn unique_id_text(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(id) = text.parse::<UniqueId>() {
        assert!(id.to_string().eq_ignore_ascii_case(text.trim()));
    }
}

fn some_frames() -> Vec<Vec<u8>> {
    let first = frame(FrameKind::Open, &an_open().encode());
    let second = frame(FrameKind::Proof, &[7; 32]);
    vec![first.clone(), [first, second].concat()]
}

fn sent() -> Vec<Frame> {
    vec![
        (FrameKind::Table, a_table().encode()),
        (FrameKind::Sealed, Vec::new()),
        (FrameKind::Failed, an_init_failure().encode()),
    ]
}

fn some_sealed_frames() -> Vec<Vec<u8>> {
    let mut sealer = Sealer::new(&[7; 32]);
    let sealed = sent().into_iter();
    let sealed = sealed.map(|(kind, body)| sealed_frame::sealed(&mut sealer, kind, body));
    let sealed: Vec<_> = sealed.collect();
    vec![sealed[0].clone(), sealed.concat()]
}

fn an_open() -> Open {
    let stream_id = StreamId {
        context: 1,
        kind: StreamKind::Tcp,
        number: 2,
    };
    Open {
        version: PROTOCOL,
        intent: Intent::Stream {
            from: 0,
            to: 1,
            stream_id,
        },
        nonce: [7; 32],
    }
}

fn addresses() -> Vec<SocketAddr> {
    let all = ["10.0.0.1:4000", "[fe80::1%3]:4001"];
    all.map(|address| address.parse().unwrap()).into()
}

fn a_hello(rank: u32) -> Hello {
    let host_id = HostId {
        boot: [3; 16],
        network: 4,
    };
    Hello {
        peer: PeerInfo {
            rank,
            host: "höst".to_owned(),
            host_id,
            pid: 77,
            addresses: addresses().into_iter().map(Endpoint::from).collect(),
            unix_name: "spark".to_owned(),
            rdma_ports: 2,
        },
        size: 3,
        build: "0.1.0".to_owned(),
        wire_hash: 5,
        wire_summary: "SLOTS=4 SHM=1".to_owned(),
        time_left: Duration::from_secs(9),
        note: "tuned".to_owned(),
    }
}

fn a_table() -> Table {
    Table {
        nonce: [9; 32],
        peers: vec![a_hello(0).peer, a_hello(1).peer],
        note: "tuned".to_owned(),
    }
}

fn a_report() -> InitReport {
    InitReport {
        result: Err("no é".to_owned()),
        time_left: Duration::from_secs(9),
    }
}

fn an_init_failure() -> InitFailure {
    InitFailure {
        kind: InitFailureKind::Links,
        text: "no é".to_owned(),
    }
}

fn an_id() -> UniqueId {
    UniqueId::of_rendezvous(Some(&Secret::from_text(b"x")), &addresses()).unwrap()
}

#[cfg(test)]
#[test]
fn any_bytes_are_read_or_refused() {
    spark_ccl_testing::fuzz(TARGETS);
}
