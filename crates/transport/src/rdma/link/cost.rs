//! What a message costs this library, without a device, a kernel and a network: by hand,
//! `cargo test --release -p spark-ccl-transport cost_of_a_message -- --ignored --nocapture`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use spark_ccl_verbs::{
    Access, AddressVector, PairOptions, Peer, ReceiveOptions, Remote, SendOptions, testing,
};

use super::core::Core;
use super::immediate::Immediate;
use super::rail::{Rail, Reads};
use super::report::Control;
use super::slots::{Header, Slots};
use crate::Geometry;

const GEOMETRY: Geometry = Geometry {
    slot_bytes: 256 << 10,
    slots: 8,
    channels: 3,
};
const MESSAGES: u32 = 1_000_000;

/// An end whose device carries nothing.
fn alone() -> Core {
    let device = testing::library().devices().unwrap().remove(0);
    let context = device.open().unwrap();
    let domain = context.protection_domain().unwrap();
    let mut slots = [(); 2].map(|()| Slots::new(GEOMETRY).unwrap());
    for side in &mut slots {
        side.register(&domain, Access::REMOTE_WRITE).unwrap();
    }
    let [outgoing, incoming] = slots;
    let events = context.completion_channel().unwrap();
    let queue = events.completion_queue(512).unwrap();
    let options = PairOptions {
        send_depth: 224,
        inline: 128,
        ..PairOptions::new(&queue)
    };
    let pair = domain.queue_pair(&options).unwrap();
    let port = context.port(1).unwrap();
    let gid = context.gids(1).unwrap().remove(1);
    let peer = Peer {
        gid: gid.gid,
        kind: gid.kind,
        qp_num: pair.number(),
    };
    let way = AddressVector::new(&port, &gid, &peer, port.active_mtu).unwrap();
    let pair = pair.init(1, Access::REMOTE_WRITE).unwrap();
    let pair = pair
        .ready_to_receive(&way, ReceiveOptions::default())
        .unwrap();
    let rail = Rail {
        name: "nowhere".to_owned(),
        pair: pair.ready_to_send(SendOptions::default()).unwrap(),
        queue,
        events: Arc::new(events),
        port: 0,
        lkeys: [outgoing.regions()[0].lkey(), 0],
        remote: Remote { addr: 0, rkey: 0 },
        posted: 0,
        ended: 0,
        load: 0,
        reads: Reads::new(1),
        probe: (0, Instant::now()),
        patience: Duration::MAX,
    };
    let (stream, _) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
    let control = Control::new(stream, 1, GEOMETRY).unwrap();
    Core::new(vec![rail], outgoing, incoming, control, Arc::default())
}

#[test]
#[ignore = "a measurement"]
fn cost_of_a_message() {
    let mut core = alone();
    for len in [8, 256 << 10] {
        let begin = Instant::now();
        for _ in 0..MESSAGES {
            let next = core.next_to_send(0).unwrap().unwrap();
            let header = Header {
                tag: 7,
                number: next,
                is_lent: false,
            };
            // SAFETY: the slot is free, and nothing carries it anywhere.
            unsafe { core.send(0, len, header).unwrap() };
            let said = Immediate::Released {
                channel: 0,
                number: next as u32,
            };
            core.pretend(said);
            core.poll().unwrap();
        }
        let each = begin.elapsed() / MESSAGES;
        println!("a message of {len} bytes, sent, polled for and acknowledged: {each:?}");
    }
}
