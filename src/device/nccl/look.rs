//! What else the guard checks for NCCL: whether its calls return, and which errors it has noticed.

use std::time::{Duration, Instant};

use super::NcclEngine;
use super::engine::noticed;
use crate::device::guarded::Guarded;

/// How often the other ranks are asked whether they have made the same calls.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// What the guard remembers between two looks.
pub(super) struct Memory {
    /// The calls at the last look.
    before: u64,
    /// The call of NCCL's that has not come back.
    inside: Option<Stuck>,
    /// How long the next one may take without a time of its own.
    timeout: Duration,
    /// When the other ranks were last asked about this one's calls.
    asked: Instant,
}

/// A call of NCCL's that has not come back.
#[derive(Clone, Copy)]
struct Stuck {
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
            asked: Instant::now(),
        }
    }
}

impl NcclEngine {
    pub(super) fn look(&self, memory: &mut Memory) {
        if let Some(fault) = self.base.watch.latent() {
            // NCCL's communicator works with all its ranks only.
            self.base.watch.raise((*fault).clone());
            return;
        }
        self.look_inside(memory);
        if memory.asked.elapsed() >= ASK_EVERY {
            memory.asked = Instant::now();
            // A program may wait by CUDA's own means, of which this library does not know.
            self.ask_about(self.base.watch.calls_made());
        }
        if let Some(state) = self.base.state.try_lock() {
            (memory.timeout, memory.before) = (state.calls.patience(), state.calls.count);
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

    /// A call of NCCL's that does not return cannot be ended, but the other ranks need not wait for
    /// it.
    fn look_inside(&self, memory: &mut Memory) {
        let Some((begun, own)) = self.inside.last() else {
            memory.inside = None;
            return;
        };
        match memory.inside {
            Some(Stuck { call, since, limit }) if call == begun => {
                if since.elapsed() > limit {
                    self.base.raise_timeout(memory.before + 1, since.elapsed());
                }
            }
            _ => {
                memory.inside = Some(Stuck {
                    call: begun,
                    since: Instant::now(),
                    limit: memory.timeout.max(own),
                });
            }
        }
    }
}
