//! Operations through slots: boxes, and the kernels that fill and read them. Boxes are in the
//! host's memory; their slots are there, or on the GPU.
//!
//! The proxies of `spark-ccl-slots`, which carry slots to the other ranks by the boxes of
//! [`Slots::boxes`], are not here.

mod mail;
mod pairs;

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use pairs::Pairs;
use spark_ccl_cuda::cudarc::driver::{CudaContext, CudaStream};
use spark_ccl_cuda::{DeviceBlock, DmaBuf, OwnStream, PinnedWords, make_current, relaxed};
use spark_ccl_slots::{
    Boxes, Counter, Exchanging, Form, Passed, Placement, Plan, PostBox, Route, Shape, SlotMember,
};
use spark_ccl_types::Operation;

use crate::flows::Launch;
use crate::kept::{Kept, Settles};
use crate::launch::{Streams, first_turn, launch_in};
use crate::layout::{MAX_RANKS, STATE_BYTES};
use crate::mailbox::Mailbox;
use crate::slot_kernels::Kernels;
use crate::{Call, Error, Stage, loaded};

/// The most lanes of calls, the slots of each lane, and their bytes: with the lane of messages, 4.5
/// MiB for a box.
const LANES: u32 = 8;
const DEPTH: usize = 8;
const PAYLOAD: usize = 64 << 10;
/// The settings that must be the same on all ranks: otherwise a rank would fill slots that others
/// do not have, or that another rank replaces by pieces.
pub(crate) const SETTINGS: [u64; 10] = [
    LANES as u64,
    DEPTH as u64,
    PAYLOAD as u64,
    Slots::FROM,
    Slots::LEAST[0],
    Slots::LEAST[1],
    Slots::FASTER[0],
    Slots::FASTER[1],
    Slots::ROOTED,
    Slots::RULE,
];
/// The words of `Journal`.
const JOURNAL: usize = 4;
/// The offset of `State::failed`.
const FAILED: u64 = 8;
/// The patience until [`Slots::set_patience`] is called.
const PATIENCE: Duration = Duration::from_secs(30);

/// A rank's boxes for each other rank, and the kernels that fill and read them.
///
/// When it is dropped, its waits are ended. If one of its kernels may still run, it stays until all
/// that was enqueued in the GPU's context has run; if the driver cannot confirm that, the memory
/// stays for good.
#[derive(Debug)]
pub struct Slots {
    member: SlotMember,
    /// The shape of the boxes; `of_calls` has the lanes of calls alone.
    shape: Shape,
    of_calls: Shape,
    least: u64,
    parts: Kept<Parts>,
}

#[derive(Debug)]
struct Parts {
    kernels: Kernels,
    /// By rank, the outbox and the inbox.
    boxes: Vec<Option<[PostBox; 2]>>,
    /// By rank, the slots of both, if they are on the GPU.
    on_device: Vec<Option<DeviceBlock>>,
    mailbox: Mailbox,
    journal: PinnedWords,
    state: DeviceBlock,
    /// Kept for its count of operations: kernels add it to their own for the number of a call.
    _stage: Arc<Stage>,
    streams: Streams,
    context: Arc<CudaContext>,
}

/// A rank's calls through slots, as its kernels report them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Calls {
    /// How many calls have begun.
    pub begun: u64,
    /// How many calls have ended.
    pub ended: u64,
    /// [`Call::words`] of the last call that has begun, if it has not ended; else perhaps those of
    /// the next one.
    pub words: [u64; 2],
}

impl Slots {
    /// The bytes from which on calls may go through slots; shorter ones may go by packets.
    pub const FROM: u64 = 64 << 10;
    /// The shortest slots that are as fast as longer ones, in bytes: where ranks share memory, and
    /// over links, where each slot is a message.
    pub const LEAST: [u64; 2] = [16 << 10, 64 << 10];
    /// The shortest blocks that are faster through slots than by pieces, and the longest ones of an
    /// `all_gather`, in bytes.
    pub const FASTER: [u64; 2] = [128 << 10, 8 << 20];
    /// The shortest blocks that are faster so in operations with a root, where ranks share memory.
    pub const ROOTED: u64 = 512 << 10;
    /// The number of the rule that decides which calls go through slots. Raise it with each change
    /// of the rule: ranks with different rules would wait for each other.
    pub(crate) const RULE: u64 = 9;

    /// Whether there are kernels for this many ranks.
    pub fn are_for(ranks: usize) -> bool {
        (2..=MAX_RANKS).contains(&ranks)
    }

