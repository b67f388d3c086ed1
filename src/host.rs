//! The engine of one communicator: its operations in flight, and what makes them progress. Knows
//! tasks, plans and links; knows neither communicators nor Rust's types of elements.

mod abort;
mod at_once;
mod blocked;
mod call_details;
mod direct;
mod engine;
mod exchange;
mod execution;
mod first_caller;
mod in_memory;
mod loans;
mod op_table;
mod pair_tag;
mod probe;
mod request;
mod run;
mod running_op;
mod signal;
mod single_copy;
mod sleep;
mod spin_budget;
mod stall;
#[cfg(test)]
mod tests;
mod transfer;
mod unread;
mod watchdog;
mod wires;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use abort::or_abort;
pub(crate) use engine::{HostEngine, Ids, first_done, push_all};
use execution::{Advance, Execution};
use first_caller::FirstCaller;
use loans::Loans;
use op_table::OpId;
use op_table::OpTable;
use request::{Request, pair_of};
use run::Run;
use running_op::RunningOp;
use spark_ccl_control::{Leave, MOST_CALLS, Messages, Watch};
use spark_ccl_sched::Rank;
use spark_ccl_status::Peer;
#[cfg(feature = "cuda")]
use spark_ccl_transport::LinkError;
use spark_ccl_transport::Rails;
use spin_budget::SpinBudget;
use unread::Refusal;
#[cfg(feature = "cuda")]
pub(crate) use watchdog::is_to_be_told;
pub(crate) use wires::Wires;

use crate::error::Error;
use crate::mesh::peer_link::PeerLink;
#[cfg(feature = "cuda")]
use crate::mesh::{Halves, SLOTS_LANE};
use crate::observe::Observed;
use crate::plan::{Planner, Program, Programs};
use crate::task::Task;

/// Operations in flight and the links they share. Collectives run one after the other, in the order
/// of their calls; point-to-point operations run beside them, in order per peer and direction.
pub(crate) struct Core {
    wires: Wires,
    watch: Arc<Watch>,
    /// Notes the operations for observers, if there are any.
    observed: Option<Arc<Observed>>,
    /// The timeout of operations that begin from now on.
    timeout: Duration,
    programs: Programs,
    ops: OpTable,
    collectives: VecDeque<OpId>,
    /// Point-to-point operations; only the queues that are used.
    pair_queues: BTreeMap<(Rank, Direction), PairQueue>,
    /// Of ranks that have ended: how many messages were received when looks began to find no more,
    /// and when that was.
    missing: BTreeMap<Rank, (u64, Instant)>,
    /// Point-to-point operations that are queued or running.
    pairs: usize,
    sequence: u64,
    /// The number of calls that only sent, since this rank last received something.
    unheard: u32,
    broken: Option<Error>,
    /// No calls begin any more.
    is_closed: bool,
    spin_budget: SpinBudget,
    /// Something moved, or was queued, since the engine was last unlocked.
    has_news: bool,
    /// A thread blocks on the links.
    is_blocked: bool,
    /// The thread that made the first call, for other engines of the process.
    first_caller: FirstCaller,
    /// Remarks for the user, emitted once the engine is unlocked.
    remarks: Vec<String>,
}

/// A direction, as this rank sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Direction {
    Out,
    In,
}

/// Point-to-point operations in one direction with one peer.
#[derive(Default)]
struct PairQueue {
    queue: VecDeque<OpId>,
    sequence: u64,
}

impl Core {
    /// Gives the caller the link of slots to a rank, once it is made, and the most bytes of its
    /// messages. Asks for it only if this rank needs it; the peer may ask, too.
    #[cfg(feature = "cuda")]
    pub(crate) fn take_link(
        &mut self,
        peer: Rank,
        needs: bool,
    ) -> Result<Option<(Halves, usize)>, LinkError> {
        let link = self.wires.give((peer, SLOTS_LANE), needs)?;
        Ok(link.map(|halves| (halves, self.wires.slot_bytes)))
    }

