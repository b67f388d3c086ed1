//! Tasks that executors poll. Knows the engine and its lock; knows no executor.

use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Instant;

use super::{HostEngine, Ids};

impl HostEngine {
    /// Notes that a progress thread will run.
    pub(crate) fn expect_thread(&self) {
        self.has_thread.store(true, Ordering::Relaxed);
    }
}

impl Ids {
    /// Whether all of the task is done; its results are left to [`wait`](Self::wait). Makes
    /// progress. If not, wakes the executor's task when that may have changed. In a forked child it
    /// counts as done.
    pub(crate) fn poll(self, engine: &HostEngine, context: &Context<'_>) -> Poll<()> {
        if engine.check_process().is_err() {
            return Poll::Ready(());
        }
        // An executor's code clones and drops wakers: not while the engine is locked.
        let waker = context.waker().clone();
        let mut core = engine.lock();
        core.progress();
        core.run_watchdog(Instant::now());
        let mut parts = [Some(self.0), self.1].into_iter().flatten();
        let Some(id) = parts.find(|&id| !core.ops.is_done(id)) else {
            return Poll::Ready(());
        };
        let unneeded = core.ops.wake_at_end(id, waker);
        engine.leave(core);
        drop(unneeded);
        if !engine.has_thread.load(Ordering::Relaxed) {
            // Nothing moves but by polls.
            super::push_all();
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;
