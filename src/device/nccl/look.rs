//! The guard's checks for NCCL alone: whether NCCL's calls return, and which errors NCCL has
//! noticed.

use std::time::{Duration, Instant};

use super::NcclEngine;
use super::engine::noticed;
use crate::device::watched_engine::WatchedEngine;

/// The pause between two questions to the other ranks whether they have made the same calls.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// The guard's notes between two looks.
pub(super) struct GuardNotes {
    /// The calls at the last look.
    before: u64,
    /// The NCCL call that has not come back.
    inside: Option<Stuck>,
    /// How long the next call without a time limit of its own may take.
    timeout: Duration,
    /// When the other ranks were last asked about this one's calls.
    asked: Instant,
}

/// An NCCL call that has not come back.
#[derive(Clone, Copy)]
struct Stuck {
    call: u64,
    since: Instant,
    /// How long the call may take.
    limit: Duration,
}

impl GuardNotes {
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
    pub(super) fn look(&self, notes: &mut GuardNotes) {
        if let Some(fault) = self.base.watch.latent() {
            // An NCCL communicator works only with all its ranks.
            self.base.watch.raise((*fault).clone());
            return;
        }
        self.look_inside(notes);
        if notes.asked.elapsed() >= ASK_EVERY {
            notes.asked = Instant::now();
            // The user may wait by CUDA's own means, which this library does not see.
            self.ask_about(self.base.watch.calls_made());
        }
        if let Some(state) = self.base.state.try_lock() {
            (notes.timeout, notes.before) = (state.calls.patience(), state.calls.count);
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

    /// An NCCL call that does not return cannot be ended, but the other ranks need not wait for it.
    fn look_inside(&self, notes: &mut GuardNotes) {
        let Some((begun, own)) = self.inside.last() else {
            notes.inside = None;
            return;
        };
        match notes.inside {
            Some(Stuck { call, since, limit }) if call == begun => {
                if since.elapsed() > limit {
                    self.base.raise_timeout(notes.before + 1, since.elapsed());
                }
            }
            _ => {
                notes.inside = Some(Stuck {
                    call: begun,
                    since: Instant::now(),
                    limit: notes.timeout.max(own),
                });
            }
        }
    }
}