    pub(crate) fn new(
        wires: Wires,
        watch: Arc<Watch>,
        observed: Option<Arc<Observed>>,
        timeout: Duration,
    ) -> Self {
        Self {
            wires,
            watch,
            observed,
            timeout,
            programs: Programs::default(),
            ops: OpTable::default(),
            collectives: VecDeque::new(),
            pair_queues: BTreeMap::new(),
            missing: BTreeMap::new(),
            pairs: 0,
            sequence: 0,
            unheard: 0,
            broken: None,
            is_closed: false,
            spin_budget: SpinBudget::default(),
            has_news: false,
            is_blocked: false,
            first_caller: FirstCaller::default(),
            remarks: Vec::new(),
        }
    }

    /// How many messages it has passed with each rank, where `count` counts those of a queue.
    fn messages(&self, count: impl Fn(&PairQueue) -> u64) -> BTreeMap<Rank, Messages> {
        let mut messages: BTreeMap<Rank, Messages> = BTreeMap::new();
        for (&(peer, direction), queue) in &self.pair_queues {
            let messages = messages.entry(peer).or_default();
            match direction {
                Direction::Out => messages.sent = count(queue),
                Direction::In => messages.received = count(queue),
            }
        }
        messages
    }

    /// The farewell of a rank that does nothing more of what is in flight.
    pub(crate) fn leave_now(&self) -> Leave {
        let done = |queue: &PairQueue| queue.sequence.saturating_sub(queue.queue.len() as u64);
        Leave {
            messages: Some(self.messages(done)),
            ..Leave::after(self.watch.finished())
        }
    }

    /// Whether the data of all that is done have left this rank.
    pub(crate) fn has_flushed(&self) -> bool {
        self.wires.unflushed.is_empty()
    }

    /// This rank's farewell to the others.
    pub(crate) fn leave(&mut self) -> Leave {
        let messages = self.messages(|queue| queue.sequence);
        let unread = self.unread().map(|unread| unread.sequence);
        let last = (1..=self.sequence).rev().take(MOST_CALLS - 1);
        let calls = unread.into_iter().chain(last);
        let calls = calls.filter_map(|sequence| Some((sequence, self.watch.called(sequence)?)));
        Leave {
            is_in_flight: !self.is_idle(),
            calls: calls.collect(),
            messages: Some(messages),
            ..Leave::after(self.sequence)
        }
    }

