//! Ranks, calls, and what runs them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::yield_now;

use spark_ccl_testing::scramble;
use spark_ccl_types::{DType, ReduceOp};

use super::{Play, oracle, play};
use crate::conformance::{End, Make};
use crate::{
    Boxes, Carrier, Counter, Error, Form, Passed, PostBox, Proxy, Reducing, Shape, SlotMember,
};

pub(super) const LANES: usize = 3;
const SLOT: usize = 256;

/// An `all_reduce`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) dtype: DType,
    pub(super) op: ReduceOp,
    pub(super) count: usize,
    pub(super) piece: usize,
    pub(super) ctas: u32,
    pub(super) in_place: bool,
    /// Whether each rank's input has a factor.
    pub(super) is_scaled: bool,
    /// What numbers its elements.
    pub(super) seed: u64,
    pub(super) word: u64,
}

impl Call {
    pub(super) fn bytes(&self) -> usize {
        self.count * self.dtype.size()
    }

    fn factor(&self, rank: usize) -> u64 {
        scramble(self.seed ^ 0x77, rank as u64)
    }

    pub(super) fn input(&self, rank: usize) -> Vec<u8> {
        let bytes =
            (0..self.bytes() as u64).map(|at| scramble(self.seed << 8 ^ at, rank as u64) as u8);
        bytes.collect()
    }

    pub(super) fn expected(&self, ranks: usize) -> Vec<u8> {
        let inputs = (0..ranks).map(|rank| {
            let input = self.input(rank);
            if !self.is_scaled {
                return input;
            }
            oracle::scaled(self.dtype, self.factor(rank), &input)
        });
        let inputs: Vec<_> = inputs.collect();
        let inputs: Vec<_> = inputs.iter().map(|input| &input[..]).collect();
        oracle::reduced(self.dtype, self.op, &inputs)
    }
}

/// Guards around an output, that nothing may write.
const AROUND: u8 = 0xa5;
const MARGIN: usize = 32;

/// A rank's buffers of a call: they begin anywhere.
pub(super) struct Buffers {
    input: Vec<u8>,
    output: Vec<u8>,
    start: usize,
    call: Call,
    rank: usize,
}

impl Buffers {
    fn new(call: Call, rank: usize) -> Self {
        let size = call.dtype.size();
        let start = MARGIN + scramble(call.seed, rank as u64) as usize % 16 / size * size;
        let mut input = vec![AROUND; start + call.bytes() + MARGIN];
        input[start..][..call.bytes()].copy_from_slice(&call.input(rank));
        let output = vec![AROUND; input.len()];
        Self {
            input,
            output,
            start,
            call,
            rank,
        }
    }

    /// The result, if nothing else was written.
    pub(super) fn result(&self) -> Option<&[u8]> {
        let (start, end) = (self.start, self.start + self.call.bytes());
        let output = if self.call.in_place {
            &self.input
        } else {
            &self.output
        };
        let is_kept = |bytes: &[u8]| bytes.iter().all(|&byte| byte == AROUND);
        let input = self.input[start..end] == self.call.input(self.rank)[..];
        let is_right =
            is_kept(&output[..start]) && is_kept(&output[end..]) && (self.call.in_place || input);
        is_right.then(|| &output[start..end])
    }

    /// Whether nothing was written at all.
    pub(super) fn is_untouched(&self) -> bool {
        let result = self.result();
        result.is_some_and(|result| {
            let before = self.call.input(self.rank);
            if self.call.in_place {
                result == before
            } else {
                result.iter().all(|&byte| byte == AROUND)
            }
        })
    }
}

/// What a rank's kernels have.
pub(super) struct Rank {
    member: SlotMember,
    /// Longer than a proxy that has failed.
    _memory: Vec<PostBox>,
    _boxes: Vec<Boxes>,
    _passed: Vec<Passed>,
    _state: Vec<u64>,
    control: Arc<[AtomicU64; 2]>,
    failure: Arc<[AtomicU64; 8]>,
}

