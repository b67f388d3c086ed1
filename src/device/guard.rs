//! The thread that ends what runs when it cannot come to its end: a program may wait for its streams in
//! ways that know nothing of communicators.

use super::Engine;
use super::engine::{Calls, State};
use crate::error::Error;
use spark_ccl_control::{DEVICE, Fault};
use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_cuda::{checked, is_capturing, leave_captures_alone};
use spark_ccl_nccl as nccl;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often it looks. A rank's death is noticed within milliseconds, and nobody waits for less.
const TICK: Duration = Duration::from_millis(50);
/// For so long a call may go on after a rank has left that had its own part done.
const AFTER_A_FAREWELL: Duration = Duration::from_secs(2);

/// A call in a stream that is not known to have run.
pub(super) struct Mark {
    /// It stands right behind the call, not behind others' work as well.
    exact: bool,
    calls: u64,
    since: Instant,
    /// When a rank was seen to have left.
    farewell: Option<(u32, Instant)>,
}

/// Watches over an engine until that is gone.
pub(super) fn start(engine: &Arc<Engine>) -> Result<(), Error> {
    let engine = Arc::downgrade(engine);
    std::thread::Builder::new()
        .name("spark-nccl".to_owned())
        .spawn(move || watch_over(&engine))
        .map(drop)
        .map_err(|error| Error::System {
            what: "starting the thread that watches over NCCL".to_owned(),
            problem: error.to_string(),
        })
}

/// What the guard remembers from look to look.
#[derive(Default)]
struct Memory {
    /// The calls that are known to have run, or are marked; and those at the last look.
    seen: u64,
    before: u64,
    /// Since when a call of NCCL's has held the lock, and what it may take.
    blocked: Option<Instant>,
    timeout: Option<Duration>,
}

fn watch_over(engine: &Weak<Engine>) {
    let mut memory = Memory::default();
    if let Some(engine) = engine.upgrade()
        && let Err(error) = leave_captures_alone(engine.device())
    {
        tracing::warn!("rank {}: {error}", engine.rank);
    }
    loop {
        std::thread::sleep(TICK);
        let Some(engine) = engine.upgrade() else {
            return;
        };
        if engine.watch.failed() {
            if engine.abort() {
                return;
            }
        } else {
            engine.look(&mut memory);
        }
    }
}

impl Engine {
    /// Notes a call that is in a stream now.
    pub(super) fn note(&self, stream: &Arc<CudaStream>) {
        self.note_in(&mut self.state.lock().calls, stream);
    }

    pub(super) fn note_in(&self, calls: &mut Calls, stream: &Arc<CudaStream>) {
        calls.count += 1;
        let known = calls.stream.as_ref();
        if !known.is_some_and(|known| Arc::ptr_eq(known, stream)) {
            calls.stream = Some(Arc::clone(stream));
        }
        if self.wanted.load(Ordering::Relaxed) {
            self.wanted.store(false, Ordering::Relaxed);
            self.mark(calls, true);
        }
    }

    /// Marks the place in the stream that the last call has. Behind a mark in a graph that is being captured,
    /// nothing would ever come.
    fn mark(&self, calls: &mut Calls, exact: bool) {
        let Some(stream) = &calls.stream else { return };
        if calls.mark.is_some() && self.mark_is_ahead() {
            return;
        }
        let recorded = || -> Result<bool, Error> {
            if is_capturing(stream)? {
                return Ok(false);
            }
            checked("cuEventRecord", self.device(), self.event.record(stream))?;
            Ok(true)
        };
        match recorded() {
            Ok(false) => {}
            Ok(true) => {
                calls.mark = Some(Mark {
                    exact,
                    calls: calls.count,
                    since: Instant::now(),
                    farewell: None,
                });
            }
            Err(error) => tracing::debug!("rank {}: {error}", self.rank),
        }
    }

    /// Whether the stream has not come to the mark.
    fn mark_is_ahead(&self) -> bool {
        self.event.try_is_complete() == Ok(false)
    }

    fn look(&self, memory: &mut Memory) {
        let Some(mut state) = self.state.try_lock() else {
            self.blocked(memory);
            return;
        };
        memory.blocked = None;
        memory.timeout = Some(state.timeout);
        let State {
            calls,
            timeout,
            nccl,
            ..
        } = &mut *state;
        if let Some(mark) = &calls.mark
            && !self.mark_is_ahead()
        {
            memory.seen = mark.calls;
            calls.mark = None;
            self.wanted.store(true, Ordering::Relaxed);
        }
        // The next caller marks its call; if there is none, the last one is still to be marked.
        if calls.mark.is_none() && calls.count != memory.seen && calls.count == memory.before {
            self.mark(calls, false);
        }
        memory.before = calls.count;
        let Some(mark) = &mut calls.mark else { return };
        let fault = self.judge(mark, *timeout);
        let noticed = nccl.as_ref().map(nccl::Communicator::async_error);
        drop(state);
        if let Some(fault) = fault {
            self.watch.raise(fault);
        }
        match noticed {
            None | Some(Ok(_) | Err(nccl::Error::Grouped { .. })) => {}
            Some(Err(error)) => {
                self.failed("ncclCommGetAsyncError", &error);
            }
        }
    }

    /// A call of NCCL's that does not come back cannot be ended; the other ranks need not wait for it.
    fn blocked(&self, memory: &mut Memory) {
        let since = *memory.blocked.get_or_insert_with(Instant::now);
        if memory
            .timeout
            .is_some_and(|timeout| since.elapsed() > timeout)
        {
            self.raise_timeout(memory.before + 1, since.elapsed());
        }
    }

    /// What is wrong where a call takes too long, or waits for a rank that has left.
    fn judge(&self, mark: &mut Mark, timeout: Duration) -> Option<Fault> {
        if mark.since.elapsed() > timeout {
            self.raise_timeout(mark.calls, mark.since.elapsed());
        }
        if !mark.exact {
            return None;
        }
        let left = (0..self.size as u32).find(|&rank| self.watch.left(rank).is_some())?;
        let (rank, since) = *mark.farewell.get_or_insert((left, Instant::now()));
        (since.elapsed() > AFTER_A_FAREWELL).then(|| Fault::Left {
            rank: self.watch.member(rank),
            last_sequence: self.watch.left(rank).unwrap_or(0),
            sequence: DEVICE | mark.calls,
            words: format!("the last that was enqueued on device {}", self.device()),
        })
    }
}
