//! The engine behind its mutex, and how callers wait on it. Knows the mutex, threads and time; what
//! an operation does is below, in [`Core`].

mod check;
mod engines;
#[cfg(feature = "future")]
mod future;
mod ids;
mod locked;

use std::any::Any;
use std::ops::ControlFlow;
use std::sync::Arc;
#[cfg(feature = "future")]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use engines::Waiters;
pub(crate) use engines::push_all;
pub(super) use engines::{is_without_thread, unattended_engines};
pub(crate) use ids::{Ids, first_done};
use locked::Locked;
use spark_ccl_fork::{Forked, Owned};
use spark_ccl_log::{Condvar, Held, Mutex};

#[cfg(feature = "cuda")]
use super::Direction;
use super::blocked::wake_others;
use super::request::Request;
#[cfg(feature = "cuda")]
use super::spin_budget::SpinBudget;
use super::spin_budget::{Backoff, BackoffStep, LONGEST_BLOCK};
use super::{Core, OpId};
use crate::error::Error;
use crate::plan::Planner;
use crate::task::Task;
use crate::world::deadline::deadline_in;

/// Rounds that moved data after which a waiter lets other threads have the engine.
const BUSY_ROUNDS: u32 = 16;

/// An engine that threads share. In a forked child it refuses everything: a thread of the parent
/// may have it locked, and its links are the parent's.
pub(crate) struct HostEngine {
    planner: Planner,
    core: Owned<Mutex<Core>>,
    /// Signalled when the thread that blocked on the links no longer does.
    pub(super) woken: Condvar,
    /// Signalled when there may be work that no thread waits for, for the optional progress thread.
    unattended: Condvar,
    waiters: Waiters,
    /// Whether there is a progress thread. A hint, so all accesses are relaxed: a task that sees it
    /// late polls once more.
    #[cfg(feature = "future")]
    has_thread: AtomicBool,
}

impl HostEngine {
    pub(crate) fn new(core: Core, planner: Planner) -> Arc<Self> {
        let place = (core.watch.context(), core.wires.rank);
        let first_caller = core.first_caller.view();
        let engine = Arc::new(Self {
            planner,
            core: Owned::new(Mutex::new(core)),
            woken: Condvar::new(),
            unattended: Condvar::new(),
            waiters: Waiters::default(),
            #[cfg(feature = "future")]
            has_thread: AtomicBool::new(false),
        });
        engines::add(&engine, place, first_caller);
        engine
    }