    /// The depth of lanes, up to 8, with which the slots to and from another rank take at most
    /// `bytes`; 0 if there is no room for a slot.
    pub fn depth_within(bytes: usize, ctas: u32) -> usize {
        (bytes / (2 * (lanes(ctas) + 1) * PAYLOAD)).min(DEPTH)
    }

    /// Reserves memory for a rank (of 2 to 8), and loads and warms up the kernels. The rank's
    /// other operations go through `stage`: both together have one order, which ranks compare.
    /// Operations take up to `ctas` CTAs, never more than 8, with lanes of this depth. Slots have
    /// at least `least` bytes, unless the call is shorter. All ranks must pass the same values. The
    /// patience is 30 s. `placement` says where slots are.
    ///
    /// # Errors
    /// There is not enough memory, there is no kernel for this GPU, or the driver fails.
    pub fn new(
        context: &Arc<CudaContext>,
        stage: &Arc<Stage>,
        ctas: u32,
        depth: usize,
        least: u64,
        placement: Placement,
    ) -> Result<Self, Error> {
        let (rank, ranks) = (stage.rank(), stage.ranks());
        let with = |lanes| Ok::<_, Error>(Shape::new(lanes, depth, PAYLOAD)?.placed(placement));
        let (of_calls, shape) = (with(lanes(ctas))?, with(lanes(ctas) + 1)?);
        let passed = (ranks * shape.lanes() + 1 + ranks) * size_of::<Passed>();
        let state = STATE_BYTES + ranks * size_of::<Boxes>();
        let block = DeviceBlock::zeroed(context, state + passed)?;
        let mailbox = Mailbox::new(context, PATIENCE)?;
        let [control, failure] = mailbox.addresses_for(context)?;
        let journal = PinnedWords::new(context, JOURNAL * (1 + 2 * ranks))?;
        let Pairs {
            boxes,
            on_device,
            addresses,
        } = Pairs::new(context, shape, stage)?;
        let slots = Self {
            member: SlotMember {
                boxes: block.address() + STATE_BYTES as u64,
                passed: block.address() + state as u64,
                state: block.address(),
                others: stage.count_of_operations(),
                control,
                failure,
                journal: journal.address_for(context)?,
                heads: shape.heads() as u64,
                stride: shape.stride() as u64,
                packets: shape.packets() as u64,
                lanes: shape.lanes() as u32,
                depth: shape.depth() as u32,
                rank: rank as u32,
                ranks: ranks as u32,
            },
            shape,
            of_calls,
            least,
            parts: Kept::new(Parts {
                kernels: loaded::of_slots(context)?,
                boxes,
                on_device,
                mailbox,
                journal,
                state: block,
                _stage: Arc::clone(stage),
                streams: Streams::new(),
                context: Arc::clone(context),
            }),
        };
        slots.warm_up(&addresses)?;
        Ok(slots)
    }

    /// Tells the kernels where the boxes are, launches them without work, and waits. The driver's
    /// work at the first launch may wait for running kernels, and these may wait for a peer.
    fn warm_up(&self, boxes: &[Boxes]) -> Result<(), Error> {
        let context = &self.parts.context;
        let stream = OwnStream::new(context)?;
        // Without this, captures of other threads would make the wait fail.
        let _relaxed = relaxed(make_current(context)?)?;
        let plan = self.plan(Operation::AllReduce, 0);
        let mut nothing = self.nothing(&plan);
        let mut no_messages = self.mailing(&Launch::default());
        let (grid, failed) = ([1, plan.threads(0)], self.member.state + FAILED);
        // SAFETY: the state and the boxes' addresses are in memory that `self` owns and that only
        // these kernels use. `failed` is set during the launches, so the kernels use nothing else.
        // If the driver fails, the drop of the slots waits for running kernels, or leaks the
        // memory.
        unsafe {
            stream.write(self.member.boxes, boxes)?;
            stream.write(failed, &[1_u32])?;
            let turn = first_turn(context);
            let kernels = &self.parts.kernels;
            for kernel in kernels.of_calls() {
                launch_in(stream.inner(), kernel, grid, &mut nothing)?;
            }
            launch_in(stream.inner(), &kernels.messages, grid, &mut no_messages)?;
            drop(turn);
            stream.write(failed, &[0_u32])?;
        }
        // SAFETY: `write` has waited for the stream of the only launches so far. Nothing else has
        // the slots yet.
        unsafe { self.note_idle() };
        Ok(())
    }

