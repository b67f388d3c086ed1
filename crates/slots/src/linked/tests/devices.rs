//! Slots that are put into the peer's inbox by fake RDMA devices, which move bytes late and in any
//! order.

use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use spark_ccl_config::{Env, Settings};
use spark_ccl_testing::seed;
use spark_ccl_transport::rdma::link::{self, Nics, Wait};
use spark_ccl_transport::rdma::{Reach, RegisteredMemory, Registration, Registry};
use spark_ccl_verbs::testing;

use super::*;
use crate::Placement;
use crate::conformance::pass_many;

const PATIENCE: Duration = Duration::from_secs(60);

/// A carrier, and what keeps its boxes registered.
struct OverDevices {
    // Dropped before the registrations, and these before the memory.
    linked: Linked,
    _registered: Vec<Registration>,
    boxes: [PostBox; 2],
    /// How many rails it has dropped. Relaxed: it orders nothing else.
    dropped: Arc<AtomicU64>,
}

impl Carrier for OverDevices {
    unsafe fn post(&mut self, slot: Slot, payload: usize, consumed: u64) -> Result<bool, Error> {
        // SAFETY: the caller has published the slot and does not write it before it has completed,
        // and says that the peer has consumed the slot that was in its place. `linked` gets this
        // slot.
        unsafe { self.linked.post(slot, payload, consumed) }
    }
    fn completed(&mut self) -> Result<Option<Slot>, Error> {
        let completed = self.linked.completed();
        let dropped = self.linked.outgoing.dropped();
        self.dropped.store(dropped, Ordering::Relaxed);
        completed
    }
    fn come(&mut self, lane: usize) -> Result<u64, Error> {
        self.linked.come(lane)
    }
    fn give_credit(&mut self, lane: usize, total: u64) -> Result<bool, Error> {
        self.linked.give_credit(lane, total)
    }
    fn credit(&mut self, lane: usize) -> u64 {
        self.linked.credit(lane)
    }
    fn post_packets(&mut self, number: u64, words: &[u64]) -> Result<bool, Error> {
        self.linked.post_packets(number, words)
    }
    fn health(&mut self) -> Result<(), Error> {
        self.linked.health()
    }
}

/// Registers an outbox, or an inbox.
fn register(registry: &Arc<Registry>, of: &PostBox, reach: Reach) -> Vec<Registration> {
    let register = |(start, bytes): (u64, usize)| {
        let start = NonNull::new(with_exposed_provenance_mut(start as usize)).unwrap();
        // SAFETY: the caller keeps the box until the registration has ended. Peers write only slots
        // that were consumed, which nothing uses before their flags are set.
        unsafe { registry.register(RegisteredMemory::Host { start, bytes }, reach) }.unwrap()
    };
    of.ranges().into_iter().map(register).collect()
}

/// Registers an outbox and an inbox.
fn register_both(registry: &Arc<Registry>, [outbox, inbox]: &[PostBox; 2]) -> Vec<Registration> {
    let mut all = register(registry, outbox, Reach::Source);
    all.extend(register(registry, inbox, Reach::Target));
    all
}

/// Both ends of links over this many rails.
fn links(rails: usize) -> [(Halves, Arc<Registry>); 2] {
    let names = ["=loop0", "=loop0,loop1"][rails - 1];
    let env = Env::from_pairs([("NCCL_IB_HCA", names)]);
    let settings = &Settings::from_env(&env).unwrap().rdma;
    let nics = [(); 2].map(|()| Nics::of(testing::network(seed()), settings).unwrap());
    let ends: [_; 2] = UnixStream::pair().unwrap().into();
    let wait = || Wait {
        deadline: Instant::now() + PATIENCE,
        go_on: &|| true,
    };
    let made = std::thread::scope(|scope| {
        let threads = [0, 1].map(|rank| {
            let (nics, end) = (&nics[rank], ends[rank].try_clone().unwrap());
            scope.spawn(move || {
                let stream = Unshared::new(end.into());
                link::connect(nics, settings, stream, SMALL, rank == 0, wait()).unwrap()
            })
        });
        threads.map(|thread| thread.join().unwrap())
    });
    let mut nics = nics.iter();
    made.map(|(tx, rx, names)| {
        assert_eq!(names.len(), rails);
        let registry = Arc::clone(nics.next().unwrap().registry());
        ((Box::new(tx) as _, Box::new(rx) as _), registry)
    })
}

