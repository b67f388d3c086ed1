//! One communicator's view of its ranks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::fault::{Fault, Late, Member, POINT_TO_POINT};
use crate::monitor::Monitor;
use crate::view::View;
use crate::wire::WaitingFor;

/// Follows the ranks of one communicator. All ranks here are ranks of the communicator.
///
/// Collectives are numbered 1, 2, 3, ... in the order in which they are called, alike on all
/// ranks; they finish in that order. [`enter`](Self::enter) and [`finish`](Self::finish) cost a
/// few nanoseconds and are called for each; the rest is for operations that wait.
///
/// Dropping it leaves the communicator, as [`leave`](Self::leave) does.
pub struct Watch {
    monitor: Arc<Monitor>,
    view: Arc<View>,
    has_left: AtomicBool,
}

impl Monitor {
    /// Starts to follow a communicator.
    ///
    /// `context` is its name, the same on all its ranks and unlike that of any other. `members`
    /// are the world ranks of its ranks, in order, this one among them. `describe` puts the
    /// signature of an operation in words.
    ///
    /// What is already known to be wrong with one of the members is the new watch's fault.
    pub fn watch(
        self: &Arc<Self>,
        context: u64,
        members: Vec<u32>,
        describe: fn([u64; 2]) -> String,
    ) -> Arc<Watch> {
        Arc::new(Watch {
            monitor: Arc::clone(self),
            view: self.follow(context, members, describe),
            has_left: AtomicBool::new(false),
        })
    }
}

impl Watch {
    /// Whether there is a fault. One atomic load.
    #[inline]
    pub fn failed(&self) -> bool {
        self.view.fault().is_some()
    }

    /// The first fault that this rank learned of. It stays.
    pub fn fault(&self) -> Option<Arc<Fault>> {
        self.view.fault().cloned()
    }

    /// Has `alarm` called when there is a fault from now on, to wake up those who wait. Only the first
    /// call counts.
    pub fn on_fault(&self, alarm: impl Fn() + Send + Sync + 'static) {
        let _ = self.view.alarm.set(Box::new(alarm));
    }

    /// How a rank is called, for a fault.
    pub fn member(&self, rank: u32) -> Member {
        match self.view.members.get(rank as usize) {
            Some(&world) => self.view.member(world),
            None => Member {
                rank,
                world: rank,
                name: format!("rank {rank}").into(),
            },
        }
    }

    /// Records that this rank enters collective `sequence`, one caller at a time.
    ///
    /// A fault when it is known that another rank called something else, or left before.
    #[inline]
    pub fn enter(&self, sequence: u64, signature: [u64; 2]) {
        self.view.history.record(sequence, signature);
        if self.view.needs_inspection(sequence) {
            self.inspect(sequence, signature);
        }
    }

    #[cold]
    fn inspect(&self, sequence: u64, signature: [u64; 2]) {
        self.monitor
            .with(|state| state.inspect(self.view.context, sequence, signature));
    }

    /// Records that this rank's part in collective `sequence`, and all before it, is done.
    ///
    /// A rank that has done its part is not [`late`](Self::late) for the others.
    #[inline]
    pub fn finish(&self, sequence: u64) {
        self.view.finish(sequence);
    }

    /// The signature with which this rank entered collective `sequence`, if that is not long ago.
    pub fn called(&self, sequence: u64) -> Option<[u64; 2]> {
        self.view.history.get(sequence)
    }

    /// Tells all ranks that this one waits in an operation, and for whom.
    ///
    /// For an operation that has waited for 200 ms, and again each second; at once when a message
    /// arrives that belongs to another operation, so that its sender can say what it called. Of a
    /// point-to-point operation, `sequence` is marked with [`POINT_TO_POINT`].
    pub fn announce(&self, sequence: u64, signature: [u64; 2], waiting_for: Option<u32>) {
        let world = waiting_for.and_then(|rank| self.view.members.get(rank as usize));
        let waiting = world.map_or(WaitingFor::Anyone, |&world| WaitingFor::Rank(world));
        let context = self.view.context;
        self.monitor
            .with(|state| state.announce(context, sequence, signature, waiting, Instant::now()));
    }

    /// The ranks that have neither finished collective `sequence` nor said within `window` that
    /// they wait in it. Use a window of some seconds: ranks that wait say so once a second, and
    /// those that do not answer them about as often.
    pub fn late(&self, sequence: u64, window: Duration) -> Vec<Late> {
        debug_assert!(
            sequence & POINT_TO_POINT == 0,
            "its peer is late, nobody else"
        );
        let late = self.monitor.with(|state| {
            let roster = state.roster(self.view.context);
            roster.map(|roster| roster.late(sequence, window, Instant::now()))
        });
        late.flatten().unwrap_or_default()
    }

    /// What is known of one rank: its last operation, and how long ago anything was heard of it.
    ///
    /// For a point-to-point operation that waits for that rank alone.
    pub fn last_seen(&self, rank: u32) -> Late {
        let known = self.monitor.with(|state| {
            state
                .roster(self.view.context)?
                .last_seen(rank, Instant::now())
        });
        known.flatten().unwrap_or_else(|| Late {
            rank: self.member(rank),
            last: None,
            age: Duration::MAX,
        })
    }

    /// Who waits for whom, a line per rank.
    pub fn progress_report(&self) -> String {
        let report = self.monitor.with(|state| {
            let roster = state.roster(self.view.context);
            roster.map(|roster| roster.report(Instant::now()))
        });
        report.flatten().unwrap_or_default()
    }

    /// Fails the communicator, here and on all its ranks. Where there is a fault already, that
    /// one stays and this one goes no further.
    ///
    /// [`Fault::Left`] stays here: it is the concern of those who need the rank that left.
    pub fn raise(&self, fault: Fault) {
        self.monitor
            .with(|state| state.raise(self.view.context, fault));
    }

    /// Tells all ranks that this one leaves the communicator and takes part in no collective
    /// after `last_sequence`. Only the first call counts.
    pub fn leave(&self, last_sequence: u64) {
        // On its own: decides which caller is the first, and publishes nothing.
        if !self.has_left.swap(true, Ordering::Relaxed) {
            self.monitor
                .with(|state| state.leave(self.view.context, last_sequence));
        }
    }

    /// The last collective that a rank took part in, if it has left; 0 for none.
    pub fn left(&self, rank: u32) -> Option<u64> {
        self.monitor
            .with(|state| state.roster(self.view.context)?.left(rank))
            .flatten()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.leave(self.view.finished());
        self.monitor.with(|state| state.unwatch(&self.view));
    }
}
