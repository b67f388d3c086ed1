//! A rank's place in its communicator: its engine of host memory, and how long it stays. Knows the
//! engine and the control plane's watch; knows no calls and no links.

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spark_ccl_control::{Fault, Leave, Watch};
use spark_ccl_fork::Forked;

use crate::error::Error;
use crate::host::{Core, HostEngine};
use crate::world::Stay;
use crate::world::exit::{self, Leaves};

/// A rank that leaves and waits for this long logs what it waits for.
const SOON: Duration = Duration::from_secs(1);

/// How long the data of finished calls may take to leave a rank that leaves at once.
const FLUSHED_WITHIN: Duration = Duration::from_millis(500);

/// Who makes a communicator's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MadeBy {
    Program,
    /// This library only; the communicator is not observed.
    #[cfg_attr(
        not(feature = "cuda"),
        expect(dead_code, reason = "only device memory is carried so")
    )]
    Library,
}

/// A rank's place in its communicator, which the communicator and the handles of operations in
/// flight hold together.
///
/// The communicator, when it is dropped, tells the other ranks that this one begins nothing more.
/// The last holder to be dropped waits for what is in flight, because the others need this rank's
/// part in it, and then leaves for good. The wait ends at the latest when the others can no longer
/// take part, or operations time out.
pub(crate) struct Membership {
    engine: Arc<HostEngine>,
    watch: Arc<Watch>,
    rank: u32,
    made_by: MadeBy,
    /// Dropped last: the rank leaves the world with its last communicator.
    _stay: Arc<Stay>,
}

impl Membership {
    pub(crate) fn new(
        engine: Arc<HostEngine>,
        watch: Arc<Watch>,
        rank: u32,
        made_by: MadeBy,
        stay: Arc<Stay>,
    ) -> Arc<Self> {
        let own = Arc::new(Self {
            engine,
            watch,
            rank,
            made_by,
            _stay: stay,
        });
        exit::add(&own);
        own
    }

    /// The engine alone. Holding it does not keep the rank in its communicator.
    pub(crate) fn engine(&self) -> &Arc<HostEngine> {
        &self.engine
    }

    /// Tells the others that this rank only takes part in calls that it has begun. Operations in
    /// flight go on.
    ///
    /// Does nothing in a forked child, nor while a panic drops handles of operations in flight.
    /// Another thread may wait for these; if none does, the last handle aborts them.
    pub(crate) fn leave(&self) {
        let left = self.engine.with(Core::leave);
        let Ok(leave) = left else { return };
        let panicked = std::thread::panicking();
        if leave.is_in_flight && panicked {
            return;
        }
        let cause = panicked.then(|| self.panicked(""));
        self.watch.leave(Leave { cause, ..leave });
    }

    /// Leaves, and does nothing more of what is in flight, which fails. The others still get the
    /// data of calls that this rank has done.
    pub(crate) fn leave_now(&self) -> Result<(), Forked> {
        self.engine.flush_within(FLUSHED_WITHIN)?;
        let leave = self.engine.with(|core| core.leave_now())?;
        self.watch.leave_now(leave);
        Ok(())
    }

    /// The fault for ranks that need this one, which ends by a panic.
    fn panicked(&self, meanwhile: &str) -> Fault {
        let reason = format!("its thread panicked{meanwhile}: look at what its process printed");
        Fault::Aborted {
            by: self.watch.member(self.rank),
            reason,
        }
    }

    /// Logs that another rank has called something else, if only a message that nobody will read
    /// shows it.
    fn mention_unread(&self) {
        if let Ok(Some(unread)) = self.engine.with(Core::unread_text) {
            let rank = self.watch.member(self.rank);
            spark_ccl_log::warn!("{rank} leaves a message unread: {unread}");
        }
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

impl Leaves for Membership {
    fn leave_at_exit(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.engine.is_idle_within(left) {
            Ok(true) => self.leave(),
            // This rank does not do its part in what is in flight.
            Ok(false) => self.watch.leave(Leave {
                cause: Some(Fault::Aborted {
                    by: self.watch.member(self.rank),
                    reason: "its process exited while operations were in flight".to_owned(),
                }),
                ..Leave::after(self.watch.finished())
            }),
            // A forked child has no part in the communicator.
            Err(Forked { .. }) => return,
        }
        // The others do not wait for calls from now on. It is no fault, for which the library would
        // end what runs on GPUs. Carriers of GPUs' calls go on with them.
        if self.made_by == MadeBy::Program {
            // Does nothing in a forked child.
            let _here = self.engine.with(Core::close);
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
            self.watch
                .raise(self.panicked(" while operations were in flight"));
        }
        self.leave();
        if !is_idle && let Err(error) = self.drain() {
            spark_ccl_log::warn!("operations whose handles were dropped have failed: {error}");
        }
        self.mention_unread();
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use spark_ccl_testing::hearing;

    use crate::api::communicator::Communicator;

    #[test]
    fn a_rank_says_once_that_it_leaves_a_message_unread() {
        let comms = Communicator::local(2).unwrap();
        for (root, comm) in comms.iter().enumerate() {
            // Both only send.
            comm.broadcast_in_place(&mut [7_u8], root).run().unwrap();
        }
        let said = Rc::new(RefCell::new(Vec::new()));
        let lines = Rc::clone(&said);
        let hear = move |text: &str| lines.borrow_mut().push(text.to_owned());
        hearing(hear, || drop(comms));
        let said = said.borrow();
        for rank in 0..2 {
            let own = format!("rank {rank} (");
            let lines = said
                .iter()
                .filter_map(|line| line.split_once("leaves a message unread"))
                .filter(|(by, _)| by.starts_with(&own));
            assert_eq!(lines.count(), 1, "rank {rank}: {said:?}");
        }
    }
}
