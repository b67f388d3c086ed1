//! Ranks on one GPU, and buffers for their calls.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use spark_ccl_cuda::cudarc::driver::{CudaContext, CudaStream};
use spark_ccl_cuda::{DeviceBlock, OwnStream, counted_stream};
use spark_ccl_gpu::{Call, Error, Member, Plan, Scratch, Settings, Wire};
use spark_ccl_testing::{Need, has, scramble};
use spark_ccl_types::{DType, Extent, Operation, ReduceOp, Side};

use crate::{host_memory, oracle};

/// The connections that may be between ranks.
pub(crate) const WIRES: [Wire; 3] = [Wire::Whole, Wire::Any, Wire::Host];
/// Bytes of a buffer.
pub(crate) const ROOM: usize = 16 << 20;
/// The byte around outputs.
pub(crate) const GUARD: u8 = 0xee;
/// Bytes before and behind an output that must stay as they are.
const MARGIN: usize = 64;

/// A rank: its stream and its buffers.
pub(crate) struct Rank {
    pub(crate) member: Member,
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) input: DeviceBlock,
    pub(crate) output: DeviceBlock,
}

/// Ranks on the first GPU. No other test uses it meanwhile.
pub(crate) struct Place {
    pub(crate) ranks: Vec<Rank>,
    pub(crate) copies: OwnStream,
    pub(crate) context: Arc<CudaContext>,
    _alone: MutexGuard<'static, ()>,
}

/// A call without its addresses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) operation: Operation,
    pub(crate) dtype: DType,
    pub(crate) op: ReduceOp,
    pub(crate) root: usize,
    pub(crate) count: usize,
    /// Of both buffers, by rank, in bytes.
    pub(crate) offset: usize,
    pub(crate) in_place: bool,
    pub(crate) seed: u64,
}

impl Place {
    /// `None`, and the test is skipped, without a GPU.
    pub(crate) fn new(ranks: usize, patience: Duration) -> Option<Self> {
        Self::with(ranks, patience, Wire::Whole)
    }