/// What `Failure` says.
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

    pub(super) fn abort(&self) -> Arc<[AtomicU64; 2]> {
        Arc::clone(&self.control)
    }
}

pub(super) struct World {
    pub(super) form: Form,
    pub(super) ahead: usize,
    pub(super) ranks: Vec<Rank>,
    proxies: Vec<Vec<Proxy<Box<dyn Carrier>>>>,
    /// What proxies have met.
    pub(super) faults: Mutex<Vec<Error>>,
}

fn start(of: &PostBox) -> u64 {
    of.counter(0, Counter::Published)
        .as_ptr()
        .expose_provenance() as u64
}

impl World {
    pub(super) fn new(
        make: Make,
        form: Form,
        (ranks, ahead, depth): (usize, usize, usize),
    ) -> Self {
        let shape = Shape::new(LANES, depth, SLOT).unwrap();
        // By rank and peer.
        let mut ends = BTreeMap::new();
        for (one, other) in (0..ranks).flat_map(|one| (0..one).map(move |other| (one, other))) {
            let [first, second] = make(shape, &Arc::default());
            ends.extend([((one, other), first), ((other, one), second)]);
        }
        let mut world = Self {
            form,
            ahead,
            ranks: Vec::new(),
            proxies: Vec::new(),
            faults: Mutex::default(),
        };
        for rank in 0..ranks {
            let ends: Vec<_> = (0..ranks).map(|peer| ends.remove(&(rank, peer))).collect();
            world.ranks.push(Rank::new(rank, &ends, shape));
            let proxy = |end: End| Proxy::new(end.outbox, end.inbox, end.carrier, 0..LANES);
            world
                .proxies
                .push(ends.into_iter().flatten().map(proxy).collect());
        }
        world
    }

    /// Has each rank make its calls; one that has none is away. The buffers of each.
    pub(super) fn run(&mut self, calls: &[Vec<Call>], seed: u64) -> Option<Vec<Vec<Buffers>>> {
        let play = play()?;
        let is_over = AtomicBool::new(false);
        let (form, ahead, ranks) = (self.form, self.ahead, &self.ranks);
        let mut buffers: Vec<Vec<_>> = (calls.iter().enumerate())
            .map(|(rank, calls)| calls.iter().map(|&call| Buffers::new(call, rank)).collect())
            .collect();
        let barriers: Vec<_> = ranks.iter().map(|_| Barrier::new(LANES)).collect();
        let slow = seed as usize % ranks.len();
        std::thread::scope(|scope| {
            for proxies in &mut self.proxies {
                let (is_over, faults) = (&is_over, &self.faults);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        proxies.retain_mut(|proxy| goes_on(proxy, faults, ranks));
                        yield_now();
                    }
                });
            }
            let mut kernels = Vec::new();
            for (rank, buffers) in buffers.iter_mut().enumerate() {
                let launches = buffers.iter_mut();
                let launches = launches.map(|of_call| Launch {
                    ctas: of_call.call.ctas,
                    arguments: ranks[rank].arguments(of_call, ahead),
                });
                let launches: Vec<_> = launches.collect();
                for cta in 0..LANES as u32 {
                    let (launches, barrier) = (launches.clone(), &barriers[rank]);
                    let cta = Cta {
                        number: cta,
                        form,
                        seed: scramble(seed ^ u64::from(cta), rank as u64),
                        pauses: if rank == slow { 40 } else { 2000 },
                    };
                    kernels.push(scope.spawn(move || cta.run(play, &launches, barrier)));
                }
            }
            for kernel in kernels {
                kernel.join().unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        Some(buffers)
    }

    pub(super) fn set_patience(&self, milliseconds: u64) {
        for rank in &self.ranks {
            rank.control[1].store(milliseconds * 1_000_000, Ordering::Relaxed);
        }
    }
}

