//! What a message costs this library, without a device, a kernel and a network: by hand,
//! `cargo test --release -p spark-ccl-transport cost_of_a_message -- --ignored --nocapture`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use spark_ccl_verbs::{
    Access, AddressVector, Peer, ReceiveOptions, Remote, SendOptions, PairOptions, testing,
};

use super::core::Core;
use super::immediate::Immediate;
use super::rail::Rail;
use super::slots::Slots;
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
    let pair = pair.ready_to_receive(&way, ReceiveOptions::default()).unwrap();
    let rail = Rail {
        name: "nowhere".to_owned(),
        pair: pair.ready_to_send(SendOptions::default()).unwrap(),
        queue,
        events: Arc::new(events),
        lkey: outgoing.regions()[0].lkey(),
        remote: Remote { addr: 0, rkey: 0 },
        posted: 0,
        ended: 0,
        load: 0,
    };
    Core::new(vec![rail], outgoing, incoming)
}

#[test]
#[ignore = "a measurement"]
fn cost_of_a_message() {
    let mut core = alone();
    for len in [8, 256 << 10] {
        let begin = Instant::now();
        for number in 1..=MESSAGES {
            let next = core.next_to_send(0).unwrap().unwrap();
            // SAFETY: the slot is free, and nothing carries it anywhere.
            unsafe { core.send(0, next, len, 7).unwrap() };
            let said = Immediate::Released {
                channel: 0,
                number: next as u32,
            };
            core.arrived(said, 0);
            black_box(number);
            core.poll().unwrap();
        }
        let each = begin.elapsed() / MESSAGES;
        println!("a message of {len} bytes, sent, polled for and acknowledged: {each:?}");
    }
}
