//! A process: its GPU, its boxes, and the threads that copy.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread::{JoinHandle, spawn, yield_now};

use spark_ccl_cuda::cudarc::driver::sys::{
    CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode,
};
use spark_ccl_cuda::cudarc::driver::{CudaContext, CudaGraph, CudaStream};
use spark_ccl_cuda::{
    DeviceBlock, Function, HostBlock, Images, OwnStream, counted_stream, elapsed_ms,
};
use spark_ccl_slots::{
    Boxes, Copying, Exchanging, Form, Kernel, Memory, Passed, PostBox, Proxy, Route, Shape,
    SlotMember,
};
use spark_ccl_transport::memory::SharedMemory;
use spark_ccl_types::{DType, Operation};

use crate::Result;

static IMAGES: Images = Images::new("slots.cu", spark_ccl_slots::IMAGES);

const LANES: usize = 32;
const DEPTH: usize = 4;
const SLOT: usize = 128 << 10;
const PAGE: usize = 4096;
const LAUNCHES: usize = 9;
/// How many turns in vain a thread makes before it lets others run.
const SPINS: u32 = 1000;

#[expect(clippy::expect_used, reason = "constants")]
static SHAPE: LazyLock<Shape> =
    LazyLock::new(|| Shape::new(LANES, DEPTH, SLOT).expect("there may be such slots"));
/// The bytes of a box, and of all that both processes share: four boxes, a page of each, and one of
/// both.
static BOX: LazyLock<usize> = LazyLock::new(|| SHAPE.bytes().next_multiple_of(PAGE));
pub(crate) static SHARED: LazyLock<usize> = LazyLock::new(|| 4 * *BOX + 3 * PAGE);

/// How a call is made.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) form: Form,
    pub(crate) is_small: bool,
    pub(crate) ahead: usize,
    pub(crate) piece: usize,
    pub(crate) ctas: u32,
}

/// What both processes map, from a place on.
#[derive(Clone)]
struct Shared(Arc<SharedMemory>, usize);

// SAFETY: the memory begins at a page, is new, and never moves; both processes use it as slots, but
// for pages that are no box's.
unsafe impl Memory for Shared {
    fn words(&self) -> &[AtomicU64] {
        #[expect(clippy::cast_ptr_alignment, reason = "memory begins at a page")]
        let (start, words) = (self.0.as_ptr().cast::<AtomicU64>(), self.0.len() / 8);
        // SAFETY: the memory is mapped as long as it lives, whole words from a page on, and all
        // processes use it by atomic accesses, or as slots, whose counters say who uses them.
        let all = unsafe { std::slice::from_raw_parts(start, words) };
        &all[self.1 / 8..]
    }
}

pub(crate) struct Rank {
    number: usize,
    member: SlotMember,
    kernels: [Function; 3],
    stream: Arc<CudaStream>,
    own: OwnStream,
    input: DeviceBlock,
    output: DeviceBlock,
    shared: Shared,
    meetings: u64,
    proxies: Vec<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
    _state: DeviceBlock,
    _block: HostBlock,
}

fn input_of(rank: usize, at: usize) -> u16 {
    bf16((at * 7 + rank * 3) % 64)
}

/// A number below 256.
fn bf16(number: usize) -> u16 {
    ((number as f32).to_bits() >> 16) as u16
}

/// What the kernels have: state, boxes and counters in a block of the GPU's; a page of the host.
fn member(rank: usize, state: u64, page: u64) -> SlotMember {
    SlotMember {
        boxes: state + 64,
        passed: state + 256,
        state,
        others: state + 32,
        control: page,
        failure: page + 1024,
        journal: page + 2048,
        slots: SHAPE.slots() as u64,
        stride: SHAPE.stride() as u64,
        packets: SHAPE.packets() as u64,
        lanes: LANES as u32,
        depth: DEPTH as u32,
        rank: rank as u32,
        ranks: 2,
    }
}

/// A rank's input of this many bytes.
fn filled(
    context: &Arc<CudaContext>,
    own: &OwnStream,
    rank: usize,
    bytes: usize,
) -> Result<DeviceBlock> {
    let input: Vec<_> = (0..bytes / 2).map(|at| input_of(rank, at)).collect();
    let block = DeviceBlock::new(context, bytes)?;
    // SAFETY: the block is as long, and nothing else uses it.
    unsafe { own.write(block.address(), &input)? };
    Ok(block)
}