    /// The same, with this between the ranks.
    pub(crate) fn with(ranks: usize, patience: Duration, wire: Wire) -> Option<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: threads of this program that use CUDA, which reads the variable, wait for the
        // lock before. No other thread reads variables through C; threads that read them through
        // Rust's library take its lock.
        unsafe { std::env::set_var("CUDA_DEVICE_MAX_CONNECTIONS", "32") };
        if !has(Need::Gpu) {
            return None;
        }
        let context = spark_ccl_cuda::context(0).unwrap();
        let ranks = members(&context, ranks, patience, wire)
            .into_iter()
            .map(|member| Rank {
                member,
                stream: counted_stream(&context).unwrap(),
                input: DeviceBlock::new(&context, ROOM).unwrap(),
                output: DeviceBlock::new(&context, ROOM).unwrap(),
            });
        Some(Self {
            ranks: ranks.collect(),
            copies: OwnStream::new(&context).unwrap(),
            context,
            _alone: alone,
        })
    }

    /// The call of a rank. A buffer that it does not have is nowhere.
    pub(crate) fn call(&self, case: &Case, rank: usize) -> Call {
        let operation = case.operation;
        let own = &self.ranks[rank];
        let offset = (MARGIN + (case.offset + rank * case.offset / 3) % MARGIN) as u64;
        let (mut input, mut output) = (own.input.address() + offset, own.output.address() + offset);
        if case.in_place {
            let block = (rank * case.block()) as u64;
            output = input;
            match operation.own_block() {
                Some(Side::Output) => output += block,
                Some(Side::Input) => input += block,
                None => {}
            }
        }
        let is_used = |side| operation.uses(side, rank == case.root);
        Call {
            operation,
            dtype: case.dtype,
            op: case.op,
            factor: case.factor(rank),
            is_factor_in_memory: false,
            root: case.root,
            count: case.count,
            input: if is_used(Side::Input) { input } else { 0 },
            output: if is_used(Side::Output) { output } else { 0 },
            in_place: case.in_place,
            words: [case.seed, case.count as u64],
        }
    }

    /// Writes the inputs of all ranks, and guards around the outputs.
    pub(crate) fn prepare(&self, case: &Case) {
        assert!(
            case.block() * self.ranks.len() <= ROOM - 2 * MARGIN,
            "{case:?}"
        );
        let size = self.ranks.len();
        let whole = case.bytes(Side::Output, size) + 2 * MARGIN;
        for rank in 0..size {
            let call = self.call(case, rank);
            if !case.in_place && call.output != 0 {
                let around = call.output - MARGIN as u64;
                // SAFETY: guards, and the output between them, lie in the rank's output, which has
                // `ROOM`, as the assertion has checked. Calls before were waited for, so no kernel
                // uses it.
                unsafe { self.copies.write(around, &vec![GUARD; whole]).unwrap() };
            }
            if call.input != 0 {
                let input = case.input(rank, size);
                // SAFETY: the case's input lies in the rank's input, which has `ROOM`, as the
                // assertion has checked. Calls before were waited for, so no kernel uses it.
                unsafe { self.copies.write(call.input, &input).unwrap() };
            }
        }
    }

    /// Enqueues the call of all ranks.
    pub(crate) fn enqueue(&self, case: &Case, plan: Option<Plan>) {
        for (rank, own) in self.ranks.iter().enumerate() {
            let call = self.call(case, rank);
            let plan = plan.unwrap_or_else(|| own.member.plan(&call).unwrap());
            // SAFETY: `self` keeps the rank's buffers, which have `ROOM`, enough for the case, as
            // `prepare` has checked. Only this rank's stream uses them. All ranks enqueue the same
            // calls by the same plans, each in one stream.
            unsafe { own.member.enqueue_as(plan, &call, &own.stream).unwrap() };
        }
    }

    /// Waits for all ranks; the first one's error.
    pub(crate) fn wait(&self) -> Result<(), Error> {
        for own in &self.ranks {
            own.stream.synchronize().unwrap();
        }
        self.ranks.iter().try_for_each(|own| own.member.check())
    }

    /// Compares the results of all ranks, and what is around them.
    pub(crate) fn check(&self, case: &Case) {
        let size = self.ranks.len();
        let inputs: Vec<_> = (0..size).map(|rank| case.input(rank, size)).collect();
        let mut expected = Vec::new();
        for rank in 0..size {
            let output = self.call(case, rank).output;
            if output == 0 {
                continue;
            }
            // Where inputs have no blocks, all ranks have the same result.
            if expected.is_empty() || case.operation.extent(Side::Input) == Extent::Blocks {
                expected = case.expected(&inputs, rank);
            }
            let margin = if case.in_place { 0 } else { MARGIN };
            let mut seen = vec![0_u8; expected.len() + 2 * margin];
            let from = output - margin as u64;
            // SAFETY: result and guards lie in the rank's output, which has `ROOM`, and `seen`
            // takes any bytes. `wait` has waited for all streams, so no kernel writes there.
            unsafe { self.copies.read(from, &mut seen).unwrap() };
            let result = &seen[margin..margin + expected.len()];
            if result != expected {
                let wrong = result.iter().zip(&expected).position(|(a, b)| a != b);
                panic!("the first wrong byte of rank {rank}: {wrong:?}: {case:?}");
            }
            let around = seen[..margin]
                .iter()
                .chain(&seen[margin + expected.len()..]);
            assert!(
                around.copied().all(|byte| byte == GUARD),
                "guards of rank {rank}: {case:?}"
            );
        }
    }

    /// Runs a call by some plan, and checks it.
    pub(crate) fn run(&self, case: &Case, plan: Option<Plan>) {
        self.prepare(case);
        self.enqueue(case, plan);
        self.wait()
            .unwrap_or_else(|error| panic!("{error}: {case:?}, {plan:?}"));
        self.check(case);
    }
}

/// Ranks whose grids fit on the GPU together.
fn members(
    context: &Arc<CudaContext>,
    ranks: usize,
    patience: Duration,
    wire: Wire,
) -> Vec<Member> {
    let settings = Settings { ctas: 12, wire };
    let members = match wire {
        Wire::Host => join_in_host(context, ranks, settings),
        Wire::Any | Wire::Whole => join(context, ranks, settings),
    };
    for member in &members {
        member.set_patience(patience);
    }
    members
}

