//! The locked engine, and the work that a thread defers until it is unlocked.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use spark_ccl_log::{Condvar, MutexGuard};

use super::HostEngine;
use crate::host::Core;
use crate::host::op_table::Buffers;

/// The locked engine. Dropping it unlocks the engine, drops the buffers and wakes the tasks that
/// the engine is done with, and emits the engine's remarks.
///
/// Its fields are dropped in their order: the lock is released first.
pub(in crate::host) struct Locked<'e> {
    core: MutexGuard<'e, Core>,
    left: Option<Box<Left>>,
}

/// The work that is deferred until the engine is unlocked: it runs code of users.
struct Left {
    discarded: Vec<Buffers>,
    remarks: Vec<String>,
}

impl HostEngine {
    /// Waits for the engine.
    #[inline]
    pub(in crate::host) fn lock(&self) -> Locked<'_> {
        locked(self.core.lock())
    }

    /// The engine, if no other thread has it.
    #[inline]
    pub(in crate::host) fn try_lock(&self) -> Option<Locked<'_>> {
        self.core.try_lock().map(locked)
    }

    /// Waits for the signal for at most `limit`, if `is_so` holds. This thread must not have the
    /// engine locked: its deferred work would wait as well.
    pub(in crate::host) fn wait_on(
        &self,
        signal: &Condvar,
        limit: Duration,
        is_so: impl FnOnce(&Core) -> bool,
    ) {
        let core = self.core.lock();
        if is_so(&core) {
            drop(signal.wait_for(core, limit));
        }
    }
}

#[inline]
fn locked(core: MutexGuard<'_, Core>) -> Locked<'_> {
    Locked { core, left: None }
}

impl Deref for Locked<'_> {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.core
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        let core = &mut *self.core;
        if core.ops.has_discarded() || !core.remarks.is_empty() {
            self.left = Some(Box::new(left_by(core)));
        }
        if std::mem::take(&mut core.has_news) && core.is_blocked {
            core.wires.bell.ring();
        }
    }
}

#[cold]
fn left_by(core: &mut Core) -> Left {
    Left {
        discarded: core.ops.discarded(),
        remarks: std::mem::take(&mut core.remarks),
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        self.discarded.clear();
        for remark in &self.remarks {
            spark_ccl_log::remark(remark);
        }
    }
}
