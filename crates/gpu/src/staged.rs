//! Operations and messages by way of the host: for GPUs that do not reach each other's memory.
//!
//! A kernel copies pieces of its input to slots in the host's memory and rings for each. A thread
//! of the host takes the pieces in their order ([`Stage::rung`]), does the operation on them over
//! its links to the other ranks, and answers ([`Stage::answer`]). The kernel copies the results to
//! its output. The host's memory also has a description of each piece, and pieces are numbered in
//! the GPU's memory. So graphs may be launched any number of times, and the host needs no call of
//! the driver.
//!
//! If the buffers are themselves memory of the host, the host does the operation on them
//! ([`Stage::enqueue_on_buffers`]): the kernel rings once, with their addresses, and copies
//! nothing.
//!
//! A wait of the kernel ends when the host ends it ([`Stage::abort`]), or does no piece for the
//! length of the patience. A piece without an answer is not copied to the output.

mod cut;
mod host;
mod kernels;
mod layout;
mod posting;

use std::sync::Arc;
use std::time::Duration;

pub use cut::Cut;
use cut::blocks;
use host::HostPart;
pub use host::{Buffers, Lane, Rung};
pub(crate) use kernels::Kernels;
use layout::{Manner, Passing, Posting, STAGE_CTAS, StageLayout, Transfer};
use spark_ccl_cuda::cudarc::driver::{CudaContext, CudaStream};
use spark_ccl_cuda::{DeviceBlock, OwnStream, make_current, relaxed};
use spark_ccl_types::Side;

use crate::flows::{Launch, launches};
use crate::kept::{Kept, Settles};
use crate::launch::{Streams, first_turn, launch_in};
use crate::{Call, Error, Message, loaded};

/// The most threads of a CTA.
const THREADS: u64 = 512;
/// The lanes of a warp.
const LANES: u64 = 32;
/// How many bytes a thread copies at once.
const WORD: u64 = 16;

/// A rank's way to the host: slots in the host's memory, and the kernel that passes pieces through
/// them.
///
/// When it is dropped, its waits are ended. If one of its kernels may still run, it stays until all
/// that was enqueued in the GPU's context has run; if the driver cannot confirm that, the memory
/// stays for good.
#[derive(Debug)]
pub struct Stage {
    rank: usize,
    ranks: usize,
    ctas: u64,
    /// The lanes of operations, and of messages.
    operations: StageLayout,
    messages: StageLayout,
    parts: Kept<Parts>,
}

#[derive(Debug)]
struct Parts {
    kernels: Kernels,
    host: HostPart,
    state: DeviceBlock,
    streams: Streams,
    context: Arc<CudaContext>,
}

impl Stage {
    /// Reserves host memory for a rank, and loads and warms up the kernels. Operations take up to
    /// `ctas` CTAs, and never more than 8; messages one for each peer and direction. The patience
    /// is 30 s.
    ///
    /// # Errors
    /// There is not enough memory, there is no kernel for this GPU, or the driver fails.
    pub fn new(
        context: &Arc<CudaContext>,
        rank: usize,
        ranks: usize,
        ctas: u32,
    ) -> Result<Self, Error> {
        let host = HostPart::new(context, ranks)?;
        let state = DeviceBlock::zeroed(context, HostPart::state_bytes(ranks))?;
        let [operations, messages] = host.layout(context, state.address())?;
        let kernels = loaded::by_host(context)?;
        let stage = Self {
            rank,
            ranks,
            ctas: u64::from(ctas).clamp(1, STAGE_CTAS as u64),
            operations,
            messages,
            parts: Kept::new(Parts {
                kernels,
                host,
                state,
                streams: Streams::new(),
                context: Arc::clone(context),
            }),
        };
        stage.warm_up()?;
        Ok(stage)
    }

    /// How much of the host's memory it takes, in bytes.
    pub fn pinned_bytes(&self) -> usize {
        self.parts.host.bytes()
    }