/// Both ends, once each knows the other's inbox.
fn ends(shape: Shape, rails: usize, dropped: &Arc<AtomicU64>) -> [PairEnd; 2] {
    let mut carriers = links(rails).map(|(halves, registry)| {
        let boxes = [plain(shape), plain(shape)];
        let registered = register_both(&registry, &boxes);
        let [outbox, inbox] = boxes.clone();
        OverDevices {
            linked: carrier_of(halves, SMALL.slot_bytes, outbox, inbox).unwrap(),
            _registered: registered,
            boxes,
            dropped: Arc::clone(dropped),
        }
    });
    let until = Instant::now() + PATIENCE;
    while !carriers.iter().all(|end| end.linked.outgoing.puts()) {
        assert!(Instant::now() < until, "the ends do not meet");
        for end in &mut carriers {
            assert_eq!(end.completed(), Ok(None));
        }
    }
    carriers.map(|carrier| {
        let [outbox, inbox] = carrier.boxes.clone();
        PairEnd {
            outbox,
            inbox,
            carrier: Box::new(carrier),
        }
    })
}

/// By puts over one rail.
pub(crate) fn over_one_device(shape: Shape, _: &Arc<AtomicBool>) -> [PairEnd; 2] {
    ends(shape, 1, &Arc::default())
}

/// By puts over two rails.
pub(crate) fn over_devices(shape: Shape, _: &Arc<AtomicBool>) -> [PairEnd; 2] {
    ends(shape, 2, &Arc::default())
}

/// The same, with slots that are not in the boxes.
pub(crate) fn placed_over_devices(shape: Shape, is_gone: &Arc<AtomicBool>) -> [PairEnd; 2] {
    over_devices(shape.placed(Placement::Device), is_gone)
}

#[test]
fn slots_arrive_whole_while_a_rail_fails_and_its_late_writes_arrive() {
    let placements = [Placement::Host, Placement::Device];
    for (depth, placement) in [1, 3]
        .into_iter()
        .flat_map(|n| placements.map(|at| (n, at)))
    {
        let dropped = Arc::new(AtomicU64::new(0));
        let make = |shape: Shape, _: &Arc<AtomicBool>| {
            let ends = ends(shape.placed(placement), 2, &dropped);
            testing::cut(0, true);
            ends
        };
        pass_many(make, depth, depth as u64, || {
            let until = Instant::now() + PATIENCE;
            while dropped.load(Ordering::Relaxed) == 0 && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
            testing::cut(0, false);
        });
        assert!(dropped.load(Ordering::Relaxed) > 0);
        testing::settle();
    }
}

#[test]
fn a_link_without_rails_ends_with_the_name_of_the_last() {
    let [end, _other] = over_one_device(shape(), &Arc::default());
    let outbox = end.outbox.clone();
    let mut proxy = Proxy::new(end.outbox, end.inbox, end.carrier, 0..2);
    testing::cut(0, true);
    fill(&outbox, Slot { lane: 0, number: 1 }, 8);
    let published = outbox.counter(0, Counter::Published);
    published.store(1, Ordering::Release);
    let until = Instant::now() + PATIENCE;
    let ended = loop {
        if let Err(error) = proxy.turn() {
            break error;
        }
        assert!(Instant::now() < until, "the link lives");
    };
    testing::cut(0, false);
    assert!(ended.may_have_a_cause(), "{ended}");
    assert!(ended.to_string().contains("loop0"), "{ended}");
    assert_eq!(proxy.progress().next().unwrap().sent, 0);
}