impl Rank {
    pub(crate) fn new(
        rank: usize,
        memory: SharedMemory,
        threads: usize,
        most: usize,
    ) -> Result<Self> {
        let context = spark_ccl_cuda::context(rank % spark_ccl_cuda::count()?)?;
        let shared = Shared(Arc::new(memory), 0);
        let (start, bytes) = (shared.0.as_ptr(), shared.0.len());
        // SAFETY: the memory has this many bytes as long as the block owns it.
        let block = unsafe { HostBlock::register(&context, start, bytes, Arc::clone(&shared.0))? };
        let at = |of: usize, which: usize| (2 * of + which) * *BOX;
        let host = block.address();
        let own = OwnStream::new(&context)?;
        let passed = 2 * LANES * size_of::<Passed>();
        let state = DeviceBlock::zeroed(&context, 256 + passed)?;
        let boxes = [0, 1].map(|_| Boxes {
            outbox: host + at(rank, 0) as u64,
            inbox: host + at(rank, 1) as u64,
        });
        // SAFETY: the block has room, and nothing else uses it.
        unsafe { own.write(state.address() + 64, &boxes)? };
        let page = host + (4 * *BOX + (1 + rank) * PAGE) as u64;
        let member = member(rank, state.address(), page);
        let input = filled(&context, &own, rank, most)?;
        let kernels = IMAGES.load(&context)?;
        let kernel = |name| kernels.function(name);
        let mut made = Self {
            number: rank,
            member,
            kernels: [
                kernel("slots_direct_small")?,
                kernel("slots_direct_large")?,
                kernel("slots_shared_large")?,
            ],
            stream: counted_stream(&context)?,
            own,
            input,
            output: DeviceBlock::new(&context, most)?,
            shared,
            meetings: 0,
            proxies: Vec::new(),
            is_over: Arc::default(),
            _state: state,
            _block: block,
        };
        // The patience: 10 s.
        made.words_at(4 * *BOX + (1 + rank) * PAGE)[1].store(10_000_000_000, Ordering::Relaxed);
        made.start(threads, at)?;
        made.warm_up()?;
        made.meet();
        Ok(made)
    }

    /// Has the driver do what it does at the first launch in a stream, for one rank after the
    /// other: each gets a queue of its own. A rank alone passes no slots.
    fn warm_up(&self) -> Result<()> {
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        for kernel in &self.kernels {
            let mut call = self.exchanging(0, 16, 1, Form::Direct);
            (call.member.rank, call.member.ranks) = (0, 1);
            call.route = Route::new(Operation::AllReduce, Form::Shared, 0, 0, 1);
            let mut parameters = [(&raw mut call).cast()];
            // SAFETY: a rank alone touches its input and output, which have 16 bytes, and its
            // state, all of which `self` keeps until the stream has been waited for.
            unsafe { kernel.launch(&self.stream, [1, 32], &mut parameters)? };
        }
        self.stream.synchronize()?;
        Ok(())
    }

    pub(crate) fn is_first(&self) -> bool {
        self.number == 0
    }

    fn words_at(&self, at: usize) -> &[AtomicU64] {
        &self.shared.words()[at / 8..]
    }

    /// Starts the threads that copy. Thread I of N has lanes I, I + N, and so on.
    fn start(&mut self, threads: usize, at: impl Fn(usize, usize) -> usize) -> Result<()> {
        let of = |of, which| {
            let memory = Shared(Arc::clone(&self.shared.0), at(of, which));
            PostBox::new(Arc::new(memory), *SHAPE)
        };
        let (rank, peer) = (self.number, 1 - self.number);
        for thread in 0..threads {
            let (outbox, inbox) = (of(rank, 0)?, of(rank, 1)?);
            let carrier = Copying::new(outbox.clone(), of(peer, 1)?, of(peer, 0)?, Arc::default());
            let lanes = (thread..LANES).step_by(threads);
            let mut proxy = Proxy::new(outbox, inbox, carrier, lanes);
            let is_over = Arc::clone(&self.is_over);
            self.proxies.push(spawn(move || {
                // Where there are more threads than processors, others need this one.
                let mut idle = 0;
                while !is_over.load(Ordering::Relaxed) {
                    match proxy.turn() {
                        Ok(true) => idle = 0,
                        Ok(false) if idle < SPINS => idle += 1,
                        Ok(false) => yield_now(),
                        Err(error) => return eprintln!("{error}"),
                    }
                    std::hint::spin_loop();
                }
            }));
        }
        Ok(())
    }

    /// Waits for the other process.
    fn meet(&mut self) {
        self.meetings += 1;
        let met = &self.words_at(4 * *BOX)[0];
        met.fetch_add(1, Ordering::AcqRel);
        while met.load(Ordering::Acquire) < 2 * self.meetings {
            yield_now();
        }
    }

