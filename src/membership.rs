//! A rank's place in its communicator: its engine of host memory, and how long it stays. Knows the engine and the
//! control plane's watch; knows no calls and no links.

use crate::engine::Engine;
use crate::host::HostEngine;
use spark_ccl_control::{Fault, Watch};
use std::ops::Deref;
use std::sync::Arc;

/// A rank's place in its communicator, which the communicator and the handles of operations in flight
/// hold together.
///
/// The last of them to be dropped waits for what is in flight still, because the other ranks need this one's part in
/// it, and then leaves the communicator. That lasts no longer than operations may take.
pub(crate) struct Membership {
    engine: Arc<HostEngine>,
    watch: Arc<Watch>,
    rank: u32,
}

impl Membership {
    pub(crate) fn new(engine: Arc<HostEngine>, watch: Arc<Watch>, rank: u32) -> Self {
        Self {
            engine,
            watch,
            rank,
        }
    }

    /// The engine alone. Holding it does not keep the rank in its communicator.
    pub(crate) fn engine(&self) -> &Arc<HostEngine> {
        &self.engine
    }

    /// Leaves the communicator, unless something is in flight or this is a forked child.
    pub(crate) fn leave_if_idle(&self) {
        let last = self
            .engine
            .with(|core| core.is_idle().then(|| core.last_sequence()));
        if let Ok(Some(last)) = last {
            self.watch.leave(last);
        }
    }
}

impl Deref for Membership {
    type Target = HostEngine;

    fn deref(&self) -> &HostEngine {
        &self.engine
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // A forked child has no part in the communicator.
        let Ok(is_idle) = self.engine.with(|core| core.is_idle()) else {
            return;
        };
        // The others may wait for something else that the panic keeps this rank from.
        if std::thread::panicking() && !is_idle {
            self.watch.raise(Fault::Aborted {
                by: self.watch.member(self.rank),
                reason: "its thread panicked while operations were in flight".to_owned(),
            });
        }
        if let Err(error) = self.engine.drain() {
            spark_ccl_log::warn!("operations whose handles were dropped have failed: {error}");
        }
        self.leave_if_idle();
    }
}
