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
    Boxes, Carrier, Copying, Exchanging, Form, Kernel, Memory, Passed, Placement, PostBox, Proxy,
    Route, Shape, SlotMember,
};
use spark_ccl_transport::memory::SharedMemory;
use spark_ccl_types::{DType, Operation};

use crate::Result;
use crate::driven::Driven;

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

/// The form and the cut of a call.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) form: Form,
    pub(crate) is_small: bool,
    pub(crate) ahead: usize,
    pub(crate) piece: usize,
    pub(crate) ctas: u32,
}

/// The memory that both processes map, from a place on.
#[derive(Clone)]
struct Shared(Arc<SharedMemory>, usize);

// SAFETY: the memory begins at a page, so at a multiple of 128 bytes; it is new, so all 0; and its
// mapping never moves. Kernels and proxies of both processes use the boxes as slots; the pages
// behind these are no box's.
unsafe impl Memory for Shared {
    fn words(&self) -> &[AtomicU64] {
        #[expect(clippy::cast_ptr_alignment, reason = "memory begins at a page")]
        let (start, words) = (self.0.as_ptr().cast::<AtomicU64>(), self.0.len() / 8);
        // SAFETY: the mapping begins at a page, holds these `words` words, and lives as long as
        // `self.0`. Both processes use words by atomic accesses, or as slots, each of which only
        // one side writes at a time, as the counters say.
        let all = unsafe { std::slice::from_raw_parts(start, words) };
        &all[self.1 / 8..]
    }
}

