//! Device memory by way of the host. Kernels pass pieces to slots in the host's memory; a thread of
//! this process has the host engine do the operation on them, over its links. On memory that is
//! itself the host's, it does the whole operation.

mod exchange;
mod opened;
mod pool;
mod prepared;
mod probe;
mod proxy;
mod proxy_queue;
mod proxy_work;
mod stall;

use std::sync::Arc;
use std::time::Duration;

pub(super) use opened::OpenedBoxes;
pub(in crate::device) use pool::Pool;
use pool::is_pinned;
pub(super) use prepared::Prepared;
use proxy_queue::{ProxyQueue, Use};
use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_cuda::is_capturing;
use spark_ccl_gpu::{self as gpu, Call, Cut, Message, Slots, Stage};
use spark_ccl_slots::{Form, Kernel, Placement};
use spark_ccl_types::{DType, Operation, Signature};

use crate::device::kernels::messages::is_of_messages;
use crate::device::kernels::patience::Patience;
use crate::host::HostEngine;
use crate::plan::Explanation;

/// How much longer than the host a kernel waits: the host knows more about the cause.
const GRACE: Duration = Duration::from_secs(5);

/// Which calls go through slots, besides short ones by packets. The same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BySlots {
    /// None: over RDMA, the receivers' devices read pieces where they lie, and would not write
    /// slots.
    PacketsOnly,
    /// All calls: RDMA devices write slots where the receivers' GPUs reduce them. By pieces, one
    /// core reduces.
    Put,
    /// The calls that are faster by slots over links.
    OverLinks,
    /// The calls that are faster by slots where ranks share memory.
    InMemory,
    /// All calls of [`Slots::FROM`] bytes and more.
    All,
}

impl BySlots {
    /// Whether an operation on blocks of this many bytes goes through slots. Measured on an H200
    /// that two processes share, on blocks of 128 KiB to 16 MiB, as the time by slots over the time
    /// by pieces. `all_reduce` took 0.9 to 1.2, and over TCP never below 1 from 4 MiB on;
    /// `reduce_scatter` 0.6 to 0.9. `all_to_all` took 0.7 to 1.03; `all_gather` 0.8 to 0.98, and
    /// 1.09 for 16 MiB over TCP. On two H200, with a GPU for each rank, operations with a root took
    /// 1.02 to 1.26 at 128 KiB, and 0.44 to 0.9 at 2 and 32 MiB. Over TCP they took 0.8 to 1.56
    /// there.
    fn have(self, operation: Operation, bytes: u64) -> bool {
        let [faster_from, faster_to] = Slots::FASTER;
        match self {
            Self::OverLinks | Self::InMemory => match operation {
                Operation::AllReduce => false,
                Operation::AllGather => (faster_from..=faster_to).contains(&bytes),
                _ if operation.is_rooted() => self == Self::InMemory && bytes >= Slots::ROOTED,
                _ => bytes >= faster_from,
            },
            Self::All => bytes >= Slots::FROM,
            Self::Put => true,
            Self::PacketsOnly => false,
        }
    }

    /// Whether messages go through slots, of any length: one way for all, so that the receiver
    /// finds a wrong one. Devices write them where the receiver's GPU copies them, and no processor
    /// copies; nothing was measured.
    pub(super) fn have_messages(self) -> bool {
        matches!(self, Self::Put | Self::All)
    }

    /// The shortest slots that carry calls of several slots, in bytes.
    pub(super) fn least(self) -> u64 {
        let [in_memory, over_links] = Slots::LEAST;
        match self {
            Self::OverLinks | Self::PacketsOnly => over_links,
            Self::InMemory | Self::All | Self::Put => in_memory,
        }
    }
}

/// A rank's slots, and which calls go through them.
pub(super) struct BoxesOf {
    pub(super) slots: Arc<Slots>,
    pub(super) by_slots: BySlots,
    /// The boxes, if RDMA devices may put slots.
    pub(super) opened: Option<OpenedBoxes>,
}

