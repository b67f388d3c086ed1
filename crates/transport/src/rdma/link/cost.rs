//! Measures what a message costs in this library alone, without a device, a kernel or a network.
//! Run by hand:
//! `cargo test --release -p spark-ccl-transport cost_of_a_message -- --ignored --nocapture`.

use std::sync::Arc;
use std::time::Instant;

use socket2::{Domain, Socket, Type};
use spark_ccl_config::Settings;
use spark_ccl_fork::Unshared;
use spark_ccl_verbs::{Access, testing};

use super::control::Control;
use super::core::Core;
use super::immediate::Immediate;
use super::plan::Plan;
use super::slots::{Header, Slots};
use super::unconnected::Unconnected;
use crate::Geometry;
use crate::rdma::{Rail, RailEnd, devices};

const GEOMETRY: Geometry = Geometry {
    slot_bytes: 256 << 10,
    slots: 8,
};
const MESSAGES: u32 = 1_000_000;

/// An end of a link on the fake device, which carries nothing.
pub(super) fn alone() -> Core {
    let mut devices = devices(testing::library()).unwrap();
    let local = devices.remove(0).1.unwrap().remove(0);
    let domain = local.context.protection_domain().unwrap();
    let mut slots = [(); 2].map(|()| Slots::new(GEOMETRY).unwrap());
    for side in &mut slots {
        side.register(&domain, Access::REMOTE_WRITE).unwrap();
    }
    let [outgoing, incoming] = slots;
    let end = RailEnd {
        port: 0,
        name: "nowhere".to_owned(),
        gid: *local.description.preferred().unwrap(),
    };
    let plan = Arc::new(Plan {
        rail: Rail {
            own: end.clone(),
            peer: end,
        },
        peer_mtu: 4096,
        local,
        domain,
        settings: Settings::default().rdma,
        geometry: GEOMETRY,
        lkeys: [&outgoing, &incoming].map(|slots| slots.regions()[0].lkey()),
        rkey: incoming.regions()[0].rkey(),
        is_first: true,
    });
    let pair = Unconnected::new(&plan).unwrap();
    let peer = pair.end();
    let rail = pair.connect(peer, 0).unwrap();
    let (stream, _) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
    let control = Control::new(Unshared::new(stream), 1, GEOMETRY).unwrap();
    Core::new(vec![rail], outgoing, incoming, control, Arc::default())
}

#[test]
#[ignore = "measures and checks nothing; run it by hand, with the command at the top of this file"]
fn cost_of_a_message() {
    let mut core = alone();
    for len in [8, 256 << 10] {
        let begin = Instant::now();
        for _ in 0..MESSAGES {
            let next = core.next_to_send().unwrap().unwrap();
            let header = Header {
                tag: 7,
                number: next,
                is_lent: false,
            };
            // SAFETY: `next_to_send` has found the slot free, so it belongs to this side until it
            // is sent.
            unsafe { core.send(len, header).unwrap() };
            let said = Immediate::Released {
                number: next as u32,
            };
            core.inject(said, 0);
            core.poll().unwrap();
        }
        let each = begin.elapsed() / MESSAGES;
        println!("a message of {len} bytes, sent, polled for and acknowledged: {each:?}");
    }
}