    /// The larger one of both processes' numbers.
    fn larger(&mut self, own: f64) -> f64 {
        let of = |rank: usize| 16 + 16 * rank;
        self.words_at(4 * *BOX)[of(self.number)].store(own.to_bits(), Ordering::Relaxed);
        self.meet();
        let both = [0, 1]
            .map(|rank| f64::from_bits(self.words_at(4 * *BOX)[of(rank)].load(Ordering::Relaxed)));
        self.meet();
        both[0].max(both[1])
    }

    /// Microseconds of a call, of the slower process: the fewest, and the median.
    pub(crate) fn time(&mut self, bytes: usize, plan: Plan) -> Result<[f64; 2]> {
        let calls = if bytes >= 8 << 20 { 5 } else { 50 };
        let nothing = vec![0xffff_u16; bytes / 2];
        // SAFETY: the block is as long, and no kernel runs.
        unsafe { self.own.write(self.output.address(), &nothing)? };
        let graph = self.captured(bytes, plan, calls)?;
        let flags = Some(CUevent_flags::CU_EVENT_DEFAULT);
        let mut times = Vec::new();
        for launch in 0..LAUNCHES {
            self.meet();
            let begin = self.stream.record_event(flags)?;
            graph.launch()?;
            let end = self.stream.record_event(flags)?;
            self.stream.synchronize()?;
            let own = f64::from(elapsed_ms(&begin, &end)?) * 1e3 / f64::from(calls);
            let slower = self.larger(own);
            if launch > 1 {
                times.push(slower);
            }
        }
        self.check(bytes, plan)?;
        times.sort_by(f64::total_cmp);
        Ok([times[0], times[times.len() / 2]])
    }

    fn captured(&self, bytes: usize, plan: Plan, calls: u32) -> Result<CudaGraph> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode)?;
        for _ in 0..calls {
            self.enqueue(bytes, plan)?;
        }
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = self
            .stream
            .end_capture(flags)?
            .ok_or("nothing was captured")?;
        graph.upload()?;
        self.stream.synchronize()?;
        Ok(graph)
    }

    fn exchanging(&self, bytes: usize, piece: usize, ahead: usize, form: Form) -> Exchanging {
        Exchanging {
            member: self.member,
            input: self.input.address(),
            output: self.output.address(),
            bytes: bytes as u64,
            input_stride: 0,
            output_stride: 0,
            piece: piece as u64,
            words: [bytes as u64, 0],
            factor: 0,
            scaling: 0,
            combine: 0,
            divisor: 1,
            dtype: u32::from(DType::Bf16.code()),
            route: Route::new(Operation::AllReduce, form, self.number, 0, 2),
            reduces: 1,
            ahead: ahead as u32,
            unused: 0,
        }
    }

    fn enqueue(&self, bytes: usize, plan: Plan) -> Result<()> {
        let mut call = self.exchanging(bytes, plan.piece, plan.ahead, plan.form);
        let (kernel, of) = match (plan.form, plan.is_small) {
            (Form::Direct, true) => (&self.kernels[0], Kernel::Small),
            (Form::Direct, false) => (&self.kernels[1], Kernel::Large),
            (Form::Shared, _) => (&self.kernels[2], Kernel::Large),
        };
        let words = plan.piece.min(bytes).div_ceil(16) as u32;
        let threads = words.next_multiple_of(32).clamp(32, of.most_threads());
        let mut parameters = [(&raw mut call).cast()];
        // SAFETY: the kernel's parameter has this layout. All memory that it names lives as long as
        // this, which waits for all kernels.
        unsafe { kernel.launch(&self.stream, [plan.ctas, threads], &mut parameters)? };
        Ok(())
    }

    /// Compares all of the result.
    fn check(&self, bytes: usize, plan: Plan) -> Result<()> {
        let failure = self.words_at(4 * *BOX + (1 + self.number) * PAGE + 1024);
        let failed = failure[0].load(Ordering::Acquire);
        let mut seen = vec![0_u16; bytes / 2];
        // SAFETY: the block is as long, and no kernel runs.
        unsafe { self.own.read(self.output.address(), &mut seen)? };
        let expected = |at: usize| bf16((at * 7) % 64 + (at * 7 + 3) % 64);
        let wrong = seen
            .iter()
            .enumerate()
            .find(|&(at, &seen)| seen != expected(at));
        match wrong {
            None if failed == 0 => Ok(()),
            _ => Err(format!(
                "rank {}, {bytes} bytes in {} of {}: failed {failed:x}, wrong: {wrong:x?}",
                self.number, plan.ctas, plan.piece
            )
            .into()),
        }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for proxy in self.proxies.drain(..) {
            // One that has failed has said so.
            let _ = proxy.join();
        }
    }
}
