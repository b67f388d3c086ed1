//! Tests of carriers over links: of shared memory, TCP, and fake RDMA devices.

pub(crate) mod devices;
mod opened;

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use spark_ccl_fork::Unshared;
use spark_ccl_transport::{Geometry, LinkRx, LinkTx, shm, tcp};

use super::tag::{MOST_LANES, Tag};
use super::*;
use crate::conformance::{PairEnd, fill, plain, take};
use crate::layout::{CREDIT, HEAD};
use crate::{Counter, Proxy, Shape};

type Halves = (Box<dyn LinkTx>, Box<dyn LinkRx>);

/// Messages are shorter than slots, and few have room.
const SMALL: Geometry = Geometry {
    slot_bytes: 192,
    slots: 2,
};

fn memory() -> [Halves; 2] {
    let ends: [_; 2] = shm::pair(SMALL).unwrap().into();
    ends.map(|(tx, rx)| (Box::new(tx) as _, Box::new(rx) as _))
}

fn sockets(geometry: Geometry) -> [Halves; 2] {
    let ends: [_; 2] = UnixStream::pair().unwrap().into();
    ends.map(|end| {
        end.set_nonblocking(true).unwrap();
        let (tx, rx) = tcp::link(vec![Unshared::new(end.into())], geometry).unwrap();
        (Box::new(tx) as _, Box::new(rx) as _)
    })
}

/// The carrier of two boxes that no other one has.
fn carrier_of(
    halves: Halves,
    part: usize,
    outbox: PostBox,
    inbox: PostBox,
) -> Result<Linked, Error> {
    // SAFETY: each test makes boxes for one carrier only, so no other carrier writes this inbox or
    // completes slots of this outbox.
    unsafe { Linked::new(halves, part, outbox, inbox) }
}

fn linked(shape: Shape, part: usize, links: [Halves; 2]) -> [PairEnd; 2] {
    links.map(|halves| {
        let (outbox, inbox) = (plain(shape), plain(shape));
        let carrier = carrier_of(halves, part, outbox.clone(), inbox.clone());
        PairEnd {
            carrier: Box::new(carrier.unwrap()),
            outbox,
            inbox,
        }
    })
}

/// By a link through memory that two ranks share.
pub(crate) fn over_memory(shape: Shape, _: &Arc<AtomicBool>) -> [PairEnd; 2] {
    linked(shape, SMALL.slot_bytes, memory())
}

/// By a link over stream sockets.
pub(crate) fn over_sockets(shape: Shape, _: &Arc<AtomicBool>) -> [PairEnd; 2] {
    linked(shape, SMALL.slot_bytes, sockets(SMALL))
}

/// Ends after some messages.
struct Breaking {
    tx: Box<dyn LinkTx>,
    left: usize,
}

impl LinkTx for Breaking {
    fn reserve(&mut self, len: usize) -> Result<Option<&mut [u8]>, LinkError> {
        self.tx.reserve(len)
    }
    fn commit(&mut self, len: usize, tag: u64) -> Result<(), LinkError> {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            return Err(LinkError::Setup("the cable is cut".to_owned()));
        }
        self.tx.commit(len, tag)
    }
    fn holds_back(&self) -> bool {
        self.tx.holds_back()
    }
    fn flush(&mut self) -> Result<bool, LinkError> {
        self.tx.flush()
    }
}

/// By links that break after some messages.
pub(crate) fn over_breaking_link(shape: Shape, _: &Arc<AtomicBool>) -> [PairEnd; 2] {
    let links = memory().map(|(tx, rx)| (Box::new(Breaking { tx, left: 40 }) as _, rx));
    linked(shape, SMALL.slot_bytes, links)
}

fn shape() -> Shape {
    Shape::new(2, 2, 256).unwrap()
}

/// The error at this rank's end when the peer sends one message with a tag.
fn said_of(tag: Tag, payload: &[u8]) -> Error {
    let [(mut tx, _rx), halves] = memory();
    let mut carrier = carrier_of(halves, SMALL.slot_bytes, plain(shape()), plain(shape())).unwrap();
    tx.reserve(payload.len())
        .unwrap()
        .unwrap()
        .copy_from_slice(payload);
    tx.commit(payload.len(), tag.word()).unwrap();
    carrier.completed().unwrap_err()
}