    /// Refuses all further calls. Calls that other threads have begun go on.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        if self.is_idle() {
            self.broken = Some(ended());
        }
    }

    /// The link to each rank.
    pub(crate) fn links(&self) -> Vec<PeerLink> {
        let mut links = self.wires.mesh().peers().to_vec();
        for (peer, link) in (0..).zip(&mut links) {
            link.is_far = self.wires.is_far(peer);
        }
        links
    }

    /// The state of the rails to each rank.
    pub(crate) fn rails(&self) -> Vec<Rails> {
        self.wires.rails()
    }

    /// Whether nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.collectives.is_empty() && self.pairs == 0 && self.wires.unflushed.is_empty()
    }

    /// Runs a collective to its end if that takes no more polls than `budget`; otherwise queues it
    /// and returns its name. Most small collectives never enter the queue.
    fn run_inline(
        &mut self,
        task: &Task,
        planner: &Planner,
        budget: SpinBudget,
    ) -> Result<Option<OpId>, Refusal> {
        self.check()?;
        self.programs.find(planner, task)?;
        if self.programs.last().receives() {
            self.unheard = 0;
        } else {
            self.begin_unheard()?;
        }
        let program = self.programs.last();
        self.first_caller.note();
        let number = enter(
            &mut self.sequence,
            task,
            &self.watch,
            self.observed.as_deref(),
        );
        let mut loans = Loans::default();
        let execution = if self.collectives.is_empty() {
            self.wires.flush();
            let run = Run {
                task,
                program,
                tag: number.tag,
                first_lane: 0,
                wires: &mut self.wires,
                loans: &mut loans,
            };
            let Some(execution) = Execution::run_inline(run, budget) else {
                complete(task, number.record, self.observed.as_deref());
                self.watch.finish(number.sequence);
                return Ok(None);
            };
            execution
        } else {
            Execution::default()
        };
        let (task, program) = (task.clone(), program.clone());
        let request = Request { task, program };
        let limit = self.limit_of(&request);
        let running = RunningOp::collective(request, number, execution, loans, limit);
        let id = self.ops.insert(running);
        self.collectives.push_back(id);
        self.has_news = true;
        Ok(Some(id))
    }

    /// Queues an operation.
    fn issue(&mut self, request: Request) -> OpId {
        self.has_news = true;
        self.first_caller.note();
        if let Program::PointToPoint(step) = &request.program {
            let pair = pair_of(step);
            return self.issue_pair(request, pair, true);
        }
        let observed = self.observed.as_deref();
        let number = enter(&mut self.sequence, &request.task, &self.watch, observed);
        let (execution, loans) = (Execution::default(), Loans::default());
        let limit = self.limit_of(&request);
        let running = RunningOp::collective(request, number, execution, loans, limit);
        let id = self.ops.insert(running);
        self.collectives.push_back(id);
        id
    }

    /// The timeout of an operation that begins now.
    fn limit_of(&self, request: &Request) -> Duration {
        request.task.limit.unwrap_or(self.timeout)
    }

    /// Queues a message, or a part of one. Later parts have the number and the tag of the first.
    fn issue_pair(&mut self, request: Request, pair: (Rank, Direction), is_first: bool) -> OpId {
        self.has_news = true;
        let limit = self.limit_of(&request);
        self.first_caller.note();
        // The link may take what nobody will read. Messages that the peer has sent are received all
        // the same.
        if let (peer, Direction::Out) = pair
            && let Some(fault) = self.watch.latent_of(peer)
        {
            self.watch.raise(fault);
        }
        let queue = self.pair_queues.entry(pair).or_default();
        queue.sequence += u64::from(is_first);
        let record = self.observed.as_ref().map(|observed| {
            let peer = match pair {
                (peer, Direction::Out) => Peer::To(peer),
                (peer, Direction::In) => Peer::From(peer),
            };
            observed.call(&request.task, queue.sequence, Some(peer))
        });
        let id = self
            .ops
            .insert(RunningOp::pair(request, queue.sequence, record, limit));
        queue.queue.push_back(id);
        self.pairs += 1;
        id
    }

    /// Advances everything that can move. Returns whether anything did.
    pub(crate) fn progress(&mut self) -> bool {
        if self.broken.is_some() {
            return false;
        }
        if self.watch.failed() {
            self.fail();
            self.has_news = true;
            return true;
        }
        self.wires.flush();
        let (ops, wires) = (&mut self.ops, &mut self.wires);
        let (watch, observed) = (&*self.watch, self.observed.as_deref());
        let (mut moved, _) = work_off(&mut self.collectives, ops, wires, watch, observed);
        if self.pairs > 0 {
            for pair in self.pair_queues.values_mut() {
                let (some, ended) = work_off(&mut pair.queue, ops, wires, watch, observed);
                moved |= some;
                self.pairs -= ended;
            }
        }
        // Counts as moved: a wait that was armed before does not include the new link.
        moved |= self.wires.have_grown();
        self.has_news |= moved;
        moved
    }

    /// Whether the first collective waits for a link to be made.
    fn lacks_link(&mut self) -> bool {
        let first = self.collectives.front();
        let running = first.and_then(|&id| self.ops.running(id));
        running.is_some_and(|running| running.execution.lacks_link())
    }

    /// Waits a moment for what the first collective lacks.
    fn spin(&mut self) {
        if let Some(&id) = self.collectives.front()
            && let Some(running) = self.ops.running(id)
        {
            running
                .execution
                .spin(&mut self.wires, self.spin_budget.polls_per_round());
        }
    }

    /// Returns the error that ended this communicator, or that of calls after its orderly end.
    #[inline]
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        if self.broken.is_none() && self.watch.failed() {
            self.fail();
        }
        match &self.broken {
            Some(error) => Err(error.clone()),
            None if self.is_closed => Err(ended()),
            None => Ok(()),
        }
    }

    /// Ends every operation with the fault. Their registered memory is cut off from the peers
    /// before anyone gets it back.
    fn fail(&mut self) {
        let Some(fault) = self.watch.fault() else {
            return;
        };
        if let Some(observed) = &self.observed {
            // Before anyone learns of it: the application may end then.
            observed.record_fault();
        }
        let error = Error::Failed(fault);
        self.broken = Some(error.clone());
        self.collectives.clear();
        self.pair_queues.clear();
        self.pairs = 0;
        self.wires.unflushed.clear();
        // Before anyone gets memory back, nobody reaches it any more.
        self.wires.withdraw();
        self.ops.fail(&mut self.wires, &error);
    }
}

