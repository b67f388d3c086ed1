//! A suite of tests that every carrier must pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::yield_now;

use spark_ccl_testing::scramble;

use crate::delayed::Delayed;
use crate::layout::{FLAG, HEAD, LINE, RECORD};
use crate::linked::tests::devices::{over_devices, over_one_device, placed_over_devices};
use crate::linked::tests::{over_memory, over_sockets};
use crate::written::Written;
use crate::{Carrier, Copying, Counter, Error, Memory, Placement, PostBox, Proxy, Shape, Slot};

/// The words of a line, which begins at a multiple of its length.
#[derive(Default)]
#[repr(align(128))]
struct Line(#[allow(dead_code, reason = "used by their address")] [AtomicU64; LINE / 8]);

struct Plain(Box<[Line]>);

// SAFETY: the words begin with a `Line`, which is aligned to 128 bytes and all 0 at first, and the
// box never moves its lines. Only a `PostBox` gives their address away, to carriers, fake devices
// and kernels that are played. These, and the tests, follow the protocol of this crate.
unsafe impl Memory for Plain {
    fn words(&self) -> &[AtomicU64] {
        let start = self.0.as_ptr().cast::<AtomicU64>();
        // SAFETY: a `Line` is its `LINE / 8` words and nothing else, so the lines of the box, which
        // `self` keeps, are adjacent words. They are atomics, so shared references to them
        // may be written through.
        unsafe { std::slice::from_raw_parts(start, self.0.len() * (LINE / 8)) }
    }
}

pub(crate) fn plain(shape: Shape) -> PostBox {
    let bytes = shape.bytes().next_multiple_of(LINE);
    // The part that would be on a GPU is behind the box.
    let all = bytes + shape.bytes_on_device();
    let lines = (0..all.div_ceil(LINE)).map(|_| Line::default());
    let memory = Plain(lines.collect());
    let behind = memory.words().as_ptr().expose_provenance() as u64 + bytes as u64;
    let on_device = (shape.placement() == Placement::Device).then_some(behind);
    PostBox::new(Arc::new(memory), shape, on_device).unwrap()
}

/// A rank's end of a pair.
pub(crate) struct PairEnd {
    pub(crate) outbox: PostBox,
    pub(crate) inbox: PostBox,
    pub(crate) carrier: Box<dyn Carrier>,
}

impl Carrier for Box<dyn Carrier> {
    unsafe fn post(&mut self, slot: Slot, payload: usize, consumed: u64) -> Result<bool, Error> {
        // SAFETY: the caller has published the slot and does not write it before it has completed,
        // and says that the peer has consumed the slot that was in its place. The carrier in the
        // box gets this slot.
        unsafe { (**self).post(slot, payload, consumed) }
    }
    fn completed(&mut self) -> Result<Option<Slot>, Error> {
        (**self).completed()
    }
    fn come(&mut self, lane: usize) -> Result<u64, Error> {
        (**self).come(lane)
    }
    fn give_credit(&mut self, lane: usize, total: u64) -> Result<bool, Error> {
        (**self).give_credit(lane, total)
    }
    fn credit(&mut self, lane: usize) -> u64 {
        (**self).credit(lane)
    }
    fn post_packets(&mut self, number: u64, words: &[u64]) -> Result<bool, Error> {
        (**self).post_packets(number, words)
    }
    fn health(&mut self) -> Result<(), Error> {
        (**self).health()
    }
}

/// A function that makes both ends of a pair; the flag tells them that the peer is gone.
pub(crate) type Make = fn(Shape, &Arc<AtomicBool>) -> [PairEnd; 2];

/// By copying threads.
pub(crate) fn copying(shape: Shape, is_gone: &Arc<AtomicBool>) -> [PairEnd; 2] {
    pair(shape, |outbox, inbox, peer, _| {
        Box::new(Copying::new(outbox, inbox, peer, Arc::clone(is_gone)))
    })
}

/// By a carrier that moves slots late, and in another order.
pub(crate) fn delayed(shape: Shape, is_gone: &Arc<AtomicBool>) -> [PairEnd; 2] {
    pair(shape, |outbox, inbox, peer, seed| {
        let gone = Arc::clone(is_gone);
        Box::new(Delayed::new(outbox, inbox, peer, gone, seed))
    })
}

/// By a carrier that writes slots in parts.
pub(crate) fn written(shape: Shape, is_gone: &Arc<AtomicBool>) -> [PairEnd; 2] {
    pair(shape, |outbox, inbox, peer, seed| {
        let gone = Arc::clone(is_gone);
        Box::new(Written::new(outbox, inbox, peer, gone, seed))
    })
}

/// The same, with slots that are not in the boxes.
pub(crate) fn placed(shape: Shape, is_gone: &Arc<AtomicBool>) -> [PairEnd; 2] {
    written(shape.placed(Placement::Device), is_gone)
}

fn pair(
    shape: Shape,
    carrier: impl Fn(PostBox, PostBox, PostBox, u64) -> Box<dyn Carrier>,
) -> [PairEnd; 2] {
    let boxes: Vec<_> = (0..4).map(|_| plain(shape)).collect();
    // The outbox and the inbox of each.
    [0, 1].map(|rank| {
        let (own, other) = (&boxes[2 * rank..], &boxes[2 * (1 - rank)..]);
        PairEnd {
            carrier: carrier(
                own[0].clone(),
                other[1].clone(),
                other[0].clone(),
                rank as u64 + 1,
            ),
            outbox: own[0].clone(),
            inbox: own[1].clone(),
        }
    })
}

const MAKES: [Make; 9] = [
    copying,
    delayed,
    written,
    placed,
    over_memory,
    over_sockets,
    over_one_device,
    over_devices,
    placed_over_devices,
];

/// The expected word at a place of a slot's payload.
fn word_of(slot: Slot, place: usize) -> u64 {
    scramble(slot.number, (slot.lane << 32 | place) as u64)
}

/// Where a slot is, wherever slots are, counted from the start of the box.
fn place(of: &PostBox, slot: Slot) -> usize {
    (of.slots_at() - of.start()) as usize + of.shape().whole_slot(slot)
}

/// Fills a slot, as a kernel does.
pub(crate) fn fill(outbox: &PostBox, slot: Slot, length: usize) {
    // Relaxed: `publish` releases them.
    let word = |at: usize, value| outbox.word_at(at).store(value, Ordering::Relaxed);
    let record = outbox.shape().slot(slot) + RECORD;
    word(record, slot.number);
    word(record + 40, length as u64);
    for at in 0..length / 8 {
        word(place(outbox, slot) + HEAD + 8 * at, word_of(slot, at));
    }
}

/// Whether a slot has come. Checks that it has the sent contents.
pub(crate) fn take(inbox: &PostBox, slot: Slot) -> bool {
    let start = place(inbox, slot);
    // Acquire pairs with the carrier's release, as in the kernel.
    if inbox.word_at(start + FLAG).load(Ordering::Acquire) != slot.number {
        return false;
    }
    // Relaxed: the flag was acquired.
    let word = |at: usize| inbox.word_at(start + at).load(Ordering::Relaxed);
    let [call, length] = [RECORD, RECORD + 40].map(word);
    assert_eq!(call, slot.number);
    for at in 0..length as usize / 8 {
        let seen = word(HEAD + 8 * at);
        assert_eq!(seen, word_of(slot, at), "{slot:?}, word {at}");
    }
    true
}

fn publish(outbox: &PostBox, slot: Slot) {
    let published = outbox.counter(slot.lane, Counter::Published);
    // Pairs with the proxy's acquire in `Sending::next`.
    published.store(slot.number, Ordering::Release);
}

/// Passes `slots` slots of each lane, and goes on until both ends are done: the peer may still wait
/// for something.
fn pass_until_done(mut proxy: Proxy<impl Carrier>, slots: u64, done: &AtomicUsize) {
    let mut is_done = false;
    // Acquire, here and below, pairs with the other end's addition.
    while done.load(Ordering::Acquire) < 2 {
        let turned = proxy.turn();
        // Then the peer may be gone before this end looks again.
        if done.load(Ordering::Acquire) == 2 {
            break;
        }
        turned.unwrap();
        let mut lanes = proxy.progress();
        if !is_done && lanes.all(|lane| lane.sent == slots && lane.consumed == slots) {
            is_done = true;
            // Release pairs with the other end's loads.
            done.fetch_add(1, Ordering::AcqRel);
        }
        yield_now();
    }
}

/// Many slots of several lanes, both ways at once. Kernels fill a slot again as soon as it is sent,
/// and consume slots in their order, in which they need not arrive. Meanwhile this thread does
/// something else.
pub(crate) fn pass_many(
    make: impl Fn(Shape, &Arc<AtomicBool>) -> [PairEnd; 2],
    depth: usize,
    seed: u64,
    meanwhile: impl FnOnce(),
) {
    const LANES: usize = 3;
    const SLOTS: u64 = 60;
    let shape = Shape::new(LANES, depth, 1024).unwrap();
    let ends = make(shape, &Arc::default());
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (rank, end) in ends.into_iter().enumerate() {
            let (outbox, inbox) = (end.outbox.clone(), end.inbox.clone());
            scope.spawn(move || {
                for number in 1..=SLOTS {
                    for lane in 0..LANES {
                        let sent = outbox.counter(lane, Counter::Sent);
                        // Acquire pairs with the proxy's release in `Sending::complete`.
                        while number > sent.load(Ordering::Acquire) + depth as u64 {
                            yield_now();
                        }
                        let length = scramble(seed ^ number, (rank + lane) as u64) % 129 * 8;
                        fill(&outbox, Slot { lane, number }, length as usize);
                        publish(&outbox, Slot { lane, number });
                    }
                }
            });
            let polled = end.inbox.clone();
            scope.spawn(move || {
                for number in 1..=SLOTS {
                    for lane in 0..LANES {
                        while !take(&polled, Slot { lane, number }) {
                            yield_now();
                        }
                        let consumed = polled.counter(lane, Counter::Consumed);
                        // Release pairs with the proxy's acquire in `Receiving::consumed`.
                        consumed.store(number, Ordering::Release);
                    }
                }
            });
            let proxy = Proxy::new(end.outbox, inbox, end.carrier, 0..LANES);
            let done = &done;
            scope.spawn(move || pass_until_done(proxy, SLOTS, done));
        }
        meanwhile();
    });
}