    /// Launches the kernels without work, and waits: the driver's work at the first launch may wait
    /// for running kernels, and these may wait for a peer.
    fn warm_up(&self) -> Result<(), Error> {
        let context = &self.parts.context;
        let stream = OwnStream::new(context)?;
        // Without this, captures of other threads would make the wait fail.
        let _relaxed = relaxed(make_current(context)?)?;
        let Kernels {
            operations,
            messages,
        } = &self.parts.kernels;
        let mut passing = Passing {
            stage: self.operations,
            transfer: Transfer::NOTHING,
        };
        let mut posting = Posting::new(self.messages, &Launch::default(), self.ranks);
        let (grid, failed) = ([1, LANES as u32], self.operations.failed);
        // SAFETY: the state is in memory that `self` owns and that only these kernels use. `failed`
        // is set during the launches, so the kernels use nothing else. If the driver fails, the
        // drop of the stage waits for running kernels, or leaks the memory.
        unsafe {
            stream.write(failed, &[1_u32])?;
            let turn = first_turn(context);
            launch_in(stream.inner(), operations, grid, &mut passing)?;
            launch_in(stream.inner(), messages, grid, &mut posting)?;
            drop(turn);
            stream.write(failed, &[0_u32])?;
        }
        // SAFETY: `write` has waited for the stream of the only launches so far. Nothing else has
        // the stage yet.
        unsafe { self.parts.streams.note_idle() };
        Ok(())
    }

    /// Which rank it is.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Where the kernel counts its operations, in device memory.
    pub(crate) fn count_of_operations(&self) -> u64 {
        self.operations.operations
    }

    /// How many CTAs pass an operation of this many pieces; piece n goes to CTA n modulo that.
    pub fn ctas(&self, pieces: u64) -> u64 {
        pieces.min(self.ctas)
    }

    /// Enqueues an operation in a stream of the rank's GPU, or captures it into a graph; does not
    /// wait.
    ///
    /// # Safety
    /// - Both buffers must be as long as the call says. Until the operation has run, nothing else
    ///   may write the input, or use the output.
    /// - A rank's operations must run one after the other: in one stream, or in streams that wait
    ///   for each other. That includes launches of graphs. A graph must not be launched after the
    ///   stage was dropped.
    ///
    /// # Errors
    /// An earlier operation has failed, the operation is no collective of blocks, or the driver
    /// fails.
    pub unsafe fn enqueue(&self, call: &Call, stream: &Arc<CudaStream>) -> Result<(), Error> {
        let operation = call.operation;
        let (size, count) = (call.dtype.size(), call.count as u64);
        let cut = Cut::new(operation, size, count, self.ranks);
        let cut = cut.ok_or(Error::Operation { operation })?;
        let transfer = self.transfer(call, &cut);
        let blocks = u64::from(transfer.inputs.max(transfer.outputs));
        let threads = threads(transfer.piece.min(transfer.bytes) * blocks);
        let grid = [self.ctas(cut.pieces()) as u32, threads];
        // SAFETY: the transfer has the buffers of the call. The caller passes them as long as the
        // call says, leaves them to it until it has run, lets this rank's operations run one after
        // the other, and launches no graph of them after the stage was dropped.
        unsafe { self.launch(transfer, grid, stream) }
    }