    /// Which rank it is.
    pub fn rank(&self) -> usize {
        self.member.rank as usize
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.member.ranks as usize
    }

    /// How much of the host's memory it takes, in bytes.
    pub fn pinned_bytes(&self) -> usize {
        2 * (self.ranks() - 1) * self.shape.bytes()
    }

    /// How much of the GPU's memory its slots take, in bytes.
    pub fn device_bytes(&self) -> usize {
        2 * (self.ranks() - 1) * self.shape.bytes_on_device()
    }

    /// The plan by which all ranks do an operation on blocks of this many bytes.
    pub fn plan(&self, operation: Operation, bytes: u64) -> Plan {
        Plan::new(operation, bytes, self.ranks(), self.of_calls, self.least)
    }

    /// Which calls kernels have begun and ended. Once a call has ended, everything that its kernel
    /// has written to lanes is there. Packets may come later: each shows by itself that it has
    /// come.
    pub fn calls(&self) -> Calls {
        self.reported(0)
    }

    /// The report of the kernels at this place.
    fn reported(&self, place: usize) -> Calls {
        let word = |at: usize| &self.parts.journal.words()[JOURNAL * place + at];
        loop {
            // Acquire pairs with the kernels' fences in `Slots::tell` and `PacketExchange::begin`.
            let ended = word(1).load(Ordering::Acquire);
            // A kernel may write both between these two loads.
            let begun = word(0).load(Ordering::Acquire).max(ended);
            let words = [2, 3].map(|place| word(place).load(Ordering::Relaxed));
            // Orders the loads of the words before the next one: no later call has begun as long
            // as this one has not ended.
            fence(Ordering::Acquire);
            if word(1).load(Ordering::Relaxed) == ended {
                return Calls {
                    begun,
                    ended,
                    words,
                };
            }
        }
    }

    /// The outbox and the inbox for another rank.
    pub fn boxes(&self, peer: usize) -> Option<[PostBox; 2]> {
        self.parts.boxes.get(peer).cloned().flatten()
    }

    /// The slots for another rank that are on the GPU, as a dma-buf; `None` if they are in the
    /// host's memory. They are one range, first those of the outbox, as the boxes'
    /// [`ranges`](PostBox::ranges) say. RDMA devices that register them must end that before the
    /// slots are dropped.
    ///
    /// # Errors
    /// The GPU or its driver exports no dma-bufs.
    pub fn dma_buf(&self, peer: usize) -> Result<Option<DmaBuf>, Error> {
        let Some(Some(block)) = self.parts.on_device.get(peer) else {
            return Ok(None);
        };
        let bytes = 2 * self.shape.bytes_on_device();
        Ok(Some(block.dma_buf(bytes)?))
    }

    /// Where its slots are.
    pub fn placement(&self) -> Placement {
        self.shape.placement()
    }

