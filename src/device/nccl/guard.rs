//! The thread that aborts calls which cannot complete: a program may wait for its streams by means that know nothing of
//! communicators.

use super::NcclEngine;
use super::engine::{Calls, State};
use super::mark::Mark;
use crate::device::block;
use crate::error::Error;
use spark_ccl_control::Fault;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often it looks. A rank's death is noticed within milliseconds, and nobody waits for less.
const TICK: Duration = Duration::from_millis(50);
/// How long a call may continue after a rank that had finished its part has left.
const AFTER_A_FAREWELL: Duration = Duration::from_secs(2);

/// Watches over an engine until that is gone.
pub(super) fn start(engine: &Arc<NcclEngine>, timeout: Duration) -> Result<(), Error> {
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

fn watch_over(engine: &Weak<NcclEngine>, mut memory: Memory) {
    loop {
        std::thread::sleep(TICK);
        let Some(engine) = engine.upgrade() else {
            break;
        };
        if !engine.watch.failed() {
            engine.look(&mut memory);
        } else if engine.abort() {
            break;
        }
        if engine.has_leftovers() {
            engine.tidy_elsewhere();
        }
    }
    // NCCL's communicator has ended, so blocks that were dropped while in use are not in use any more.
    block::sweep();
}

impl NcclEngine {
    fn look(&self, memory: &mut Memory) {
        self.look_inside(memory);
        let Some(mut state) = self.state.try_lock() else {
            return;
        };
        memory.timeout = state.timeout;
        let State { calls, timeout, .. } = &mut *state;
        if let Err(error) = calls.look() {
            drop(self.lost(error));
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

impl Calls {
    /// Looks whether the call that is watched has run; then the last one is.
    fn look(&mut self) -> Result<(), spark_ccl_cuda::Error> {
        if let Some(mark) = &self.mark {
            if !mark.end.is_complete()? {
                return Ok(());
            }
            self.mark = None;
        }
        let Some(end) = &self.last else {
            return Ok(());
        };
        if end.is_complete()? {
            self.last = None;
            return Ok(());
        }
        self.mark = Some(Mark {
            end: Arc::clone(end),
            calls: self.count,
            since: Instant::now(),
            farewell: None,
        });
        Ok(())
    }
}
