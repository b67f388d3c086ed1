//! Ranks, calls, and the threads that run them.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::yield_now;

use spark_ccl_testing::scramble;
use spark_ccl_types::{ReduceOp, Side};

use super::buffers::{Buffers, Call};
use super::messages::Mail;
use super::{Play, play};
use crate::conformance::{Make, PairEnd};
use crate::{
    Boxes, Carrier, Counter, Error, Exchanging, Form, Mailing, Passed, PostBox, Proxy, Route,
    Shape, SlotMember,
};

pub(super) const LANES: usize = 3;
/// With the one for messages.
const ALL_LANES: usize = LANES + 1;
pub(super) const SLOT: usize = 256;
/// The numbers of kernels in `tests/kernel.cpp`.
const DIRECT: u32 = 0;
const SHARED: u32 = 1;
/// Added to these numbers for kernels that read slots as a GPU does.
const AT_ONCE: u32 = 2;
const PACKETS: u32 = 4;
const MESSAGES: u32 = 5;

/// A rank: the memory of its kernels.
pub(super) struct Rank {
    member: SlotMember,
    /// The memory of boxes, which outlives proxies that have failed.
    memory: Vec<PostBox>,
    _boxes: Vec<Boxes>,
    passed: Vec<Passed>,
    _state: Vec<u64>,
    /// Calls that were made another way. Relaxed: set while no kernel runs.
    others: Arc<AtomicU64>,
    /// What ends waits: an abort, and the patience. Orders no other memory: relaxed.
    control: Arc<[AtomicU64; 2]>,
    /// Acquire of the first word pairs with the kernel's `release_long` in `failure.h`.
    failure: Arc<[AtomicU64; 8]>,
    /// Acquire pairs with the kernel's `release_long`, or its fence before the word.
    journal: Vec<[AtomicU64; 4]>,
}

/// The contents of `Failure`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failed {
    pub(super) reason: u64,
    pub(super) peer: u64,
    pub(super) operation: u64,
    pub(super) theirs: [u64; 2],
}

impl Rank {
    pub(super) fn failed(&self) -> Option<Failed> {
        let word = |at: usize| self.failure[at].load(Ordering::Acquire);
        let what = word(0);
        (what != 0).then(|| Failed {
            reason: what & 0xff,
            peer: what >> 8 & 0xff,
            operation: word(1),
            theirs: [word(5), word(6)],
        })
    }

    /// How many calls have begun, and ended.
    pub(super) fn calls(&self) -> [u64; 2] {
        self.journal(0)
    }

    /// How many messages have begun, and ended, in this direction.
    pub(super) fn messages(&self, peer: usize, is_sent: bool) -> [u64; 2] {
        self.journal(1 + 2 * peer + usize::from(is_sent))
    }

    fn journal(&self, place: usize) -> [u64; 2] {
        [0, 1].map(|word| self.journal[place][word].load(Ordering::Acquire))
    }

    /// The contents of the packets of a slot that the rank has sent.
    pub(super) fn sent_packets(&self, number: u64) -> Vec<u64> {
        let outboxes = self.memory.iter().step_by(2);
        let halves = outboxes.flat_map(|outbox| outbox.halves(number));
        // Relaxed: the threads that wrote them were joined.
        halves.map(|half| half.load(Ordering::Relaxed)).collect()
    }

    /// How many slots each lane should consume from each peer, and how many it has.
    pub(super) fn wanted(&self) -> Vec<[u64; 2]> {
        let inboxes = self.memory.iter().skip(1).step_by(2);
        let lanes = inboxes.flat_map(|inbox| (0..ALL_LANES).map(move |lane| (inbox, lane)));
        let counters = [Counter::Wanted, Counter::Consumed];
        // Acquire pairs with the kernel's fence in `Slots::tell`.
        lanes
            .map(|(inbox, lane)| {
                counters.map(|counter| inbox.counter(lane, counter).load(Ordering::Acquire))
            })
            .collect()
    }

