//! What else the guard checks for NCCL: whether its calls return, and which errors it has noticed.

use super::NcclEngine;
use super::engine::noticed;
use crate::device::guarded::Guarded;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What the guard remembers between two looks.
pub(super) struct Memory {
    /// The calls at the last look.
    before: u64,
    /// The call of NCCL's that has not come back.
    inside: Option<Inside>,
    /// How long the next one may take.
    timeout: Duration,
}

/// A call of NCCL's that has not come back.
#[derive(Clone, Copy)]
struct Inside {
    call: u64,
    since: Instant,
    /// How long it may take.
    limit: Duration,
}

impl Memory {
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            before: 0,
            inside: None,
            timeout,
        }
    }
}

impl NcclEngine {
    pub(super) fn look(&self, memory: &mut Memory) {
        self.look_inside(memory);
        if let Some(state) = self.base.state.try_lock() {
            (memory.timeout, memory.before) = (state.calls.timeout, state.calls.count);
        }
        if !self.base.look(Duration::ZERO, self.progress()) {
            return;
        }
        let state = self.base.state.try_lock();
        let noticed = state.and_then(|state| noticed(&state));
        if let Some(error) = noticed {
            self.failed("ncclCommGetAsyncError", error);
        }
    }

    /// A call of NCCL's that does not return cannot be ended, but the other ranks need not wait for it.
    fn look_inside(&self, memory: &mut Memory) {
        let begun = self.begun.load(Ordering::Relaxed);
        if begun == self.ended.load(Ordering::Relaxed) {
            memory.inside = None;
            return;
        }
        match memory.inside {
            Some(Inside { call, since, limit }) if call == begun => {
                if since.elapsed() > limit {
                    self.base.raise_timeout(memory.before + 1, since.elapsed());
                }
            }
            _ => {
                memory.inside = Some(Inside {
                    call: begun,
                    since: Instant::now(),
                    limit: memory.timeout,
                });
            }
        }
    }
}