/// The sender's thread does not look before its peer has left. Then it finds the completion, the
/// credit and the farewell at once.
#[test]
fn a_slot_that_has_completed_before_the_peer_left_is_sent() {
    // An acknowledgement that comes after the peer's end is lost, so a short wait may not be
    // enough.
    let waits = [20, 200, 2000].map(Duration::from_millis);
    assert!(waits.into_iter().any(is_sent_though_the_peer_left_after));
}

/// Sends a slot to a peer that leaves after this time. Returns whether the slot has completed.
fn is_sent_though_the_peer_left_after(wait: Duration) -> bool {
    let [from, mut to] = over_one_device(shape(), &Arc::default());
    let outbox = from.outbox.clone();
    let mut proxy = Proxy::new(from.outbox, from.inbox, from.carrier, 0..2);
    let slot = Slot { lane: 0, number: 1 };
    fill(&outbox, slot, 256);
    let published = outbox.counter(0, Counter::Published);
    published.store(1, Ordering::Release);
    assert_eq!(proxy.turn(), Ok(true));
    let until = Instant::now() + PATIENCE;
    while !take(&to.inbox, slot) {
        assert!(Instant::now() < until, "the slot does not come");
        std::thread::yield_now();
    }
    std::thread::sleep(wait);
    assert!(to.carrier.give_credit(0, 1).unwrap());
    drop(to);
    let ended = loop {
        if let Err(error) = proxy.turn() {
            break error;
        }
        assert!(Instant::now() < until, "the link lives");
    };
    assert_eq!(ended, Error::Gone);
    let lane = proxy.progress().next().unwrap();
    assert_eq!(lane.credit, 1);
    lane.sent == 1
}

/// Nobody at the receiver does anything: its device writes slot and flag.
#[test]
fn slots_arrive_without_the_receivers_processor() {
    let [mut from, to] = over_devices(shape(), &Arc::default());
    let until = Instant::now() + PATIENCE;
    for number in 1..=2 {
        let slot = Slot { lane: 1, number };
        fill(&from.outbox, slot, 256);
        // SAFETY: the thread writes the outbox only before a post. The lane has 2 places for its 2
        // slots, so no two share one at the peer.
        assert!(unsafe { from.carrier.post(slot, 256, 0).unwrap() });
        while !take(&to.inbox, slot) {
            assert!(Instant::now() < until, "{slot:?} does not come");
            std::thread::yield_now();
        }
    }
}

/// The proxy learns from the inbox which slots have come, and their calls, also where all slots of
/// a lane are consumed before it looks. A kernel on the GPU may see a slot before the proxy. Then
/// the credit waits, since the next slot replaces the one that the proxy has yet to see.
#[test]
fn a_carrier_knows_what_was_put_into_its_inbox() {
    for placement in [Placement::Host, Placement::Device] {
        let shape = Shape::new(1, 1, 128).unwrap().placed(placement);
        let [(from_halves, from_registry), (to_halves, to_registry)] = links(1);
        let end = |halves, registry: &Arc<Registry>| {
            let boxes = [plain(shape), plain(shape)];
            let registered = register_both(registry, &boxes);
            let [outbox, inbox] = boxes.clone();
            let linked = carrier_of(halves, SMALL.slot_bytes, outbox, inbox).unwrap();
            (boxes, registered, linked)
        };
        let ([outbox, _inbox], _from_registered, mut from) = end(from_halves, &from_registry);
        let ([to_outbox, inbox], _to_registered, to) = end(to_halves, &to_registry);
        let mut to = Proxy::new(to_outbox.clone(), inbox.clone(), to, 0..1);
        let until = Instant::now() + PATIENCE;
        let waits = |for_what: &str| assert!(Instant::now() < until, "{for_what} does not come");
        for number in 1..=50 {
            let slot = Slot { lane: 0, number };
            fill(&outbox, slot, 8);
            // SAFETY: `fill` writes the slot again only after it has completed, and the peer has
            // consumed the one before it.
            while !unsafe { from.post(slot, 8, number + 10).unwrap() } {
                waits("room for a slot");
                from.completed().unwrap();
                to.turn().unwrap();
            }
            while !take(&inbox, slot) {
                waits("a slot");
                std::thread::yield_now();
            }
            let consumed = inbox.counter(0, Counter::Consumed);
            consumed.store(number, Ordering::Release);
            let mut has_completed = false;
            while !has_completed || from.credit(0) < number {
                waits("a credit");
                to.turn().unwrap();
                has_completed |= from.completed().unwrap().is_some();
                let seen = to.carrier().seen(0);
                assert!(to.progress().all(|lane| lane.consumed <= seen));
            }
            assert_eq!(to.carrier_mut().credit(0), number + 10);
            assert_eq!(to.carrier().seen(0), number);
            let heard = to.carrier().heard().unwrap();
            assert_eq!(heard.record.call, outbox.record(slot).call);
        }
    }
}