    /// Enqueues an operation that the host does on the buffers themselves, as
    /// [`enqueue`](Self::enqueue) does one through slots. Its [`Rung`] has the buffers' addresses.
    /// The kernel ends when it has its answer, or when the host has [released](Self::release) the
    /// buffers.
    ///
    /// # Safety
    /// - Both buffers must be as long as the call says. Until the operation has run, only the host
    ///   may write the input, or use the output.
    /// - A rank's operations must run one after the other: in one stream, or in streams that wait
    ///   for each other. That includes launches of graphs. A graph must not be launched after the
    ///   stage was dropped.
    ///
    /// # Errors
    /// An earlier operation has failed, or the driver fails.
    pub unsafe fn enqueue_on_buffers(
        &self,
        call: &Call,
        stream: &Arc<CudaStream>,
    ) -> Result<(), Error> {
        let manner = if call.in_place {
            Manner::InPlace
        } else {
            Manner::OnBuffers
        };
        let transfer = Transfer {
            input: call.input,
            output: call.output,
            words: call.words,
            factor: call.factor,
            factor_bytes: call.factor_bytes(),
            manner,
            ..Transfer::NOTHING
        };
        // SAFETY: the transfer has no bytes to copy: the kernel passes the addresses on, and
        // touches no buffer. The caller lets this rank's operations run one after the other, and
        // launches no graph of them after the stage was dropped.
        unsafe { self.launch(transfer, [1, LANES as u32], stream) }
    }

    /// # Safety
    /// - The buffers must be as long as the transfer says. Until it has run, nothing else may write
    ///   the input, or use the output.
    /// - A rank's operations must run one after the other: in one stream, or in streams that wait
    ///   for each other. That includes launches of graphs. A graph must not be launched after the
    ///   stage was dropped.
    unsafe fn launch(
        &self,
        transfer: Transfer,
        grid: [u32; 2],
        stream: &Arc<CudaStream>,
    ) -> Result<(), Error> {
        self.check()?;
        let mut passing = Passing {
            stage: self.operations,
            transfer,
        };
        let Parts {
            kernels, streams, ..
        } = &*self.parts;
        // SAFETY: `passing` has the layout of the kernel's one parameter. Buffers are as long as
        // the transfer says, and the caller leaves them to it until it has run. The caller lets
        // this rank's operations run one after the other. The stage owns all other memory that the
        // arguments name. Its drop frees that only after all kernels have ended, and the caller
        // launches no graph after that.
        streams.launch(stream, || unsafe {
            launch_in(stream, &kernels.operations, grid, &mut passing)
        })
    }

    /// Enqueues messages in a stream of the rank's GPU, or captures them into a graph; does not
    /// wait. Messages from one rank to another are passed in order, and all others at the same
    /// time, as far as 80 messages and 32 directions fit into a launch. So they complete if each
    /// peer also passes its messages together, or waits for nothing else.
    ///
    /// # Safety
    /// - All buffers must be as long as the messages say. Until all have been passed, nothing else
    ///   may write what is sent, or use what is received.
    /// - A rank's operations must run one after the other: in one stream, or in streams that wait
    ///   for each other. That includes launches of graphs. A graph must not be launched after the
    ///   stage was dropped.
    /// - The kernels of ranks that share a GPU must be able to run at the same time.
    ///
    /// # Errors
    /// An earlier operation has failed, a peer is not a rank, or the driver fails;
    /// [`Error::InPart`] where a part was enqueued.
    pub unsafe fn pass(&self, messages: &[Message], stream: &Arc<CudaStream>) -> Result<(), Error> {
        self.check()?;
        let launches = launches(messages, self.rank, self.ranks)?;
        let Parts {
            kernels, streams, ..
        } = &*self.parts;
        for (number, launch) in launches.iter().enumerate() {
            let mut posting = Posting::new(self.messages, launch, self.ranks);
            let piece = |message: &Message| {
                let cut = Cut::of_message(message.bytes, self.ranks);
                cut.len().min(message.bytes)
            };
            let grid = [launch.ctas(), threads(launch.most(piece))];
            // SAFETY: `posting` has the layout of the kernel's one parameter. Buffers are as long
            // as the messages say, and the caller leaves them to these until all have passed. The
            // caller lets this rank's operations run one after the other, and at the same time as
            // those of ranks on the same GPU. The stage owns all other memory that the arguments
            // name. Its drop frees that only after all kernels have ended, and the caller launches
            // no graph after that.
            let launched = streams.launch(stream, || unsafe {
                launch_in(stream, &kernels.messages, grid, &mut posting)
            });
            launched.map_err(|error| error.after(number))?;
        }
        Ok(())
    }