fn join(context: &Arc<CudaContext>, ranks: usize, settings: Settings) -> Vec<Member> {
    let all: Vec<_> = (0..ranks)
        .map(|_| Scratch::new(context, ranks).unwrap())
        .collect();
    let exported: Vec<Vec<_>> = (0..ranks)
        .map(|rank| {
            let of = |peer: usize| (peer != rank).then(|| all[peer].export().unwrap());
            (0..ranks).map(of).collect()
        })
        .collect();
    let members = all.into_iter().zip(exported).enumerate();
    members
        .map(|(rank, (own, peers))| Member::join(rank, own, peers, settings).unwrap())
        .collect()
}

fn join_in_host(context: &Arc<CudaContext>, ranks: usize, settings: Settings) -> Vec<Member> {
    let bytes = Scratch::bytes_in_host(ranks);
    let files: Vec<_> = (0..ranks).map(|_| host_memory::file(bytes)).collect();
    let map = |rank: usize| host_memory::registered(context, &files[rank], bytes);
    let join = |rank: usize| {
        let own = Scratch::in_host(context, ranks, map(rank)).unwrap();
        let of = |peer: usize| (peer != rank).then(|| map(peer));
        Member::join_in_host(rank, own, (0..ranks).map(of).collect(), settings).unwrap()
    };
    (0..ranks).map(join).collect()
}

impl Case {
    /// The bytes that go from a rank to another.
    pub(crate) fn block(&self) -> usize {
        self.count * self.dtype.size()
    }

    fn bytes(&self, side: Side, size: usize) -> usize {
        let extent = self.operation.extent(side);
        extent.elements(self.count as u64, size as u32) as usize * self.dtype.size()
    }

    /// A rank's factor.
    fn factor(&self, rank: usize) -> u64 {
        value(self.dtype, scramble(!self.seed, rank as u64))
    }

    /// A rank's input: values whose sums differ, and some of any bits.
    pub(crate) fn input(&self, rank: usize, size: usize) -> Vec<u8> {
        let length = self.bytes(Side::Input, size);
        let seed = self.seed << 8 | rank as u64;
        let mut bytes = vec![0; length];
        for (word, to) in (0..).zip(bytes.chunks_mut(8)) {
            let value = value(self.dtype, scramble(seed, word)).to_le_bytes();
            to.copy_from_slice(&value[..to.len()]);
        }
        bytes
    }

    /// A rank's result.
    fn expected(&self, inputs: &[Vec<u8>], rank: usize) -> Vec<u8> {
        let bytes = self.block();
        let begin = match self.operation.extent(Side::Input) {
            Extent::Blocks => rank * bytes,
            _ => 0,
        };
        let part = |input: &Vec<u8>| input[begin..begin + bytes].to_vec();
        let parts: Vec<_> = inputs.iter().map(part).collect();
        if self.operation.reduces() {
            return self.reduced(parts);
        }
        match self.operation.at_root() {
            Some(Side::Input) => parts[self.root].clone(),
            _ => parts.concat(),
        }
    }

    fn reduced(&self, mut parts: Vec<Vec<u8>>) -> Vec<u8> {
        if self.op == ReduceOp::PreMulSum {
            for (rank, part) in parts.iter_mut().enumerate() {
                *part = oracle::scaled(self.dtype, self.factor(rank), part);
            }
        }
        let parts: Vec<_> = parts.iter().map(|part| &part[..]).collect();
        oracle::reduced(self.dtype, self.op, &parts)
    }
}

/// A word of elements. Of floats, most have exponents near 1, so that sums round.
fn value(dtype: DType, random: u64) -> u64 {
    let (mask, one) = match dtype {
        DType::F16 => (0x87ff_87ff_87ff_87ff, 0x3800_3800_3800_3800),
        DType::Bf16 => (0x81ff_81ff_81ff_81ff, 0x3e00_3e00_3e00_3e00),
        DType::F32 => (0x81ff_ffff_81ff_ffff, 0x3e00_0000_3e00_0000),
        DType::F64 => (0x803f_ffff_ffff_ffff, 0x3fc0_0000_0000_0000),
        DType::F8E4M3 => (0x9f9f_9f9f_9f9f_9f9f, 0x2020_2020_2020_2020),
        DType::F8E5M2 => (0x8f8f_8f8f_8f8f_8f8f, 0x3030_3030_3030_3030),
        _ => return random,
    };
    if random.is_multiple_of(16) {
        random.rotate_left(21)
    } else {
        random & mask | one
    }
}