#[test]
fn slots_arrive_whole_and_sources_are_free_when_they_are_said_to_be() {
    for make in MAKES {
        for depth in [1, 2, 5] {
            pass_many(make, depth, depth as u64, || {});
        }
    }
}

/// A slot that was completed is not read any more.
#[test]
fn what_is_completed_may_be_written() {
    for make in MAKES {
        let shape = Shape::new(1, 1, 256).unwrap();
        let [mut from, mut to] = make(shape, &Arc::default());
        let slot = Slot { lane: 0, number: 1 };
        fill(&from.outbox, slot, 256);
        // SAFETY: `fill` has filled the slot on this thread, and the test writes its place again
        // only after `completed` has returned it. It is the first slot, so no other one was in its
        // place at the peer.
        while !unsafe { from.carrier.post(slot, 256, 0).unwrap() } {}
        while from.carrier.completed().unwrap().is_none() {
            to.carrier.completed().unwrap();
        }
        fill(&from.outbox, Slot { lane: 0, number: 2 }, 256);
        while !take(&to.inbox, slot) {
            from.carrier.completed().unwrap();
            to.carrier.completed().unwrap();
        }
    }
}

#[test]
fn each_slot_completes_once() {
    for make in MAKES {
        let shape = Shape::new(2, 4, 128).unwrap();
        let [mut from, mut to] = make(shape, &Arc::default());
        let mut completed = Vec::new();
        for (lane, number) in [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3)] {
            // SAFETY: no thread writes the outbox's slots in this test, and each lane has 4 places,
            // so no two slots of a lane share one at the peer.
            while !unsafe { from.carrier.post(Slot { lane, number }, 8, 0).unwrap() } {
                completed.extend(from.carrier.completed().unwrap());
                to.carrier.completed().unwrap();
            }
        }
        while completed.len() < 5 {
            to.carrier.completed().unwrap();
            completed.extend(from.carrier.completed().unwrap());
        }
        for _ in 0..100 {
            assert_eq!(from.carrier.completed().unwrap(), None);
        }
        completed.sort_by_key(|slot| (slot.lane, slot.number));
        completed.dedup();
        assert_eq!(completed.len(), 5);
    }
}