    /// Sets the number of slots of packets that the rank has passed with each peer.
    fn start_packets_at(&mut self, number: u64) {
        let of_packets = self.member.ranks as usize * ALL_LANES;
        self.passed[of_packets].filled = number;
    }

    /// Counts a call that the rank has made another way.
    pub(super) fn calls_elsewhere(&self) {
        self.others.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn abort(&self) -> Arc<[AtomicU64; 2]> {
        Arc::clone(&self.control)
    }
}

pub(super) struct World {
    pub(super) form: Form,
    /// Whether short calls go by packets.
    pub(super) has_packets: bool,
    /// Whether records are read together with flags, as by a GPU.
    pub(super) is_at_once: bool,
    pub(super) ahead: usize,
    pub(super) ranks: Vec<Rank>,
    proxies: Vec<Vec<Proxy<Box<dyn Carrier>>>>,
    /// The errors of proxies.
    pub(super) faults: Mutex<Vec<Error>>,
}

impl World {
    pub(super) fn new(
        make: Make,
        form: Form,
        (ranks, ahead, depth): (usize, usize, usize),
    ) -> Self {
        let shape = Shape::new(ALL_LANES, depth, SLOT).unwrap();
        // By rank and peer.
        let mut ends = BTreeMap::new();
        for (one, other) in (0..ranks).flat_map(|one| (0..one).map(move |other| (one, other))) {
            let [first, second] = make(shape, &Arc::default());
            ends.extend([((one, other), first), ((other, one), second)]);
        }
        let mut world = Self {
            form,
            has_packets: false,
            is_at_once: false,
            ahead,
            ranks: Vec::new(),
            proxies: Vec::new(),
            faults: Mutex::default(),
        };
        for rank in 0..ranks {
            let ends: Vec<_> = (0..ranks).map(|peer| ends.remove(&(rank, peer))).collect();
            world.ranks.push(Rank::new(rank, &ends));
            let proxy = |end: PairEnd| Proxy::new(end.outbox, end.inbox, end.carrier, 0..ALL_LANES);
            world
                .proxies
                .push(ends.into_iter().flatten().map(proxy).collect());
        }
        world
    }

    /// Sets how many slots of packets were passed between all ranks.
    pub(super) fn start_packets_at(&mut self, number: u64) {
        for rank in &mut self.ranks {
            rank.start_packets_at(number);
        }
        for proxy in self.proxies.iter_mut().flatten() {
            proxy.start_packets_at(number);
        }
    }

    /// Has each rank make its calls, and returns the buffers. A rank without calls is away.
    pub(super) fn run(&mut self, calls: &[Vec<Call>], seed: u64) -> Option<Vec<Vec<Buffers>>> {
        let ranks = self.ranks.len();
        let made = calls.iter().enumerate().map(|(rank, calls)| {
            let made = calls.iter().map(|&call| Buffers::new(call, rank, ranks));
            made.collect()
        });
        let mut buffers: Vec<Vec<_>> = made.collect();
        let launches = buffers.iter_mut().enumerate().map(|(rank, buffers)| {
            let launches = buffers.iter_mut().map(|of| self.launch_of(rank, of));
            launches.collect()
        });
        let launches: Vec<_> = launches.collect();
        self.launch(&launches, seed)?;
        Some(buffers)
    }

    /// A rank's launch of a call on buffers that stay until it has run.
    pub(super) fn launch_of(&self, rank: usize, buffers: &mut Buffers) -> Launch {
        let call = buffers.call;
        let manner = if self.is_at_once { AT_ONCE } else { 0 };
        let kernel = match call.form(self.form, self.ranks.len()) {
            _ if self.has_packets && call.is_short() => PACKETS,
            Form::Direct => manner + DIRECT,
            Form::Shared => manner + SHARED,
        };
        Launch {
            kernel,
            ctas: if kernel == PACKETS { 1 } else { call.ctas },
            arguments: Arguments::Call(Box::new(
                self.ranks[rank].arguments(buffers, self.form, self.ahead),
            )),
        }
    }