    /// Runs `work` on the engine, in the process that it belongs to.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Core) -> R) -> Result<R, Forked> {
        self.check_process()?;
        Ok(work(&mut self.lock()))
    }

    /// An error in a forked child.
    pub(crate) fn check_process(&self) -> Result<(), Forked> {
        self.core.process().check()
    }

    pub(crate) fn planner(&self) -> &Planner {
        &self.planner
    }

    /// The timeout of operations that begin now.
    pub(crate) fn timeout(&self) -> Result<Duration, Forked> {
        self.with(|core| core.timeout)
    }

    /// Queues a checked task, and begins it.
    pub(crate) fn submit(&self, mut task: Task) -> Result<Ids, Error> {
        self.check_process()?;
        if task.operation().has_schedule() {
            self.planner.locate(&mut task)?;
        }
        let mut core = self.lock();
        core.check()?;
        let (first, second) = Request::of(task, &self.planner, &mut core.programs)?;
        if !first.program.receives()
            && let Err(refusal) = core.begin_unheard()
        {
            drop(core);
            return Err(self.refuse(refusal));
        }
        let ids = Ids(core.issue(first), second.map(|request| core.issue(request)));
        core.progress();
        self.leave(core);
        Ok(ids)
    }

    /// Begins a checked collective, whose buffers must stay until it is done. `None` if it is done
    /// already. Does not wait: the calling thread also passes on data of other communicators.
    #[cfg(feature = "cuda")]
    pub(crate) fn begin(&self, task: &mut Task) -> Result<Option<Ids>, Error> {
        self.check_process()?;
        self.planner.locate(task)?;
        let mut core = self.lock();
        let outcome = core.run_inline(task, &self.planner, SpinBudget::ONE_LOOK);
        self.leave(core);
        let id = outcome.map_err(|refusal| self.refuse(refusal))?;
        Ok(id.map(|id| Ids(id, None)))
    }

    /// Begins a part of a message, whose memory must stay until it is done: the task's input or
    /// output. Its signature is that of the whole message, which both ends cut alike. Does not
    /// wait.
    #[cfg(feature = "cuda")]
    pub(crate) fn begin_part(
        &self,
        task: Task,
        direction: Direction,
        is_first: bool,
    ) -> Result<Ids, Error> {
        self.check_process()?;
        let peer = match direction {
            Direction::Out => task.to,
            Direction::In => task.from,
        };
        let request = Request::of_part(task, direction, self.planner.rank);
        let mut core = self.lock();
        core.check()?;
        let id = core.issue_pair(request, (peer, direction), is_first);
        core.progress();
        self.leave(core);
        Ok(Ids(id, None))
    }

    /// Whether the operation is done; its result is left to be taken. Makes progress. In a forked
    /// child nothing makes progress, and every operation counts as done.
    fn is_done(&self, id: OpId) -> bool {
        self.check_process().is_err() || self.look(|core| core.ops.is_done(id))
    }

    /// Does one round of a waiter's work. Returns whether `holds` is true after it.
    fn look(&self, holds: impl FnOnce(&mut Core) -> bool) -> bool {
        let mut core = self.lock();
        core.progress();
        core.run_watchdog(Instant::now());
        let holds = holds(&mut core);
        drop(core);
        if !holds {
            // Another rank may first need this rank's progress in another communicator. A thread
            // that only looks never waits, so it pushes the other engines here.
            push_all();
        }
        holds
    }

    /// Waits until the operation is done and takes its result. It always ends: with success, with
    /// a fault, or at the operation's deadline.
    fn wait(&self, id: OpId) -> Result<(), Error> {
        self.drive(|core| core.ops.take(id))?
    }

    /// Waits until the operation is done and leaves its result to be taken.
    fn settle(&self, id: OpId) -> Result<(), Forked> {
        self.drive(|core| core.ops.is_done(id).then_some(()))
    }

    /// Makes progress until `outcome` returns a result.
    pub(super) fn drive<R>(
        &self,
        outcome: impl FnMut(&mut Core) -> Option<R>,
    ) -> Result<R, Forked> {
        self.check_process()?;
        Ok(self.drive_beside(&[], None, outcome))
    }

    /// Makes progress until `holds` is true or the time is up. Returns whether `holds` is true.
    fn drive_until(
        &self,
        until: Instant,
        mut holds: impl FnMut(&mut Core) -> bool,
    ) -> Result<bool, Forked> {
        self.check_process()?;
        let holds_in_time = self.drive_beside(&[], Some(until), |core| {
            let holds = holds(core);
            (holds || Instant::now() >= until).then_some(holds)
        });
        // The time may have been too short for a round of all that a waiter does.
        Ok(holds_in_time || self.look(holds))
    }

    /// As [`drive`](Self::drive), for an outcome that also depends on `others`, and on whether the
    /// time is up. The caller has checked that this is the engines' own process.
    fn drive_beside<R>(
        &self,
        others: &[&HostEngine],
        until: Option<Instant>,
        outcome: impl FnMut(&mut Core) -> Option<R>,
    ) -> R {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let result = self.drive_on(others, until, outcome);
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        self.leave(self.lock());
        result
    }

    fn drive_on<R>(
        &self,
        others: &[&HostEngine],
        until: Option<Instant>,
        mut outcome: impl FnMut(&mut Core) -> Option<R>,
    ) -> R {
        let mut backoff = Backoff::default();
        let mut wanted = None;
        loop {
            self.core.give_way();
            let mut core = self.lock();
            if let Some(wanted) = wanted.take() {
                core.spin_budget.learn(wanted);
            }
            let Rounds { busy, idle } = match poll(&mut core, &mut outcome) {
                ControlFlow::Break(result) => return result,
                ControlFlow::Continue(rounds) => rounds,
            };
            core.run_watchdog(Instant::now());
            let blocks_at_once = core.lacks_link();
            drop(core);
            push_all();
            for other in others {
                other.look_after();
            }
            if busy > 0 {
                backoff = Backoff::default();
            }
            if idle > 0 {
                let step = if blocks_at_once {
                    backoff.block()
                } else {
                    backoff.step()
                };
                match step {
                    BackoffStep::Yielded { was_wanted } => wanted = Some(was_wanted),
                    BackoffStep::Block { nap } => {
                        // Progress of the other engines does not wake up this thread.
                        let most = if others.is_empty() {
                            LONGEST_BLOCK
                        } else {
                            nap
                        };
                        let left = until.map(|it| it.saturating_duration_since(Instant::now()));
                        let most = left.map_or(most, |left| left.min(most));
                        if let Some(result) = self.block(nap, most, &mut outcome) {
                            return result;
                        }
                    }
                }
            }
        }
    }

    /// Does one round of a waiter's work, unless another thread has the engine locked.
    fn look_after(&self) {
        if let Some(mut core) = self.try_lock() {
            core.progress();
            core.run_watchdog(Instant::now());
        }
    }

    /// Advances what is in flight, if anything.
    pub(crate) fn push(&self) {
        let mut core = self.lock();
        if !core.is_idle() {
            core.progress();
        }
    }

    /// Makes progress until nothing is in flight, for at most `limit`. Returns whether nothing is.
    pub(crate) fn is_idle_within(&self, limit: Duration) -> Result<bool, Forked> {
        self.drive_until(deadline_in(limit), |core| core.is_idle())
    }

    /// Makes progress until the data of all that is done have left this rank, for at most `limit`.
    pub(crate) fn flush_within(&self, limit: Duration) -> Result<(), Forked> {
        self.drive_until(deadline_in(limit), |core| core.has_flushed())
            .map(drop)
    }

    /// Leaves the buffers of an operation that nobody waits for to the engine. In a forked child
    /// they are freed: the operation is the parent's, and does not touch the child's memory.
    fn detach(&self, id: OpId, buffers: Box<dyn Any + Send>) {
        if self.check_process().is_err() {
            return;
        }
        self.lock().ops.detach(id, buffers);
    }

    /// Unlocks the engine, on which this thread no longer waits. Threads that wait on other
    /// engines, or the progress thread, may have to push it from now on.
    fn leave(&self, core: Locked<'_>) {
        // Log lines are emitted after the wake-ups: the application's subscriber may block.
        let _held = Held::new();
        let bell = (!core.is_idle()).then(|| Arc::clone(&core.wires.bell));
        drop(core);
        if let Some(bell) = bell {
            wake_others(&bell);
            self.unattended.notify_one();
        }
    }

    /// Limits operations in flight to `limit`, as if they had begun with it.
    #[cfg(feature = "cuda")]
    pub(crate) fn cut_short(&self, limit: Duration) {
        // In a forked child there are no operations.
        let _ = self.with(|core| core.ops.cut_short(limit));
    }

    /// The loop of the optional progress thread; ends when `stop` says so and nothing is in flight.
    pub(crate) fn run_in_background(&self, stop: impl Fn() -> bool) {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let mut backoff = Backoff::default();
        loop {
            self.core.give_way();
            let mut core = self.lock();
            if core.is_idle() && stop() {
                drop(core);
                break;
            }
            // A thread that waits does the work; two would only take each other's core.
            let rests = |core: &Core| core.is_idle() || self.waiters.load(Ordering::Relaxed) > 1;
            if rests(&core) {
                drop(core);
                self.wait_on(&self.unattended, Duration::from_millis(100), rests);
                backoff = Backoff::default();
                continue;
            }
            if core.progress() {
                backoff = Backoff::default();
            }
            core.run_watchdog(Instant::now());
            drop(core);
            let step = match backoff.step() {
                // The application computes meanwhile, and needs the core.
                BackoffStep::Yielded { was_wanted: true } => backoff.block(),
                step => step,
            };
            if let BackoffStep::Block { nap } = step {
                self.block(nap, LONGEST_BLOCK, &mut |core| core.is_idle().then_some(()));
            }
        }
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The functions that communicators call.
impl HostEngine {
    /// Runs a checked task to its end, without queueing it if it can be completed at once.
    ///
    /// # Errors
    /// The task does not suit this engine; or the fault that has ended it.
    pub(crate) fn run(&self, task: &mut Task) -> Result<(), Error> {
        if !task.operation().has_schedule() {
            return self.submit(task.clone())?.wait(self);
        }
        self.check_process()?;
        self.planner.locate(task)?;
        let mut core = self.lock();
        let budget = core.spin_budget;
        let outcome = core.run_inline(task, &self.planner, budget);
        drop(core);
        match outcome {
            Ok(None) => Ok(()),
            Ok(Some(id)) => self.wait(id),
            Err(refusal) => Err(self.refuse(refusal)),
        }
    }

    /// Waits until everything in flight has ended.
    ///
    /// # Errors
    /// The fault that has cut it short.
    pub(crate) fn drain(&self) -> Result<(), Error> {
        // Without operations in flight the wait is over, and a fault that comes now does not
        // matter.
        if self.with(|core| core.is_idle())? {
            return Ok(());
        }
        self.drive(|core| {
            let outcome = || core.broken.clone().map_or(Ok(()), Err);
            core.is_idle().then(outcome)
        })?
    }

    /// Sets the timeout of operations that begin from now on.
    pub(crate) fn set_timeout(&self, timeout: Duration) {
        // In a forked child there are no operations.
        let _ = self.with(|core| core.timeout = timeout);
    }
}

/// How a waiter has polled since it took the engine.
struct Rounds {
    /// Rounds that moved data.
    busy: u32,
    /// Rounds without data after the last that moved some.
    idle: u32,
}

/// Polls until there is an outcome, other threads should have the engine, or polling no longer
/// pays.
#[inline]
fn poll<R>(
    core: &mut Core,
    outcome: &mut impl FnMut(&mut Core) -> Option<R>,
) -> ControlFlow<R, Rounds> {
    let mut rounds = Rounds { busy: 0, idle: 0 };
    while rounds.busy < BUSY_ROUNDS && rounds.idle < core.spin_budget.rounds() {
        let moved = core.progress();
        if let Some(result) = outcome(core) {
            return ControlFlow::Break(result);
        }
        if moved {
            rounds.busy += 1;
            rounds.idle = 0;
        } else {
            rounds.idle += 1;
            if core.lacks_link() {
                break;
            }
            core.spin();
        }
    }
    ControlFlow::Continue(rounds)
}

#[cfg(test)]
mod tests;
