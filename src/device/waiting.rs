//! Waiting for streams and for calls, on behalf of any engine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_cuda::{is_capturing, is_idle};

use super::calls::Stall;
use super::order;
use super::rank::DeviceRank;
use super::watched_engine::WatchedEngine;
use crate::engine::Engine;
use crate::error::Error;
use crate::memory::device::pause::{YIELD_FOR, pause};
use crate::task::Task;

/// How many times a waiter looks at a stream before it checks the clock and the communicator.
const LOOKS: u32 = 64;
/// How long a call into the backend may delay a thread that wants to abort the communicator.
pub(super) const CALL: Duration = Duration::from_secs(5);
/// How long a thread that enqueues no call may hold the state.
const LOCKED: Duration = Duration::from_millis(50);
/// How long the last call may take to end after an abort, or once the communicator is dropped.
pub(super) const SUBSIDES: Duration = Duration::from_secs(2);

/// Runs a task in the stream that its memory comes with, and waits for it.
pub(super) fn run(engine: &(impl Engine + WatchedEngine), task: &Task) -> Result<(), Error> {
    let stream = engine.base().stream_of(task)?;
    engine.enqueue(task, &stream)?;
    wait_for(engine, &stream)
}

/// Waits until everything in a stream has run, and checks whether it succeeded.
pub(super) fn wait_for(engine: &impl WatchedEngine, stream: &CudaStream) -> Result<(), Error> {
    // A look at the stream would end the capture.
    if engine.base().own(is_capturing(stream))? {
        return Err(Error::Invalid {
            operation: "wait",
            problem: "the stream captures a graph".to_owned(),
        });
    }
    wait_until(engine, || is_idle(stream))
}

/// Waits for the last call.
pub(super) fn wait_for_last(engine: &impl WatchedEngine) -> Result<(), Error> {
    let last = engine.base().lock()?.calls.last.clone();
    match last {
        Some(last) => wait_until(engine, || last.is_complete()),
        None => engine.compare_calls(engine.calls_to_compare()),
    }
}

/// Waits for this rank's own calls. Does not compare them with those of other ranks, which may have
/// left.
pub(super) fn wait_for_own(engine: &impl WatchedEngine) -> Result<(), Error> {
    look_until(engine, || engine.base().is_idle(), || {})
}

fn wait_until(
    engine: &impl WatchedEngine,
    is_over: impl Fn() -> Result<bool, spark_ccl_cuda::Error>,
) -> Result<(), Error> {
    let made = engine.calls_to_compare();
    look_until(engine, is_over, || engine.ask_of_calls(made))?;
    engine.compare_calls(made)?;
    engine.observe_ends();
    Ok(())
}

/// Looks until something is over, or the communicator fails. Calls `wait` once, if the first looks
/// do not find it over.
fn look_until(
    engine: &impl WatchedEngine,
    is_over: impl Fn() -> Result<bool, spark_ccl_cuda::Error>,
    wait: impl Fn(),
) -> Result<(), Error> {
    let start = Instant::now();
    let mut stall = Stall::new(engine.progress());
    let mut limit = None;
    let mut looks = 0_u32;
    while !is_over().map_err(|error| engine.base().lost(error))? {
        looks += 1;
        if looks == 1 {
            wait();
        }
        let waited = start.elapsed();
        if (waited > YIELD_FOR || looks.is_multiple_of(LOOKS))
            && let Err(error) = still_waits(engine, &mut stall, &mut limit)
        {
            // An error of CUDA is now only a consequence of the fault.
            let _ = engine.base().subside(Instant::now() + SUBSIDES);
            return Err(error);
        }
        pause(waited);
    }
    // An aborted communicator's streams end early.
    engine.check()
}

