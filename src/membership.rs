//! A rank's place in its communicator: its engine of host memory, and how long it stays. Knows the engine and the
//! control plane's watch; knows no calls and no links.

use crate::engine::Engine;
use crate::error::Error;
use crate::host::HostEngine;
use crate::world::Stay;
use spark_ccl_control::{Fault, Watch};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// After this, a rank that leaves says what it waits for.
const SOON: Duration = Duration::from_secs(1);

/// A rank's place in its communicator, which the communicator and the handles of operations in flight
/// hold together.
///
/// The communicator, when it is dropped, tells the other ranks that this one begins nothing more.
/// The last holder to be dropped waits for what is in flight, because the others need this rank's
/// part in it, and then leaves for good. That lasts until the others cannot take part in it any
/// more, and no longer than operations may take.
pub(crate) struct Membership {
    engine: Arc<HostEngine>,
    watch: Arc<Watch>,
    rank: u32,
    /// Dropped last: the rank leaves the world with its last communicator.
    _stay: Option<Arc<Stay>>,
}

impl Membership {
    pub(crate) fn new(
        engine: Arc<HostEngine>,
        watch: Arc<Watch>,
        rank: u32,
        stay: Option<Arc<Stay>>,
    ) -> Self {
        Self {
            engine,
            watch,
            rank,
            _stay: stay,
        }
    }

    /// The engine alone. Holding it does not keep the rank in its communicator.
    pub(crate) fn engine(&self) -> &Arc<HostEngine> {
        &self.engine
    }

    /// Tells the others that this rank takes part in nothing that it has not begun. What is in
    /// flight goes on.
    ///
    /// Does nothing in a forked child, nor while a panic drops handles of what is in flight:
    /// another thread may wait for that, and if none does, the last handle aborts it.
    pub(crate) fn leave(&self) {
        let left = self.engine.with(|core| (core.leave(), core.unread_text()));
        let Ok((leave, unread)) = left else { return };
        if leave.is_in_flight && std::thread::panicking() {
            return;
        }
        if let Some(unread) = unread {
            let rank = self.watch.member(self.rank);
            spark_ccl_log::warn!("{rank} leaves a message unread: {unread}");
        }
        self.watch.leave(leave);
    }

    /// Waits for what is in flight. Says so if that takes long.
    fn drain(&self) -> Result<(), Error> {
        if !self.engine.is_idle_within(SOON)? {
            let rank = self.watch.member(self.rank);
            spark_ccl_log::warn!(
                "{rank} leaves, and waits for the other ranks' parts in what it has in flight, \
                 until the operation timeout at most; wait for operations before their handles \
                 are dropped"
            );
        }
        self.engine.drain()
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
        self.leave();
        if !is_idle && let Err(error) = self.drain() {
            spark_ccl_log::warn!("operations whose handles were dropped have failed: {error}");
        }
        self.leave();
    }
}