/// A turn of a proxy; whether there is another one. All ranks hear of a fault, as by the control
/// plane.
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
#[derive(Clone)]
struct Launch {
    ctas: u32,
    arguments: Reducing,
}

/// What plays a CTA in all launches.
struct Cta {
    number: u32,
    form: Form,
    seed: u64,
    pauses: u32,
}

impl Cta {
    fn run(&self, play: Play, launches: &[Launch], barrier: &Barrier) {
        for (call, Launch { ctas, arguments }) in launches.iter().enumerate() {
            // As kernels of a stream.
            barrier.wait();
            if self.number >= *ctas {
                continue;
            }
            let (seed, is_shared) = (self.seed ^ call as u64, self.form == Form::Shared);
            // SAFETY: the arguments have this layout, and name memory of the rank and buffers that
            // live until all threads have ended. Nothing else uses the buffers; calls run one after
            // the other.
            unsafe { play(arguments, self.number, *ctas, is_shared, seed, self.pauses) };
        }
    }
}

impl Rank {
    fn new(rank: usize, ends: &[Option<End>], shape: Shape) -> Self {
        let boxes = ends.iter().map(|end| {
            end.as_ref().map_or(Boxes::default(), |end| Boxes {
                outbox: start(&end.outbox),
                inbox: start(&end.inbox),
            })
        });
        let boxes: Vec<_> = boxes.collect();
        let mut passed = vec![Passed::default(); ends.len() * LANES];
        let mut state = vec![0_u64; 3];
        let control = Arc::new([const { AtomicU64::new(0) }; 2]);
        control[1].store(60_000_000_000, Ordering::Relaxed);
        let failure = Arc::new([const { AtomicU64::new(0) }; 8]);
        let member = SlotMember {
            boxes: boxes.as_ptr().expose_provenance() as u64,
            passed: passed.as_mut_ptr().expose_provenance() as u64,
            state: state.as_mut_ptr().expose_provenance() as u64,
            control: control.as_ptr().expose_provenance() as u64,
            failure: failure.as_ptr().expose_provenance() as u64,
            slots: shape.slots() as u64,
            stride: shape.stride() as u64,
            lanes: LANES as u32,
            depth: shape.depth() as u32,
            rank: rank as u32,
            ranks: ends.len() as u32,
        };
        let memory = ends.iter().flatten();
        let memory = memory.flat_map(|end| [end.outbox.clone(), end.inbox.clone()]);
        Self {
            member,
            _memory: memory.collect(),
            _boxes: boxes,
            _passed: passed,
            _state: state,
            control,
            failure,
        }
    }

    fn arguments(&self, buffers: &mut Buffers, ahead: usize) -> Reducing {
        let call = buffers.call;
        let input = buffers.input[buffers.start..]
            .as_mut_ptr()
            .expose_provenance() as u64;
        let output = buffers.output[buffers.start..]
            .as_mut_ptr()
            .expose_provenance() as u64;
        let mean = call.op == ReduceOp::Avg;
        let (ranks, is_whole) = (self.member.ranks, call.dtype.is_integer());
        let (factor, scaling) = match (call.is_scaled, mean && !is_whole) {
            (true, _) => (call.factor(buffers.rank), 1),
            (_, true) => ((1.0 / f64::from(ranks)).to_bits(), 2),
            _ => (0, 0),
        };
        let op = if mean { ReduceOp::Sum } else { call.op };
        Reducing {
            member: self.member,
            input,
            output: if call.in_place { input } else { output },
            bytes: call.bytes() as u64,
            piece: call.piece as u64,
            words: [call.word, call.count as u64],
            factor,
            scaling,
            combine: u32::from(op.code()),
            divisor: if mean && is_whole { ranks } else { 1 },
            dtype: u32::from(call.dtype.code()),
            ahead: ahead as u32,
            unused: 0,
        }
    }
}