/// Fails the communicator if the wait has lasted longer than `limit`. The first call sets `limit`
/// to the time that calls may take then.
fn still_waits<E: WatchedEngine>(
    engine: &E,
    stall: &mut Stall,
    limit: &mut Option<Duration>,
) -> Result<(), Error> {
    engine.check()?;
    let base = engine.base();
    // A thread that holds the lock enqueues a call; the time is checked at a later look.
    if let Some(state) = base.state.try_lock() {
        let limit = *limit.get_or_insert(state.calls.patience());
        let (calls, passed) = (state.calls.count, state.calls.passed);
        drop(state);
        let waited = stall.lasts(engine.progress().wrapping_add(passed));
        if waited > limit.saturating_add(E::GRACE) {
            base.raise_timeout(calls, waited);
        } else if stall.needs_remark(waited) {
            let so_far = base.stalled(calls, waited);
            let remark = so_far.so_far(limit.saturating_sub(waited));
            if let Some(remark) = remark {
                spark_ccl_log::remark(&remark);
            }
        }
    }
    engine.check()
}

impl<B> DeviceRank<B> {
    /// The stream that a task's memory comes with. It is made to wait for uses of the memory in
    /// other streams, if nothing else makes it wait for them.
    pub(super) fn stream_of(&self, task: &Task) -> Result<Arc<CudaStream>, Error> {
        let regions = task.regions();
        let stream = order::stream_of(regions);
        let stream = stream.unwrap_or_else(|| self.context.default_stream());
        // A stream of another context is not used: the call is refused.
        let is_ours = |other: &&Arc<CudaStream>| Arc::ptr_eq(other.context(), &self.context);
        for other in order::unordered(regions, &stream).filter(is_ours) {
            if let Some(end) = self.own(self.end(other))? {
                self.own(end.hold_back(&stream))?;
            }
        }
        Ok(stream)
    }

    /// Whether no thread enqueues a call, and the last one has run.
    pub(super) fn is_idle(&self) -> Result<bool, spark_ccl_cuda::Error> {
        let Some(state) = self.state.try_lock_for(LOCKED) else {
            return Ok(false);
        };
        let last = state.calls.last.as_ref();
        last.map_or(Ok(true), |last| last.is_complete())
    }

    /// Waits a little for the last call to end: after an abort, a user who gets the error may free
    /// memory that kernels use. Returns whether the call has ended.
    pub(super) fn subside(&self, deadline: Instant) -> Result<bool, spark_ccl_cuda::Error> {
        let last = self.state.try_lock_for(CALL);
        let Some(last) = last.and_then(|state| state.calls.last.clone()) else {
            return Ok(true);
        };
        let start = Instant::now();
        while !last.is_complete()? {
            if Instant::now() > deadline {
                return Ok(false);
            }
            pause(start.elapsed());
        }
        Ok(true)
    }

    /// Whether all calls have run; for a rank that is about to leave without the others. If they do
    /// not end soon, the communicator fails on all ranks, since these could take the output of
    /// aborted calls for results.
    pub(super) fn is_done(&self) -> bool {
        if self.watch.failed() {
            return false;
        }
        match self.subside(Instant::now() + SUBSIDES) {
            Ok(true) => {
                self.tell_what_is_done();
                return true;
            }
            Ok(false) => self.give_up(
                "it dropped the communicator while calls of device memory were in a stream"
                    .to_owned(),
            ),
            Err(error) => drop(self.lost(error)),
        }
        false
    }

    /// Tells the others that all calls have run: they may still make some of these calls once this
    /// rank has left.
    pub(super) fn tell_what_is_done(&self) {
        if let Some(state) = self.state.try_lock_for(CALL) {
            self.watch.has_done(state.calls.made.clone());
        }
    }

    /// Tells the others which calls have run, if some never will: the others may still make the
    /// calls that have run.
    pub(super) fn tell_what_has_run(&self) {
        if let Some(mut state) = self.state.try_lock_for(LOCKED) {
            // If CUDA does not answer, only the calls that were known to have run before count.
            let _is_known = state.calls.look(0);
            self.watch.has_done(state.calls.ran.clone());
        }
    }

    /// Changes how long each call enqueued from now on may take.
    pub(super) fn wait_at_most(&self, timeout: Duration) {
        // A communicator that has failed waits for nothing.
        if let Ok(mut state) = self.lock() {
            state.calls.timeout = timeout;
        }
    }
}