/// A rank's stage, and what passes its pieces and slots.
pub(in crate::device) struct Staged {
    /// Before the stage, so it is dropped first: that ends the thread's use of the stage.
    proxy_handle: ProxyHandle,
    stage: Arc<Stage>,
    /// For short operations and long ones; `None` where there are too many ranks, or no memory.
    slots: Option<(Arc<Slots>, BySlots)>,
    /// The host engine of the communicator that carries the pieces.
    host: Arc<HostEngine>,
    /// Whether pieces stay in their slots until a device of a receiver reads them.
    lends: bool,
    /// Whether RDMA devices put slots into the peers' inboxes.
    puts: bool,
    /// Makes the user's memory, if `alloc_device` gives memory of the host; `None` if it gives
    /// memory of the GPU.
    pool: Option<Pool>,
}

/// The use of a stage by the thread that passes pieces. The drop ends it, and waits for its end.
struct ProxyHandle(Arc<ProxyQueue>);

impl ProxyHandle {
    /// Stops passing pieces. Waits until the thread has given up the pieces under way.
    fn end(&self) -> Use {
        self.close();
        let end = self.0.wait_for_end();
        if end == Use::Over {
            drop(self.0.take_left());
        }
        end
    }

    fn close(&self) {
        self.0.close();
        proxy::wake();
    }
}

impl Drop for ProxyHandle {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for Staged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Staged")
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}

impl Staged {
    /// Makes the user's memory, if `alloc_device` gives memory of the host.
    pub(in crate::device) fn pool(&self) -> Option<&Pool> {
        self.pool.as_ref()
    }

    /// This transport, described for people.
    pub(super) fn path(&self) -> String {
        let slots = self.slots.as_ref().map(|(slots, _)| slots);
        let in_slots = slots.map_or(0, |slots| slots.pinned_bytes());
        let own = match self.pool {
            Some(_) => {
                "; memory from alloc_device is the host's, and collectives on it are not staged"
            }
            None => "",
        };
        let puts = match slots {
            Some(slots) if slots.placement() == Placement::Device => format!(
                "; RDMA devices write slots into the memory of the receiver's GPU, {} bytes of it",
                slots.device_bytes()
            ),
            Some(_) if self.puts => {
                "; RDMA devices write slots where the receiver's GPU reads them".to_owned()
            }
            _ => String::new(),
        };
        format!(
            "staged through the host, up to {}, {} bytes of pinned memory, of which {in_slots} for \
             slots{puts}{own}",
            some(self.stage.ctas(u64::MAX), "CTA"),
            self.stage.pinned_bytes() + in_slots
        )
    }

    /// How a call is done, for people.
    pub(super) fn explain(
        &self,
        operation: Operation,
        dtype: DType,
        count: usize,
    ) -> Option<String> {
        let (size, ranks) = (dtype.size(), self.stage.ranks());
        let bytes = count.saturating_mul(size) as u64;
        if is_of_messages(operation) {
            return Some(self.explain_message(bytes));
        }
        let staged = if let Some(slots) = self.slots_for(operation, bytes) {
            by_slots(slots, operation, bytes)
        } else {
            let cut = Cut::new(operation, size, count as u64, ranks)?;
            let len = cut.elements(0).end;
            format!(
                "staged, {} of up to {} bytes on {}, each on the host by {}",
                some(cut.pieces(), "piece"),
                len * size as u64,
                some(self.stage.ctas(cut.pieces()), "CTA"),
                self.choice(operation, dtype, len, cut.is_shared()),
            )
        };
        Some(match self.pool {
            None => staged,
            Some(_) => format!(
                "on the host, on memory from alloc_device itself, by {}; other memory: {staged}",
                self.choice(operation, dtype, count as u64, false),
            ),
        })
    }

    fn explain_message(&self, bytes: u64) -> String {
        let (how, pieces, most) = if let Some(slots) = self.slots_for_messages() {
            let piece = slots.piece_of_message(bytes);
            let pieces = if piece == 0 { 1 } else { bytes.div_ceil(piece) };
            ("staged through slots", pieces, piece)
        } else {
            let cut = Cut::of_message(bytes, self.stage.ranks());
            ("staged", cut.pieces(), cut.elements(0).end)
        };
        format!(
            "{how}, {} of up to {most} bytes, one CTA for each peer and direction",
            some(pieces, "piece")
        )
    }