#[test]
fn what_a_peer_cannot_send_is_an_error_and_touches_no_slot() {
    let slot = |lane, number| Slot { lane, number };
    let of = |slot, payload| Tag::Slot { slot, payload };
    for (tag, part) in [
        (of(slot(2, 1), 0), "names lane 2"),
        (Tag::Credit { lane: 7, total: 1 }, "names lane 7"),
        (of(slot(1, 2), 0), "slot ...2 of lane 1, where 1 is next"),
        (of(slot(0, 1), 257), "257 bytes"),
        (of(slot(0, 1), 8), "sends 3 bytes"),
    ] {
        let said = said_of(tag, &[1, 2, 3]);
        assert!(!said.may_have_a_cause(), "{said}");
        let said = said.to_string();
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn packets_that_a_peer_cannot_send_are_an_error() {
    for (number, payload) in [(2, 32), (1, 31), (1, 24), (1, 8 * 133)] {
        let lane = MOST_LANES;
        let slot = Slot { lane, number };
        let said = said_of(Tag::Slot { slot, payload }, &[0; 3]).to_string();
        let expected = format!("the peer sends {payload} bytes as slot ...{number} of packets");
        assert!(said.contains(&expected), "{said}");
    }
}

#[test]
fn packets_that_do_not_fit_are_an_error() {
    for (calls, length, part) in [
        (3, 0, "as slot ...3 of packets, where 3 is next"),
        (
            1,
            9,
            "0 words as slot 1 of packets, and says that they have 9 bytes",
        ),
        (1, u64::MAX, "0 words as slot 1"),
    ] {
        let make = |halves| carrier_of(halves, SMALL.slot_bytes, plain(shape()), plain(shape()));
        let [mut from, mut to] = memory().map(make).map(Result::unwrap);
        let said = (1..=calls).find_map(|number| {
            while !from.post_packets(number, &[0, 0, 0, length]).unwrap() {}
            to.completed().err()
        });
        assert_eq!(to.packets(), calls - 1);
        let said = said.unwrap().to_string();
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn a_record_of_an_impossible_call_is_an_error() {
    let make = |halves| carrier_of(halves, SMALL.slot_bytes, plain(shape()), plain(shape()));
    let [mut from, mut to] = memory().map(make).map(Result::unwrap);
    while !from.post_packets(1, &[u64::MAX, 0, 0, 0]).unwrap() {}
    let said = to.completed().unwrap_err();
    assert!(matches!(said, Error::Violation { .. }), "{said}");
    assert_eq!(to.heard(), None);
}

#[test]
fn a_slot_has_come_when_all_of_its_messages_have() {
    let [(mut tx, _rx), halves] = memory();
    let mut to = carrier_of(halves, SMALL.slot_bytes, plain(shape()), plain(shape())).unwrap();
    let (slot, payload) = (Slot { lane: 1, number: 1 }, 200);
    let tag = Tag::Slot { slot, payload }.word();
    let all = HEAD - CREDIT + payload;
    for (part, come) in [(SMALL.slot_bytes, 0), (all - SMALL.slot_bytes, 1)] {
        tx.reserve(part).unwrap().unwrap().fill(0);
        tx.commit(part, tag).unwrap();
        assert_eq!(to.completed(), Ok(None));
        assert_eq!([0, 1].map(|lane| to.seen(lane)), [0, come]);
    }
}

/// The sender posts more slots than the peer has given credits for.
#[test]
fn a_slot_for_which_there_is_no_room_is_an_error() {
    let [mut from, mut to] = over_memory(shape(), &Arc::default());
    let mut post = |number| {
        // SAFETY: no thread writes the outbox, and nothing uses the peer's inbox but its carrier.
        // So the third slot harms nobody, though its place is not consumed: the peer's end refuses
        // the message, which is what is tested.
        while !unsafe { from.carrier.post(Slot { lane: 0, number }, 0, 0).unwrap() } {}
        to.carrier.completed().map(drop)
    };
    assert_eq!((post(1), post(2)), (Ok(()), Ok(())));
    let said = post(3).unwrap_err().to_string();
    assert!(said.contains("0 were consumed"), "{said}");
}

#[test]
fn what_a_peer_has_sent_before_it_left_arrives() {
    for make in [over_memory, over_sockets, devices::over_devices] {
        let [mut from, to] = make(shape(), &Arc::default());
        for (lane, number) in [(0, 1), (1, 1), (0, 2), (1, 2)] {
            // SAFETY: no thread writes the outbox. Each lane has 2 places for its 2 slots, so no
            // two share one at the peer.
            while !unsafe { from.carrier.post(Slot { lane, number }, 0, 0).unwrap() } {}
        }
        drop(from);
        let mut proxy = Proxy::new(to.outbox.clone(), to.inbox.clone(), to.carrier, 0..2);
        // This end has a slot to send, which nobody takes any more.
        to.outbox
            .counter(0, Counter::Published)
            .store(1, Ordering::Release);
        let ended = loop {
            if let Err(error) = proxy.turn() {
                break error;
            }
        };
        assert_eq!(ended, Error::Gone);
        let has_come = |lane, number| to.inbox.flag(Slot { lane, number }).load(Ordering::Acquire);
        assert_eq!([has_come(0, 2), has_come(1, 2)], [2, 2]);
    }
}

/// The carrier has room for a part of one slot, while each lane always has a slot to send.
#[test]
fn lanes_take_turns() {
    let shape = Shape::new(3, 2, 4096).unwrap();
    let [from, mut to] = over_memory(shape, &Arc::default());
    let mut proxy = Proxy::new(from.outbox.clone(), from.inbox, from.carrier, 0..3);
    for _ in 0..2000 {
        for lane in 0..3 {
            let published = from.outbox.counter(lane, Counter::Published);
            let sent = from.outbox.counter(lane, Counter::Sent);
            for number in published.load(Ordering::Acquire)..sent.load(Ordering::Acquire) + 2 {
                let slot = Slot {
                    lane,
                    number: number + 1,
                };
                let record = from.outbox.shape().slot(slot) + crate::layout::RECORD;
                from.outbox
                    .word_at(record + 40)
                    .store(4096, Ordering::Relaxed);
                published.store(number + 1, Ordering::Release);
            }
            // The kernel consumes at once, and the peer hears of it.
            let consumed = to.inbox.counter(lane, Counter::Consumed);
            let last = consumed.load(Ordering::Acquire);
            let next = Slot {
                lane,
                number: last + 1,
            };
            if to.inbox.flag(next).load(Ordering::Acquire) == next.number {
                consumed.store(next.number, Ordering::Release);
                while !to.carrier.give_credit(lane, next.number).unwrap() {}
            }
        }
        proxy.turn().unwrap();
        to.carrier.completed().unwrap();
        let sent: Vec<_> = proxy.progress().map(|lane| lane.sent).collect();
        let ahead = sent.iter().max().unwrap() - sent.iter().min().unwrap();
        assert!(ahead <= 2, "{sent:?}");
    }
    assert!(proxy.progress().all(|lane| lane.sent > 10));
}

#[test]
fn boxes_that_tags_cannot_name_are_refused() {
    let shape = Shape::new(1, 1, 16 << 20).unwrap();
    let [halves, _] = memory();
    let refused = carrier_of(halves, SMALL.slot_bytes, plain(shape), plain(shape));
    assert!(matches!(refused, Err(Error::Shape { .. })));
}

/// The link reads slots in place, if it can.
#[test]
fn slots_of_many_long_messages_arrive_whole() {
    let geometry = Geometry {
        slot_bytes: 16 << 10,
        slots: 2,
    };
    let shape = Shape::new(1, 2, 256 << 10).unwrap();
    let [mut from, mut to] = linked(shape, geometry.slot_bytes, sockets(geometry));
    for number in 1..=2 {
        let slot = Slot { lane: 0, number };
        let payload = shape.payload() - 8 * number as usize;
        fill(&from.outbox, slot, payload);
        // SAFETY: `fill` writes each slot of the outbox once, before its post. The lane has 2
        // places for its 2 slots, so no two share one at the peer.
        while !unsafe { from.carrier.post(slot, payload, 0).unwrap() } {
            from.carrier.completed().unwrap();
            to.carrier.completed().unwrap();
        }
    }
    for number in 1..=2 {
        while !take(&to.inbox, Slot { lane: 0, number }) {
            from.carrier.completed().unwrap();
            to.carrier.completed().unwrap();
        }
    }
}

/// One thread has the links to two peers. One of them reads nothing.
#[test]
fn a_link_that_is_full_holds_up_no_other() {
    let shape = Shape::new(1, 4, 64 << 10).unwrap();
    let ([stopped, _silent], [from, mut to]) = (
        over_sockets(shape, &Arc::default()),
        over_sockets(shape, &Arc::default()),
    );
    let all = [&stopped, &from].map(|end| end.outbox.clone());
    let mut proxies =
        [stopped, from].map(|end| Proxy::new(end.outbox, end.inbox, end.carrier, 0..1));
    for (outbox, number) in all
        .iter()
        .flat_map(|outbox| (1..=4).map(move |n| (outbox, n)))
    {
        fill(outbox, Slot { lane: 0, number }, shape.payload());
        outbox
            .counter(0, Counter::Published)
            .store(number, Ordering::Release);
    }
    while !take(&to.inbox, Slot { lane: 0, number: 4 }) {
        for proxy in &mut proxies {
            proxy.turn().unwrap();
        }
        to.carrier.completed().unwrap();
    }
    let sent = |proxy: &Proxy<_>| proxy.progress().next().unwrap().sent;
    assert!(sent(&proxies[0]) < 4 && sent(&proxies[1]) == 4);
}

#[test]
fn the_last_call_of_the_peer_is_known() {
    let make = |halves| {
        let (outbox, inbox) = (plain(shape()), plain(shape()));
        let linked = carrier_of(halves, SMALL.slot_bytes, outbox.clone(), inbox).unwrap();
        (linked, outbox)
    };
    let [(mut from, outbox), (mut to, _)] = memory().map(make);
    let slot = Slot { lane: 0, number: 1 };
    fill(&outbox, slot, 8);
    let call = outbox.record(slot).call;
    // SAFETY: only `fill` writes the slot, before its post. It is the lane's first, so no other one
    // was in its place at the peer.
    while !unsafe { from.post(slot, 8, 0).unwrap() } {}
    to.completed().unwrap();
    assert_eq!(to.heard().unwrap().record.call, call);
    // Packets of an earlier call, overtaken by a slot, tell nothing new.
    for (number, of_packets) in [(1, call - 1), (2, call + 2)] {
        while !from.post_packets(number, &[of_packets, 0, 0, 0]).unwrap() {}
        to.completed().unwrap();
        let heard = to.heard().unwrap();
        assert_eq!(heard.record.call, call.max(of_packets));
        assert_eq!(heard.is_of_packets, of_packets > call);
    }
}

/// So that a rank that serves a peer knows that the peer needs nothing more.
#[test]
fn credits_that_came_before_the_end_are_known() {
    // Of all credits, 8 come in a turn; with the last 4, the end comes.
    const SLOTS: u64 = 10;
    let geometry = Geometry {
        slot_bytes: 192,
        slots: 128,
    };
    let shape = Shape::new(2, SLOTS as usize, 128).unwrap();
    let [from, mut to] = linked(shape, geometry.slot_bytes, sockets(geometry));
    let mut proxy = Proxy::new(from.outbox.clone(), from.inbox, from.carrier, 0..2);
    for lane in 0..2 {
        from.outbox
            .counter(lane, Counter::Published)
            .store(SLOTS, Ordering::Release);
    }
    while proxy.progress().any(|lane| lane.sent < SLOTS) {
        proxy.turn().unwrap();
        to.carrier.completed().unwrap();
    }
    for (total, lane) in (1..=SLOTS).flat_map(|total| [(total, 1), (total, 0)]) {
        assert!(to.carrier.give_credit(lane, total).unwrap());
    }
    drop(to);
    while proxy.turn().is_ok() {}
    let heard: Vec<_> = proxy.progress().map(|lane| lane.credit).collect();
    assert_eq!(heard, [SLOTS; 2]);
}

/// Slots that are published after a failure belong to a call whose input is not there.
#[test]
fn nothing_is_posted_any_more_where_it_must_not_go() {
    let shape = Shape::new(1, 4, 128).unwrap();
    let [here, _there] = sockets(SMALL);
    let (outbox, inbox) = (plain(shape), plain(shape));
    let is_sound = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&is_sound);
    let carrier = carrier_of(here, SMALL.slot_bytes, outbox.clone(), inbox.clone()).unwrap();
    let carrier = carrier.only_while(move || asked.load(Ordering::Relaxed));
    let mut proxy = Proxy::new(outbox.clone(), inbox, carrier, 0..1);
    let published = outbox.counter(0, Counter::Published);
    for (number, is_still_sound, posted) in [(1, true, 1), (2, false, 1)] {
        is_sound.store(is_still_sound, Ordering::Relaxed);
        published.store(number, Ordering::Release);
        for _ in 0..100 {
            proxy.turn().unwrap();
        }
        assert_eq!(proxy.progress().next().unwrap().posted, posted);
    }
}