    /// The kernel's argument for a call that is cut into pieces.
    fn transfer(&self, call: &Call, cut: &Cut) -> Transfer {
        let is_root = call.root == self.rank;
        let held = |side| {
            let has = call.operation.uses(side, is_root);
            let blocks = blocks(call.operation, side, self.ranks).filter(|_| has);
            blocks.unwrap_or(0) as u32
        };
        let size = call.dtype.size() as u64;
        Transfer {
            input: call.input,
            output: call.output,
            input_stride: call.stride(Side::Input),
            output_stride: call.stride(Side::Output),
            bytes: call.bytes(),
            piece: cut.len() * size,
            words: call.words,
            factor: call.factor,
            factor_bytes: call.factor_bytes(),
            inputs: held(Side::Input),
            outputs: held(Side::Output),
            is_shared: u32::from(cut.is_shared()),
            manner: Manner::InSlots,
        }
    }

    /// Checks whether an operation of this rank had no answer. Only reads host memory, and asks no
    /// driver.
    ///
    /// # Errors
    /// An operation had no answer.
    pub fn check(&self) -> Result<(), Error> {
        match self.parts.host.expired() {
            None => Ok(()),
            Some(patience) => Err(Error::Unanswered {
                rank: self.rank,
                seconds: patience.as_secs_f64(),
            }),
        }
    }

    /// Ends this rank's waits, for good. Waits for operations on buffers end by
    /// [`release`](Self::release) instead.
    pub fn abort(&self) {
        self.parts.host.abort();
    }

    /// Ends this rank's waits for operations on buffers, for good: the host does not use the
    /// buffers any more.
    pub fn release(&self) {
        self.parts.host.release();
    }

    /// Sets how long a kernel waits while the host does no piece, from now on, in waits that have
    /// begun and in graphs, too.
    pub fn set_patience(&self, patience: Duration) {
        self.parts.host.set_patience(patience);
    }

    /// How many pieces the host has answered for.
    pub fn answered(&self) -> u64 {
        self.parts.host.answered()
    }

    /// Ends the stage, as dropping it does. If the driver refuses to wait for running work, for
    /// instance while a stream of the context captures, it returns the stage, to be ended later.
    ///
    /// # Errors
    /// The driver fails.
    pub fn end(self) -> Result<(), Box<(Self, Error)>> {
        self.parts
            .end()
            .map_err(|(parts, error)| Box::new((Self { parts, ..self }, error)))
    }

    /// A kernel's report on a lane's piece `number`, counted from 1; `None` before it has rung for
    /// it.
    pub fn rung(&self, lane: Lane, number: u64) -> Option<Rung> {
        self.parts.host.rung(lane, number)
    }

    /// Where all slots begin, and how many bytes they have: one after the other, and nothing else.
    pub fn slots(&self) -> (*mut u8, usize) {
        self.parts.host.slots()
    }

    /// The slot of a lane's piece. From its [`rung`](Self::rung) to its [`answer`](Self::answer),
    /// no kernel uses it.
    pub fn slot(&self, lane: Lane, number: u64) -> *mut u8 {
        self.parts.host.slot(lane, number)
    }

    /// Tells the kernel that a piece's result is in its slot; or, for a message that is sent, that
    /// the slot has been read.
    pub fn answer(&self, lane: Lane, number: u64) {
        self.parts.host.answer(lane, number);
    }
}

impl Settles for Parts {
    fn settle(&self) -> Result<(), Error> {
        // Ends all waits: the thread that ends the stage does no operation on it.
        self.host.abort();
        self.host.release();
        if self.streams.may_run() {
            self.state.settle()?;
        }
        Ok(())
    }
}

/// The threads of CTAs that copy this many bytes at a time.
fn threads(bytes: u64) -> u32 {
    let words = bytes.div_ceil(WORD);
    words.next_multiple_of(LANES).clamp(LANES, THREADS) as u32
}