    /// The slots, if messages to and from other ranks go through them.
    fn slots_for_messages(&self) -> Option<&Arc<Slots>> {
        let (slots, by_slots) = self.slots.as_ref()?;
        by_slots.have_messages().then_some(slots)
    }

    /// How the host does an operation of this many elements.
    fn choice(
        &self,
        operation: Operation,
        dtype: DType,
        count: u64,
        in_place: bool,
    ) -> Explanation {
        let signature = Signature::plain(operation, dtype, count);
        let planner = self.host.planner();
        Explanation {
            lends: self.lends && planner.may_lend(signature, in_place),
            ..planner.explain(signature, in_place, false)
        }
    }

    /// Enqueues an operation.
    ///
    /// # Safety
    /// - Both buffers must be as long as the call says. Until the operation has run, nothing else
    ///   may write the input, or use the output.
    /// - A rank's operations, and launches of graphs that have captured some, must run one after
    ///   the other. A graph must not be launched after this was dropped.
    pub(super) unsafe fn enqueue(
        &self,
        call: &Call,
        stream: &Arc<CudaStream>,
    ) -> Result<(), gpu::Error> {
        let expected = self.proxy_handle.0.expect(is_capturing(stream)?);
        let bytes = (call.count * call.dtype.size()) as u64;
        // SAFETY: buffers are as long as the call says, and the caller leaves them to it until it
        // has run. The caller lets this rank's operations run one after the other, and launches no
        // graph of them after `self` was dropped, which owns the stage and the slots.
        unsafe {
            match self.slots_for(call.operation, bytes) {
                _ if !self.stages(call) => self.stage.enqueue_on_buffers(call, stream)?,
                Some(slots) => slots.enqueue(call, stream)?,
                None => self.stage.enqueue(call, stream)?,
            }
        }
        expected.keep();
        proxy::wake();
        Ok(())
    }

    /// The slots, if an operation of this length goes through them.
    fn slots_for(&self, operation: Operation, bytes: u64) -> Option<&Arc<Slots>> {
        let (slots, by_slots) = self.slots.as_ref()?;
        let has_form = !Form::of(operation).is_empty();
        let by_packets = || slots.plan(operation, bytes).kernel == Kernel::Packets;
        (has_form && (by_slots.have(operation, bytes) || by_packets())).then_some(slots)
    }

    /// Whether a call goes through the host's memory, and is not on memory that is itself the
    /// host's.
    pub(super) fn is_copied_by_host(&self, call: &Call) -> bool {
        let bytes = (call.count * call.dtype.size()) as u64;
        let slots = self.slots_for(call.operation, bytes);
        let are_on_gpu = slots.is_some_and(|slots| slots.placement() == Placement::Device);
        !are_on_gpu && self.stages(call)
    }

    /// Whether a call goes through slots, and not straight between its buffers.
    fn stages(&self, call: &Call) -> bool {
        let (rank, ranks) = (self.stage.rank(), self.stage.ranks());
        self.pool.is_none() || !is_pinned(call, rank, ranks)
    }