/// The error of calls after the orderly end.
fn ended() -> Error {
    Error::Invalid {
        operation: "finalize",
        problem: "the communicator has ended by it, or at the exit of its process; make no calls \
                  afterwards"
            .to_owned(),
    }
}

/// A collective's number among the others, its tag on the links, and its record.
#[derive(Debug, Clone, Copy)]
struct Number {
    sequence: u64,
    tag: u64,
    /// The number of its record.
    record: Option<u64>,
}

/// Gives a collective its number, which the control plane learns, and its tag.
#[inline]
fn enter(last: &mut u64, task: &Task, watch: &Watch, observed: Option<&Observed>) -> Number {
    *last += 1;
    let record = observed.map(|observed| observed.call(task, *last, None));
    watch.enter(*last, task.signature.words());
    let digest = u64::from(task.signature.digest());
    Number {
        sequence: *last,
        tag: *last << 32 | digest,
        record,
    }
}

/// Advances the operations of a queue, the first one first. Returns whether anything moved, and how
/// many ended.
fn work_off(
    queue: &mut VecDeque<OpId>,
    ops: &mut OpTable,
    wires: &mut Wires,
    watch: &Watch,
    observed: Option<&Observed>,
) -> (bool, usize) {
    let mut ended = 0;
    while let Some(&id) = queue.front() {
        if let Some(running) = ops.running(id) {
            match running.advance(wires) {
                Advance::Complete => {
                    complete(&running.request.task, running.record, observed);
                    if !running.is_pair() {
                        watch.finish(running.sequence);
                    }
                    ops.succeed(id);
                }
                Advance::Moved => return (true, ended),
                Advance::Blocked => return (ended > 0, ended),
            }
        }
        queue.pop_front();
        ended += 1;
    }
    (ended > 0, ended)
}

/// Divides the result, if its reduction asks for it, and completes the record.
#[inline]
fn complete(task: &Task, record: Option<u64>, observed: Option<&Observed>) {
    if let Some(divisor) = task.reduction.divisor {
        let output = &task.output;
        // SAFETY: the output is `len` elements of this type, as `check` has made sure. The
        // operation alone reads and writes it until it is done, which is only after this.
        unsafe {
            spark_ccl_compute::divide(task.signature.dtype, output.ptr, output.len, divisor);
        }
    }
    if let (Some(record), Some(observed)) = (record, observed) {
        observed.complete(record);
    }
}

impl Drop for Core {
    /// After a fault nobody takes messages in flight, so no link has to wait for them.
    fn drop(&mut self) {
        if self.watch.fault().is_some() {
            self.wires.withdraw();
        }
    }
}
