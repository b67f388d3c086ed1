//! Names of the engine's tasks, by which threads wait for them. Knows the engine and its lock.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;
#[cfg(feature = "cuda")]
use std::time::Instant;

use spark_ccl_fork::Forked;
use spark_ccl_log::Mutex;

use super::HostEngine;
use crate::error::Error;
use crate::host::{Core, OpId};
use crate::world::deadline::deadline_in;

/// The engine's names of one task: two for a `send_recv`, else one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ids(pub(crate) OpId, pub(crate) Option<OpId>);

impl Ids {
    /// Waits for all of the task.
    pub(crate) fn wait(self, engine: &HostEngine) -> Result<(), Error> {
        let first = engine.wait(self.0);
        let second = self.1.map_or(Ok(()), |id| engine.wait(id));
        first.and(second)
    }

    /// Waits for all of the task and leaves its results to [`wait`](Self::wait).
    pub(crate) fn settle(self, engine: &HostEngine) -> Result<(), Forked> {
        engine.settle(self.0)?;
        self.1.map_or(Ok(()), |id| engine.settle(id))
    }

    /// Waits for all of the task, for no longer than this. Returns whether it is done; its results
    /// are left to [`wait`](Self::wait). In a forked child it counts as done.
    pub(crate) fn settle_within(self, engine: &HostEngine, limit: Duration) -> bool {
        let settled = engine.drive_until(deadline_in(limit), |core| self.are_done_in(core));
        settled.unwrap_or(true)
    }

    /// Whether all of the task is done; its results are left to [`wait`](Self::wait). Makes
    /// progress.
    pub(crate) fn are_done(self, engine: &HostEngine) -> bool {
        engine.is_done(self.0) && self.1.is_none_or(|id| engine.is_done(id))
    }

    /// The result of a task that was [begun](HostEngine::begin), or of a part of a message, once it
    /// is done. Makes progress. In a forked child, it is never done.
    #[cfg(feature = "cuda")]
    pub(crate) fn take(self, engine: &HostEngine) -> Option<Result<(), Error>> {
        engine.check_process().ok()?;
        let mut core = engine.lock();
        core.progress();
        core.run_watchdog(Instant::now());
        core.ops.take(self.0)
    }

    fn are_done_in(self, core: &Core) -> bool {
        let is_done = |id| core.ops.is_done(id);
        is_done(self.0) && self.1.is_none_or(is_done)
    }

    /// Lets the task go on without its handle. The engine keeps the buffers until it is done.
    pub(crate) fn detach(self, engine: &HostEngine, buffers: Box<dyn Any + Send>) {
        // Both halves of a `send_recv` keep the buffers. The mutex only makes them `Sync`; it is
        // never locked.
        let keep = Arc::new(Mutex::new(buffers));
        if let Some(second) = self.1 {
            engine.detach(second, Box::new(Arc::clone(&keep)));
        }
        engine.detach(self.0, Box::new(keep));
    }
}

/// Waits until one of several tasks is done, and returns its index; results are left to
/// [`Ids::wait`]. `None` for no tasks. In a forked child the parent's tasks make no progress, and
/// count as done.
pub(crate) fn first_done<'a>(tasks: impl Iterator<Item = (&'a HostEngine, Ids)>) -> Option<usize> {
    let tasks: Vec<_> = tasks.collect();
    let &(first, _) = tasks.first()?;
    let is_foreign = |&(engine, _): &(&HostEngine, Ids)| engine.check_process().is_err();
    if let Some(foreign) = tasks.iter().position(is_foreign) {
        return Some(foreign);
    }
    let mut others: Vec<&HostEngine> = Vec::new();
    for &(engine, _) in &tasks {
        if !std::ptr::eq(engine, first) && !others.iter().any(|&it| std::ptr::eq(it, engine)) {
            others.push(engine);
        }
    }
    let done = first.drive_beside(&others, None, |core| {
        tasks.iter().position(|&(engine, ids)| {
            if std::ptr::eq(engine, first) {
                return ids.are_done_in(core);
            }
            // Only a look, not a turn: the first engine is locked.
            let other = engine.core.try_lock();
            other.is_some_and(|core| ids.are_done_in(&core))
        })
    });
    Some(done)
}