    /// A rank's launch of messages, whose buffers stay until it has run.
    pub(super) fn launch_of_mail(&self, rank: usize, mail: &mut Mail) -> Launch {
        let mailing = mail.mailing(self.ranks[rank].member);
        Launch {
            kernel: MESSAGES + u32::from(self.is_at_once),
            ctas: mail.flows(),
            arguments: Arguments::Mail(Box::new(mailing)),
        }
    }

    /// Runs each rank's launches, one after the other.
    pub(super) fn launch(&mut self, launches: &[Vec<Launch>], seed: u64) -> Option<()> {
        let play = play()?;
        let is_over = AtomicBool::new(false);
        let ranks = &self.ranks;
        // A thread for each CTA of a call, or for each flow.
        let threads = LANES.max(2 * (ranks.len() - 1));
        let barriers: Vec<_> = ranks.iter().map(|_| Barrier::new(threads)).collect();
        let slow = seed as usize % ranks.len();
        std::thread::scope(|scope| {
            for proxies in &mut self.proxies {
                let (is_over, faults) = (&is_over, &self.faults);
                scope.spawn(move || {
                    // Relaxed, as the store: it orders no other memory.
                    while !is_over.load(Ordering::Relaxed) {
                        proxies.retain_mut(|proxy| goes_on(proxy, faults, ranks));
                        yield_now();
                    }
                });
            }
            let mut kernels = Vec::new();
            for (rank, launches) in launches.iter().enumerate() {
                for cta in 0..threads as u32 {
                    let barrier = &barriers[rank];
                    let cta = Cta {
                        number: cta,
                        seed: scramble(seed ^ u64::from(cta), rank as u64),
                        pauses: if rank == slow { 40 } else { 2000 },
                    };
                    kernels.push(scope.spawn(move || cta.run(play, launches, barrier)));
                }
            }
            for kernel in kernels {
                kernel.join().unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        Some(())
    }

    pub(super) fn set_patience(&self, milliseconds: u64) {
        for rank in &self.ranks {
            rank.control[1].store(milliseconds * 1_000_000, Ordering::Relaxed);
        }
    }
}

/// A turn of a proxy. Returns whether there is another turn. All ranks hear of a fault, as from the
/// control plane.
fn goes_on(
    proxy: &mut Proxy<Box<dyn Carrier>>,
    faults: &Mutex<Vec<Error>>,
    ranks: &[Rank],
) -> bool {
    let Err(error) = proxy.turn() else {
        return true;
    };
    faults.lock().unwrap().push(error);
    for rank in ranks {
        rank.control[0].store(1, Ordering::Relaxed);
    }
    false
}

/// A kernel of a rank's stream.
pub(super) struct Launch {
    kernel: u32,
    ctas: u32,
    arguments: Arguments,
}

enum Arguments {
    Call(Box<Exchanging>),
    Mail(Box<Mailing>),
}

impl Launch {
    fn arguments(&self) -> *const c_void {
        match &self.arguments {
            Arguments::Call(call) => std::ptr::from_ref(&**call).cast(),
            Arguments::Mail(mailing) => std::ptr::from_ref(&**mailing).cast(),
        }
    }
}

/// The thread that plays a CTA in all launches.
struct Cta {
    number: u32,
    seed: u64,
    pauses: u32,
}

impl Cta {
    fn run(&self, play: Play, launches: &[Launch], barrier: &Barrier) {
        for (call, launch) in launches.iter().enumerate() {
            let Launch { kernel, ctas, .. } = *launch;
            // One launch after the other, as in a stream.
            barrier.wait();
            if self.number >= ctas {
                continue;
            }
            let seed = self.seed ^ call as u64;
            // SAFETY: `play` reads one parameter of the kernel's layout, which `launch` owns. It
            // names memory of the rank and buffers that live until all threads have ended. No
            // thread besides those of this launch uses the buffers: the barrier holds all back
            // until the launch before has ended.
            unsafe {
                play(
                    launch.arguments(),
                    self.number,
                    ctas,
                    kernel,
                    seed,
                    self.pauses,
                );
            };
        }
    }
}

impl Rank {
    fn new(rank: usize, ends: &[Option<PairEnd>]) -> Self {
        // All have the same shape.
        let shape = ends.iter().flatten().next().unwrap().outbox.shape();
        let boxes = ends.iter().map(|end| {
            end.as_ref().map_or(Boxes::default(), |end| {
                let both = [&end.outbox, &end.inbox];
                let slots = both.map(PostBox::slots_at);
                Boxes::new(shape, both.map(PostBox::start), Some(slots))
            })
        });
        let boxes: Vec<_> = boxes.collect();
        let mut passed = vec![Passed::default(); ends.len() * (ALL_LANES + 1) + 1];
        let mut state = vec![0_u64; 3];
        let others = Arc::<AtomicU64>::default();
        let control = Arc::new([const { AtomicU64::new(0) }; 2]);
        control[1].store(60_000_000_000, Ordering::Relaxed);
        let failure = Arc::new([const { AtomicU64::new(0) }; 8]);
        let journal = (0..=2 * ends.len()).map(|_| [const { AtomicU64::new(0) }; 4]);
        let journal: Vec<_> = journal.collect();
        let member = SlotMember {
            boxes: boxes.as_ptr().expose_provenance() as u64,
            passed: passed.as_mut_ptr().expose_provenance() as u64,
            state: state.as_mut_ptr().expose_provenance() as u64,
            others: others.as_ptr().expose_provenance() as u64,
            control: control.as_ptr().expose_provenance() as u64,
            failure: failure.as_ptr().expose_provenance() as u64,
            journal: journal.as_ptr().expose_provenance() as u64,
            heads: shape.heads() as u64,
            stride: shape.stride() as u64,
            packets: shape.packets() as u64,
            lanes: ALL_LANES as u32,
            depth: shape.depth() as u32,
            rank: rank as u32,
            ranks: ends.len() as u32,
        };
        let memory = ends.iter().flatten();
        let memory = memory.flat_map(|end| [end.outbox.clone(), end.inbox.clone()]);
        Self {
            member,
            memory: memory.collect(),
            _boxes: boxes,
            passed,
            _state: state,
            others,
            control,
            failure,
            journal,
        }
    }

    fn arguments(&self, buffers: &mut Buffers, form: Form, ahead: usize) -> Exchanging {
        let call = buffers.call;
        let ranks = self.member.ranks;
        let form = call.form(form, ranks as usize);
        let [input, output] = buffers.addresses();
        let mean = call.op == ReduceOp::Avg && call.operation.reduces();
        let is_whole = call.dtype.is_integer();
        let (factor, scaling) = match (call.is_scaled, mean && !is_whole) {
            (true, _) if call.seed.is_multiple_of(2) => (buffers.factor_at(), 3),
            (true, _) => (call.factor(buffers.rank), 1),
            (_, true) => ((1.0 / f64::from(ranks)).to_bits(), 2),
            _ => (0, 0),
        };
        let op = match call.op {
            ReduceOp::Avg => ReduceOp::Sum,
            op => op,
        };
        Exchanging {
            member: self.member,
            input,
            output,
            bytes: call.bytes() as u64,
            input_stride: call.stride(Side::Input) as u64,
            output_stride: call.stride(Side::Output) as u64,
            piece: call.piece as u64,
            words: [call.word, call.count as u64],
            factor,
            scaling,
            combine: u32::from(op.code()),
            divisor: if mean && is_whole { ranks } else { 1 },
            dtype: u32::from(call.dtype.code()),
            route: Route::new(
                call.operation,
                form,
                self.member.rank as usize,
                call.root,
                ranks as usize,
            ),
            reduces: u32::from(call.operation.reduces()),
            ahead: ahead as u32,
            settles: u32::from(call.operation.is_rooted()),
        }
    }
}