    /// The GPU's context.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.parts.context
    }

    /// Counts calls from 0 on again: those so far were only to prove that slots pass. Slots keep
    /// their numbers.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Safety
    /// No call is running or enqueued, and each rank has ended the same number of them.
    pub unsafe fn count_anew(&self) -> Result<(), Error> {
        let stream = OwnStream::new(&self.parts.context)?;
        // SAFETY: the number of calls is the state's first word, in memory that `self` owns. The
        // caller says that no call is running or enqueued, so no kernel uses it.
        unsafe { stream.write(self.member.state, &[0_u64])? };
        for word in &self.parts.journal.words()[..2] {
            // Release pairs with the loads in `calls`: no kernel writes meanwhile.
            word.store(0, Ordering::Release);
        }
        Ok(())
    }

    /// Notes that no operation runs, until the next one is enqueued. The end of the slots then
    /// waits for nothing that runs on the GPU.
    ///
    /// # Safety
    /// All operations that were enqueued have run, none was captured, and none is enqueued
    /// meanwhile.
    pub unsafe fn note_idle(&self) {
        // SAFETY: only operations launch these kernels, but for those of the warm-up, which were
        // waited for before anything had the slots. The caller says that no operation runs.
        unsafe { self.parts.streams.note_idle() };
    }

    /// A number that changes as slots are passed.
    pub fn passed(&self) -> u64 {
        let boxes = || self.parts.boxes.iter().flatten();
        let packets = boxes().map(|[_, inbox]| inbox.packets_wanted());
        let lanes = boxes().flat_map(|[outbox, inbox]| {
            // Relaxed: no other read depends on it.
            let count =
                |of: &PostBox, lane, counter| of.counter(lane, counter).load(Ordering::Relaxed);
            (0..self.shape.lanes()).map(move |lane| {
                count(outbox, lane, Counter::Sent) + count(inbox, lane, Counter::Consumed)
            })
        });
        lanes.sum::<u64>() + packets.sum::<u64>()
    }

    /// Enqueues an operation in a stream of the rank's GPU, or captures it into a graph; does
    /// not wait.
    ///
    /// # Safety
    /// - Both buffers must be as long as the call says. Until the operation has run, nothing else
    ///   may write the input, or use the output.
    /// - A rank's operations must run one after the other: in one stream, or in streams that wait
    ///   for each other. That includes launches of graphs. A graph must not be launched after the
    ///   slots were dropped.
    ///
    /// # Errors
    /// An earlier operation has failed, the operation is another one, or the driver fails.
    pub unsafe fn enqueue(&self, call: &Call, stream: &Arc<CudaStream>) -> Result<(), Error> {
        self.check()?;
        let operation = call.operation;
        if Form::of(operation).is_empty() {
            return Err(Error::Operation { operation });
        }
        let layout = call.layout(self.rank(), self.ranks())?;
        let plan = self.plan(operation, layout.bytes);
        let (rank, ranks) = (self.rank(), self.ranks());
        let mut exchanging = Exchanging {
            input: layout.input,
            output: layout.output,
            bytes: layout.bytes,
            input_stride: layout.input_stride,
            output_stride: layout.output_stride,
            words: layout.words,
            factor: layout.factor,
            scaling: layout.scaling,
            combine: layout.combine,
            divisor: layout.divisor,
            dtype: layout.dtype,
            route: Route::new(operation, plan.form, rank, call.root, ranks),
            reduces: u32::from(operation.reduces()),
            settles: u32::from(operation.is_rooted()),
            ..self.nothing(&plan)
        };
        let threads = plan.threads(layout.bytes);
        let Parts {
            kernels, streams, ..
        } = &*self.parts;
        // SAFETY: `exchanging` has the layout of the kernel's one parameter. Buffers are as long as
        // the call says, and the caller leaves them to it until it has run. The caller lets this
        // rank's operations run one after the other. The slots own all other memory that the
        // arguments name. Their drop frees that only after all kernels have ended, and the caller
        // launches no graph after that.
        streams.launch(stream, || unsafe {
            launch_in(
                stream,
                kernels.of(&plan),
                [plan.ctas, threads],
                &mut exchanging,
            )
        })
    }

    /// A call without elements.
    fn nothing(&self, plan: &Plan) -> Exchanging {
        Exchanging {
            member: self.member,
            input: 0,
            output: 0,
            bytes: 0,
            input_stride: 0,
            output_stride: 0,
            piece: plan.piece,
            words: [0; 2],
            factor: 0,
            scaling: 0,
            combine: 0,
            divisor: 1,
            dtype: 0,
            route: Route::new(
                Operation::AllReduce,
                Form::Shared,
                self.rank(),
                0,
                self.ranks(),
            ),
            reduces: 0,
            ahead: plan.ahead,
            settles: 0,
        }
    }

    /// Checks whether an operation of this rank has failed; the error names the peer. Only reads
    /// host memory, and asks no driver.
    ///
    /// # Errors
    /// One has failed, or the waits were [ended](Self::abort).
    pub fn check(&self) -> Result<(), Error> {
        self.parts
            .mailbox
            .failure_of(self.rank())
            .map_or(Ok(()), Err)
    }

    /// Ends this rank's waits, for good.
    pub fn abort(&self) {
        self.parts.mailbox.abort();
    }

    /// Sets how long a kernel waits for a slot, from now on, in waits that have begun and in
    /// graphs, too.
    pub fn set_patience(&self, patience: Duration) {
        self.parts.mailbox.set_patience(patience);
    }

    /// Ends the slots, as dropping them does. If the driver refuses to wait for running work, for
    /// instance while a stream of the context captures, it returns them, to be ended later.
    ///
    /// # Errors
    /// The driver fails.
    pub fn end(self) -> Result<(), Box<(Self, Error)>> {
        self.parts
            .end()
            .map_err(|(parts, error)| Box::new((Self { parts, ..self }, error)))
    }
}

impl Settles for Parts {
    fn settle(&self) -> Result<(), Error> {
        self.mailbox.abort();
        if self.streams.may_run() {
            self.state.settle()?;
        }
        Ok(())
    }
}

fn lanes(ctas: u32) -> usize {
    ctas.clamp(1, LANES) as usize
}