    /// Enqueues messages.
    ///
    /// # Safety
    /// - All buffers must be as long as the messages say. Until all have been passed, nothing else
    ///   may write what is sent, or use what is received.
    /// - A rank's operations, and launches of graphs that have captured some, must run one after
    ///   the other. A graph must not be launched after this was dropped.
    /// - The kernels of ranks that share a GPU must be able to run at the same time.
    pub(super) unsafe fn pass(
        &self,
        messages: &[Message],
        stream: &Arc<CudaStream>,
    ) -> Result<(), gpu::Error> {
        let slots = self.slots_for_messages();
        // Messages to this rank itself go by pieces.
        let is_by_slots = |message: &Message| slots.is_some() && message.peer != self.rank();
        let (through, others): (Vec<_>, Vec<_>) = messages.iter().copied().partition(is_by_slots);
        let (queue, is_captured) = (&self.proxy_handle.0, is_capturing(stream)?);
        let expected = queue.expect_messages([through.len(), others.len()], is_captured);
        // SAFETY: buffers are as long as the messages say, and the caller leaves them to these
        // until all have passed. The caller lets this rank's operations run one after the other,
        // and at the same time as those of ranks on the same GPU. No graph of them is launched
        // after `self` was dropped, which owns the stage and the slots.
        unsafe {
            if let Some(slots) = slots.filter(|_| !through.is_empty()) {
                slots.pass(&through, stream)?;
            }
            if !others.is_empty() {
                let passed = self.stage.pass(&others, stream);
                passed.map_err(|error| error.after(through.len()))?;
            }
        }
        expected.keep();
        proxy::wake();
        Ok(())
    }

    pub(super) fn check(&self) -> Result<(), gpu::Error> {
        self.stage.check()?;
        let slots = self.slots.as_ref();
        slots.map_or(Ok(()), |(slots, _)| slots.check())
    }

    /// How many pieces and slots were passed.
    pub(super) fn progress(&self) -> u64 {
        let slots = self.slots.as_ref();
        self.stage.answered() + slots.map_or(0, |(slots, _)| slots.passed())
    }

    pub(super) fn abort(&self) {
        self.abort_waits();
        self.proxy_handle.close();
    }

    fn abort_waits(&self) {
        self.stage.abort();
        if let Some((slots, _)) = &self.slots {
            slots.abort();
        }
    }

    pub(super) fn set_patience(&self, patience: Patience) {
        self.stage
            .set_patience(patience.limit().saturating_add(GRACE));
        if let Some((slots, _)) = &self.slots {
            slots.set_patience(patience.limit());
        }
        match patience {
            Patience::Longest(limit) => self.host.set_timeout(limit),
            Patience::Over(limit) => self.host.cut_short(limit),
        }
    }

    pub(super) fn rank(&self) -> usize {
        self.stage.rank()
    }

    /// Ends it once everything in the GPU's context has run. Returns it with the error if the
    /// driver does not wait for that.
    pub(super) fn end(mut self) -> Result<(), Box<(Self, gpu::Error)>> {
        self.abort_waits();
        if self.proxy_handle.end() == Use::Abandoned {
            std::mem::forget(self);
            return Ok(());
        }
        // The proxy's thread has dropped its reference.
        if let Some((slots, by_slots)) = self.slots.take()
            && let Ok(slots) = Arc::try_unwrap(slots)
            && let Err(failed) = slots.end()
        {
            let (slots, error) = *failed;
            self.slots = Some((Arc::new(slots), by_slots));
            return Err(Box::new((self, error)));
        }
        // Memory that a device refuses to deregister keeps the stage for good.
        let rank = self.stage.rank();
        let Some(stage) = Arc::into_inner(self.stage) else {
            spark_ccl_log::warn!("rank {rank}: pinned memory of staged calls is never freed");
            return Ok(());
        };
        stage.end().map_err(|failed| {
            let (stage, error) = *failed;
            let stage = Arc::new(stage);
            Box::new((Self { stage, ..self }, error))
        })
    }
}

/// How a call goes through slots, for people.
fn by_slots(slots: &Slots, operation: Operation, bytes: u64) -> String {
    let plan = slots.plan(operation, bytes);
    if plan.kernel == Kernel::Packets {
        return "staged by packets on 1 CTA, straight to all ranks".to_owned();
    }
    let form = match plan.form {
        Form::Direct => "straight to the ranks that need them",
        Form::Shared => "to ranks that pass on a share each",
    };
    format!(
        "staged through slots, pieces of up to {} bytes on {}, {form}",
        plan.piece.min(bytes),
        some(u64::from(plan.ctas), "CTA"),
    )
}

/// A number of things, in words.
fn some(count: u64, name: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {name}{plural}")
}
