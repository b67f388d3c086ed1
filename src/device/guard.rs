//! The thread that ends what runs when it cannot come to its end: a program may wait for its streams in
//! ways that know nothing of communicators.

use super::Engine;
use super::engine::{Calls, State};
use crate::error::Error;
use spark_ccl_control::Fault;
use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_cuda::{is_capturing, leave_captures_alone, make_current, record};
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
pub(super) fn start(engine: &Arc<Engine>, timeout: Duration) -> Result<(), Error> {
    let engine = Arc::downgrade(engine);
    let memory = Memory {
        timeout,
        ..Memory::default()
    };
    std::thread::Builder::new()
        .name("spark-nccl".to_owned())
        .spawn(move || watch_over(&engine, memory))
        .map(drop)
        .map_err(|error| Error::System {
            what: "starting the thread that watches over NCCL".to_owned(),
            problem: error.to_string(),
        })
}

/// What the guard remembers from look to look.
#[derive(Default)]
struct Memory {
    /// The calls at the last look.
    before: u64,
    /// The call of NCCL's that has not come back, and since when.
    inside: Option<(u64, Instant)>,
    /// What it may take.
    timeout: Duration,
}

fn watch_over(engine: &Weak<Engine>, mut memory: Memory) {
    if let Some(engine) = engine.upgrade()
        && let Err(error) = enter(&engine)
    {
        tracing::warn!("{error}");
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

/// Makes the device current on this thread, whose looks are not to disturb others.
fn enter(engine: &Engine) -> Result<(), Error> {
    let device = engine.own(make_current(&engine.context))?;
    Ok(engine.own(leave_captures_alone(device))?)
}

impl Engine {
    /// Notes a call that is in a stream now.
    pub(super) fn note(&self, stream: &Arc<CudaStream>) {
        // Of a communicator that has failed, nothing is waited for.
        if let Ok(mut state) = self.lock() {
            self.note_in(&mut state.calls, stream);
        }
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
    /// nothing would ever come; and looking at one would end the capture.
    fn mark(&self, calls: &mut Calls, exact: bool) {
        let Some(stream) = &calls.stream else { return };
        if calls.mark.is_some() {
            return;
        }
        let recorded = || -> Result<bool, Error> {
            if self.own(is_capturing(stream))? {
                return Ok(false);
            }
            self.own(record(&self.event, stream))?;
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
            Err(error) => tracing::debug!("{error}"),
        }
    }

    /// Whether the stream has come to the mark. One that was drawn into a capture is not waited for.
    fn is_past_mark(&self) -> Result<bool, spark_ccl_cuda::Error> {
        let seen = self.event.try_is_complete();
        self.checked("cuEventQuery", seen).or_else(|error| {
            let is_of_a_capture = error.is_of_a_capture();
            is_of_a_capture.then_some(true).ok_or(error)
        })
    }

    fn look(&self, memory: &mut Memory) {
        self.look_inside(memory);
        let Some(mut state) = self.state.try_lock() else {
            return;
        };
        memory.timeout = state.timeout;
        let State { calls, timeout, .. } = &mut *state;
        if let Some(mark) = &calls.mark {
            match self.is_past_mark() {
                Ok(false) => {}
                Ok(true) => {
                    calls.seen = mark.calls;
                    calls.mark = None;
                    self.wanted.store(true, Ordering::Relaxed);
                }
                Err(error) => drop(self.lost(error)),
            }
        }
        // The next caller marks its call; if there is none, the last one is still to be marked.
        if calls.mark.is_none() && calls.count != calls.seen && calls.count == memory.before {
            self.mark(calls, false);
        }
        memory.before = calls.count;
        let Some(mark) = &mut calls.mark else { return };
        let fault = self.judge(mark, *timeout);
        let noticed = state.noticed();
        drop(state);
        if let Some(fault) = fault {
            self.watch.raise(fault);
        }
        if let Some(error) = noticed {
            self.failed("ncclCommGetAsyncError", error);
        }
    }

    /// A call of NCCL's that does not come back cannot be ended; the other ranks need not wait for it.
    fn look_inside(&self, memory: &mut Memory) {
        let begun = self.begun.load(Ordering::Relaxed);
        if begun == self.ended.load(Ordering::Relaxed) {
            memory.inside = None;
            return;
        }
        match memory.inside {
            Some((call, since)) if call == begun => {
                if since.elapsed() > memory.timeout {
                    self.raise_timeout(memory.before + 1, since.elapsed());
                }
            }
            _ => memory.inside = Some((begun, Instant::now())),
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
        // For all ranks: what is aborted here may look like a result to them.
        (since.elapsed() > AFTER_A_FAREWELL).then(|| Fault::Aborted {
            by: self.member(),
            reason: format!(
                "{} left the communicator, but call {} on device {} needs it",
                self.watch.member(rank),
                mark.calls,
                self.device()
            ),
        })
    }
}