/// All of a rank's boxes are registered, or it takes no part in puts.
#[test]
fn where_an_outbox_is_not_registered_slots_are_sent_both_ways() {
    let shape = Shape::new(1, 1, 128).unwrap();
    let mut is_first = true;
    let mut ends = links(1).map(|(halves, registry)| {
        let boxes = [plain(shape), plain(shape)];
        let (source, target) = ((0, Reach::Source), (1, Reach::Target));
        let of = if std::mem::take(&mut is_first) {
            vec![target]
        } else {
            vec![source, target]
        };
        let registered: Vec<_> = of
            .into_iter()
            .flat_map(|(place, reach)| register(&registry, &boxes[place], reach))
            .collect();
        let [outbox, inbox] = boxes.clone();
        let linked = carrier_of(halves, SMALL.slot_bytes, outbox, inbox).unwrap();
        (linked, registered, boxes)
    });
    let until = Instant::now() + PATIENCE;
    let slot = Slot { lane: 0, number: 1 };
    for (from, to) in [(0, 1), (1, 0)] {
        fill(&ends[from].2[0], slot, 128);
        // SAFETY: only `fill` writes the slot, before its post. It is the first one, so no other
        // one was in its place at the peer.
        while !unsafe { ends[from].0.post(slot, 128, 0).unwrap() } {
            assert!(Instant::now() < until, "no room");
            for end in &mut ends {
                end.0.completed().unwrap();
            }
        }
        while !take(&ends[to].2[1], slot) {
            assert!(Instant::now() < until, "the slot does not come");
            for end in &mut ends {
                end.0.completed().unwrap();
            }
        }
    }
    assert!(!ends.iter().any(|end| end.0.outgoing.puts()));
}

/// No processor could send these.
#[test]
fn slots_on_a_gpu_that_cannot_be_put_are_refused() {
    let shape = Shape::new(1, 1, 128).unwrap().placed(Placement::Device);
    let [(halves, registry), (other, other_registry)] = links(1);
    let boxes = [plain(shape), plain(shape)];
    let _source = register(&registry, &boxes[0], Reach::Source);
    let [outbox, inbox] = boxes.clone();
    let said = carrier_of(halves, SMALL.slot_bytes, outbox, inbox).unwrap_err();
    assert!(said.to_string().contains("this rank's devices"), "{said}");
    let [(tx, rx), _peer] = memory();
    let refused = carrier_of((tx, rx), SMALL.slot_bytes, plain(shape), plain(shape));
    assert!(refused.is_err());
    // The peer says that it takes no puts.
    let boxes = [plain(shape), plain(shape)];
    let _registered = register_both(&other_registry, &boxes);
    let [outbox, inbox] = boxes.clone();
    let mut carrier = carrier_of(other, SMALL.slot_bytes, outbox, inbox).unwrap();
    let said = carrier.outgoing.hear_opening(&[]).unwrap_err();
    assert!(said.to_string().contains("the peer's devices"), "{said}");
}
