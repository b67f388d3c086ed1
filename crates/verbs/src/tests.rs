//! Tests of this crate on the fake library.

use std::path::Path;

use crate::testing::{self, Posted};
use crate::{
    Access, AddressError, AddressVector, Context, Error, Failed, GidEntry, GidKind, Library,
    LinkLayer, Mtu, Opcode, PairOptions, PairState, Peer, Piece, PollRoom, Port, PortState,
    ProtectionDomain, QueuePair, ReceiveOptions, Remote, Request, Reset, Rts, SendOptions, Status,
    raw,
};

mod faults;
mod network;
mod ownership;
mod posting;
mod regions;

fn context() -> Context {
    testing::library().devices().unwrap()[0].open().unwrap()
}

/// Changes the functions of a fake device.
fn change(context: &Context, change: impl FnOnce(&mut raw::ibv_context_ops)) {
    // SAFETY: the fake's context is memory that `context` keeps, and only this thread uses it.
    change(unsafe { &mut (*context.raw()).ops });
}

fn domain() -> ProtectionDomain {
    context().protection_domain().unwrap()
}

fn pair(options: impl FnOnce(&mut PairOptions)) -> QueuePair<Reset> {
    let domain = domain();
    let queue = domain.context().completion_queue(256).unwrap();
    let mut asked = PairOptions::new(&queue);
    asked.inline = 32;
    options(&mut asked);
    domain.queue_pair(&asked).unwrap()
}

fn own(context: &Context) -> (Port, GidEntry, Peer) {
    let gid = context.gids(1).unwrap().remove(1);
    let peer = Peer {
        gid: gid.gid,
        kind: gid.kind,
        qp_num: 5,
    };
    (context.port(1).unwrap(), gid, peer)
}

fn ready(pair: QueuePair<Reset>) -> QueuePair<Rts> {
    let (port, gid, peer) = own(pair.domain().context());
    let way = AddressVector::new(&port, &gid, &peer, Mtu::B4096).unwrap();
    let pair = pair.init(1, Access::REMOTE_WRITE).unwrap();
    let pair = pair
        .ready_to_receive(&way, ReceiveOptions::default())
        .unwrap();
    pair.ready_to_send(SendOptions::default()).unwrap()
}

#[test]
fn a_missing_library_says_what_to_install() {
    // SAFETY: there is no such library.
    let error = unsafe { Library::open_at(Path::new("/nowhere/libibverbs.so.1")) }.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("/nowhere/libibverbs.so.1"), "{text}");
    assert!(text.contains("apt install libibverbs1"), "{text}");
}

#[test]
fn another_library_lacks_functions() {
    // SAFETY: the C library is in use, and has no functions of libibverbs.
    let error = unsafe { Library::open_at(Path::new("libc.so.6")) }.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Symbol {
                symbol: "ibv_get_device_list",
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("libc.so.6"), "{error}");
}

#[test]
fn an_old_library_says_what_it_lacks() {
    let context = testing::old_library().devices().unwrap()[0].open().unwrap();
    // sysfs has no device `null0`.
    assert_eq!(context.gids(1).unwrap(), []);
    let domain = context.protection_domain().unwrap();
    let memory = regions::memory();
    let access = Access::REMOTE_WRITE | Access::RELAXED_ORDERING;
    // SAFETY: the fake device does not access registered memory.
    let error = unsafe { domain.register(memory, 8, access) }.unwrap_err();
    assert!(error.is_unsupported(), "{error}");
    assert!(
        error
            .to_string()
            .contains("ibv_reg_mr_iova2 is not in this libibverbs"),
        "{error}"
    );
    assert!(error.to_string().contains("rdma-core 28"), "{error}");
}

#[test]
fn a_driver_that_lacks_functions_leaves_nothing_behind() {
    let domain = domain();
    let context = domain.context();
    let queue = context.completion_queue(16).unwrap();
    change(context, |ops| ops.poll_cq = None);
    let error = context.completion_queue(16).unwrap_err();
    assert!(error.is_unsupported(), "{error}");
    let lacks: [fn(&mut raw::ibv_context_ops); 2] =
        [|ops| ops.post_recv = None, |ops| ops.post_send = None];
    for lack in lacks {
        change(context, lack);
        let error = domain.queue_pair(&PairOptions::new(&queue)).unwrap_err();
        assert!(error.is_unsupported(), "{error}");
    }
    assert_eq!(testing::existing(), 1);
    drop(queue);
    assert_eq!(testing::existing(), 0);
}

#[test]
fn a_device_tells_about_itself() {
    let devices = testing::library().devices().unwrap();
    assert_eq!(devices.len(), 1);
    assert_eq!(devices[0].name(), "null0");
    assert_eq!(devices[0].node_guid(), 0x0102_0304_0506_0708);
    let context = devices[0].open().unwrap();
    drop(devices);
    let port = context.port(1).unwrap();
    assert_eq!(
        (port.state, port.link_layer),
        (PortState::Active, LinkLayer::Ethernet)
    );
    assert_eq!(port.gbits, Some(200.0));
    assert_eq!(context.limits().unwrap().pieces, 4);
    assert_eq!(context.next_event().unwrap(), None);
    let kinds: Vec<_> = context
        .gids(1)
        .unwrap()
        .iter()
        .map(|entry| entry.kind)
        .collect();
    assert_eq!(kinds, [GidKind::RoceV2; 2]);
    assert_eq!(context.gids(2).unwrap(), []);
}

#[test]
fn states_lead_to_one_another() {
    let pair = ready(pair(|_| ()));
    assert_eq!(pair.query_state().unwrap(), PairState::Rts);
    let pair: QueuePair<Failed> = pair.into_failed().unwrap();
    assert_eq!(pair.query_state().unwrap(), PairState::Error);
    let pair = ready(pair.reset().unwrap());
    pair.destroy().unwrap();
}

#[test]
fn what_cannot_be_destroyed_is_an_error_once() {
    let pair = pair(|_| ());
    testing::fail_next(0, libc::EBUSY);
    let error = pair.destroy().unwrap_err();
    assert_eq!(error.errno(), Some(libc::EBUSY));
}