#[test]
fn credits_arrive_each_in_its_lane() {
    for make in MAKES {
        let shape = Shape::new(2, 4, 128).unwrap();
        let [mut from, mut to] = make(shape, &Arc::default());
        let mut most = 0;
        for total in 1..=20 {
            while !to.carrier.give_credit(1, total).unwrap() {
                from.carrier.completed().unwrap();
                most = most.max(from.carrier.credit(1));
            }
        }
        while most < 20 {
            to.carrier.completed().unwrap();
            from.carrier.completed().unwrap();
            most = most.max(from.carrier.credit(1));
        }
        assert_eq!((most, from.carrier.credit(0)), (20, 0));
    }
}

#[test]
fn credits_arrive_with_slots() {
    for make in MAKES {
        let shape = Shape::new(2, 4, 128).unwrap();
        let [mut from, mut to] = make(shape, &Arc::default());
        let slot = Slot { lane: 1, number: 1 };
        // SAFETY: no thread writes the outbox's slot in this test. It is the lane's first, so no
        // other one was in its place at the peer.
        while !unsafe { to.carrier.post(slot, 8, 7).unwrap() } {}
        while from.carrier.credit(1) < 7 {
            to.carrier.completed().unwrap();
            from.carrier.completed().unwrap();
        }
        assert_eq!(from.carrier.credit(0), 0);
    }
}