pub(crate) struct Rank {
    number: usize,
    shape: Shape,
    member: SlotMember,
    kernels: [Function; 3],
    stream: Arc<CudaStream>,
    own: OwnStream,
    input: DeviceBlock,
    output: DeviceBlock,
    shared: Shared,
    meetings: u64,
    proxies: Vec<JoinHandle<()>>,
    /// Ends the proxies' threads. Orders no other memory: relaxed.
    is_over: Arc<AtomicBool>,
    /// The slots of the outbox and the inbox, if they are on the GPU.
    slots: Option<DeviceBlock>,
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

/// The kernels' memory: state, boxes and counters in a block of the GPU's; a page of the host.
fn member(rank: usize, shape: Shape, state: u64, page: u64) -> SlotMember {
    SlotMember {
        boxes: state + 64,
        passed: state + 256,
        state,
        others: state + 32,
        control: page,
        failure: page + 1024,
        journal: page + 2048,
        heads: shape.heads() as u64,
        stride: shape.stride() as u64,
        packets: shape.packets() as u64,
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
    // SAFETY: `input` and the block both have `bytes` bytes, and no one else has the block yet.
    unsafe { own.write(block.address(), &input)? };
    Ok(block)
}

impl Rank {
    pub(crate) fn new(
        rank: usize,
        memory: SharedMemory,
        placement: Placement,
        threads: usize,
        most: usize,
    ) -> Result<Self> {
        let shape = SHAPE.placed(placement);
        let context = spark_ccl_cuda::context(rank % spark_ccl_cuda::count()?)?;
        let shared = Shared(Arc::new(memory), 0);
        let (start, bytes) = (shared.0.as_ptr(), shared.0.len());
        // SAFETY: the bytes stay mapped while `shared.0` lives, and the block has a clone of it.
        let block = unsafe { HostBlock::register(&context, start, bytes, Arc::clone(&shared.0))? };
        let at = |of: usize, which: usize| (2 * of + which) * *BOX;
        let host = block.address();
        let own = OwnStream::new(&context)?;
        let passed = 2 * LANES * size_of::<Passed>();
        let state = DeviceBlock::zeroed(&context, 256 + passed)?;
        let slots = match shape.bytes_on_device() {
            0 => None,
            bytes => Some(DeviceBlock::zeroed(&context, 2 * bytes)?),
        };
        let own_boxes = [0, 1].map(|which| host + at(rank, which) as u64);
        let on_device = slots.as_ref().map(|block| slots_in(block.address(), shape));
        let boxes = [(); 2].map(|()| Boxes::new(shape, own_boxes, on_device));
        // SAFETY: `boxes` fit into the state's 256 bytes, which nothing else uses yet.
        unsafe { own.write(state.address() + 64, &boxes)? };
        let page = host + (4 * *BOX + (1 + rank) * PAGE) as u64;
        let member = member(rank, shape, state.address(), page);
        let input = filled(&context, &own, rank, most)?;
        let kernels = IMAGES.load(&context)?;
        let kernel = |name| kernels.function(name);
        let mut made = Self {
            number: rank,
            shape,
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
            slots,
            _state: state,
            _block: block,
        };
        // The patience: 10 s.
        made.words_at(4 * *BOX + (1 + rank) * PAGE)[1].store(10_000_000_000, Ordering::Relaxed);
        made.start(&context, threads, at)?;
        made.warm_up()?;
        made.meet();
        Ok(made)
    }

    /// Has the driver prepare the first launch in a stream, for one rank after the other: each gets
    /// a queue of its own. A rank alone passes no slots.
    fn warm_up(&self) -> Result<()> {
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        for kernel in &self.kernels {
            let mut call = self.exchanging(0, 16, 1, Form::Direct);
            (call.member.rank, call.member.ranks) = (0, 1);
            call.route = Route::new(Operation::AllReduce, Form::Shared, 0, 0, 1);
            let mut parameters = [(&raw mut call).cast()];
            // SAFETY: the kernel's parameter is `call`, which has its layout. It touches the rank's
            // input and output, which have 16 bytes, and its state. No other kernel uses these, and
            // `self` keeps them until the stream was waited for.
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
    fn start(
        &mut self,
        context: &Arc<CudaContext>,
        threads: usize,
        at: impl Fn(usize, usize) -> usize,
    ) -> Result<()> {
        let addresses = self.addresses();
        let of = |of: usize, which: usize| {
            let memory = Shared(Arc::clone(&self.shared.0), at(of, which));
            let on_device = addresses.map(|of_rank| slots_in(of_rank[of], self.shape)[which]);
            PostBox::new(Arc::new(memory), self.shape, on_device)
        };
        let (rank, peer) = (self.number, 1 - self.number);
        for thread in 0..threads {
            let [outbox, inbox] = [of(rank, 0)?, of(rank, 1)?];
            let [target, credits] = [of(peer, 1)?, of(peer, 0)?];
            let lanes = (thread..LANES).step_by(threads);
            let is_over = Arc::clone(&self.is_over);
            let proxy = if addresses.is_some() {
                let carrier = Driven::new(context, outbox.clone(), target, credits)?;
                let proxy = Proxy::new(outbox, inbox, carrier, lanes);
                spawn(move || carry(proxy, &is_over))
            } else {
                let carrier = Copying::new(outbox.clone(), target, credits, Arc::default());
                let proxy = Proxy::new(outbox, inbox, carrier, lanes);
                spawn(move || carry(proxy, &is_over))
            };
            self.proxies.push(proxy);
        }
        Ok(())
    }

    /// Where both ranks' slots are, if they are on GPUs: both ranks are of one process, so that one
    /// GPU reaches the other's memory at the same address.
    fn addresses(&mut self) -> Option<[u64; 2]> {
        const FIRST: usize = 48;
        let own = self.slots.as_ref()?.address();
        let number = self.number;
        // Relaxed, as the loads below: `meet` orders them.
        self.words_at(4 * *BOX)[FIRST + number].store(own, Ordering::Relaxed);
        self.meet();
        let all = self.words_at(4 * *BOX);
        Some([0, 1].map(|rank| all[FIRST + rank].load(Ordering::Relaxed)))
    }

    /// Waits for the other process.
    fn meet(&mut self) {
        self.meetings += 1;
        let met = &self.words_at(4 * *BOX)[0];
        // Release pairs with the other process' load, so that what each wrote before is seen after.
        met.fetch_add(1, Ordering::AcqRel);
        // Acquire pairs with the other process' addition.
        while met.load(Ordering::Acquire) < 2 * self.meetings {
            yield_now();
        }
    }

    /// The larger one of both processes' numbers.
    fn larger(&mut self, own: f64) -> f64 {
        let of = |rank: usize| 16 + 16 * rank;
        // Relaxed, as the loads below: `meet` orders them.
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
        // SAFETY: `nothing` and the output's first part both have `bytes` bytes. No kernel uses the
        // output: earlier calls were waited for, and `captured` enqueues the next ones only below.
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
            settles: 0,
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
        // SAFETY: the kernel's one parameter is `call`, which has its layout and which the driver
        // copies. The memory that it names belongs to `self`. The kernel is only captured, and
        // `time` waits for each launch of the graph.
        unsafe { kernel.launch(&self.stream, [plan.ctas, threads], &mut parameters)? };
        Ok(())
    }

    /// Compares all of the result.
    fn check(&self, bytes: usize, plan: Plan) -> Result<()> {
        let failure = self.words_at(4 * *BOX + (1 + self.number) * PAGE + 1024);
        // Acquire pairs with the kernel's `release_long` in `failure.h`.
        let failed = failure[0].load(Ordering::Acquire);
        let mut seen = vec![0_u16; bytes / 2];
        // SAFETY: `seen` and the output's first part both have `bytes` bytes, and any bytes are a
        // number. The calls were waited for, so no kernel writes the output.
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

/// Where the slots of an outbox and an inbox are in a block.
fn slots_in(block: u64, shape: Shape) -> [u64; 2] {
    [block, block + shape.bytes_on_device() as u64]
}

/// Passes slots until the rank is over.
fn carry(mut proxy: Proxy<impl Carrier>, is_over: &AtomicBool) {
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