/// A credit goes alone if no slot goes: soon if the peer may need it, and in any case at last.
#[test]
fn a_credit_waits_for_a_slot_and_not_for_ever() {
    let shape = Shape::new(1, 4, 128).unwrap();
    for (consumed, slots, turns) in [(1, 1, 1), (2, 0, 1), (1, 0, 300)] {
        let [mut from, to] = copying(shape, &Arc::default());
        let counter = to.inbox.counter(0, Counter::Consumed);
        counter.store(consumed, Ordering::Release);
        let outbox = to.outbox.clone();
        let mut proxy = Proxy::new(to.outbox, to.inbox.clone(), to.carrier, 0..1);
        if turns > 1 {
            assert_eq!(proxy.turn(), Ok(false));
            assert_eq!(from.carrier.credit(0), 0);
        }
        if slots > 0 {
            publish(&outbox, Slot { lane: 0, number: 1 });
        }
        for _ in 0..turns {
            proxy.turn().unwrap();
        }
        assert_eq!(from.carrier.credit(0), consumed);
    }
}

#[test]
fn a_peer_that_is_gone_is_an_error() {
    for make in MAKES {
        let is_gone = Arc::<AtomicBool>::default();
        let shape = Shape::new(1, 1, 128).unwrap();
        let [end, other] = make(shape, &is_gone);
        let mut proxy = Proxy::new(end.outbox, end.inbox, end.carrier, 0..1);
        assert_eq!(proxy.turn(), Ok(false));
        is_gone.store(true, Ordering::Relaxed);
        drop(other);
        assert_eq!(proxy.turn(), Err(Error::Gone));
    }
}

#[test]
fn what_a_kernel_cannot_have_written_is_an_error() {
    let shape = Shape::new(1, 2, 128).unwrap();
    let proxy = || {
        let [end, _other] = copying(shape, &Arc::default());
        let proxy = Proxy::new(end.outbox.clone(), end.inbox, end.carrier, 0..1);
        (end.outbox, proxy)
    };
    let slot = Slot { lane: 0, number: 1 };
    let (outbox, mut of_lengths) = proxy();
    outbox
        .word_at(shape.slot(slot) + RECORD + 40)
        .store(129, Ordering::Relaxed);
    publish(&outbox, slot);
    let said = of_lengths.turn().unwrap_err().to_string();
    assert!(
        said.contains("slot 1 has 129 bytes, and slots have 128"),
        "{said}"
    );
    let (outbox, mut of_numbers) = proxy();
    publish(&outbox, Slot { lane: 0, number: 9 });
    let said = of_numbers.turn().unwrap_err().to_string();
    assert!(
        said.contains("lane 0: Published is 9, and can be 0 to 2"),
        "{said}"
    );
}
