//! A communicator's handle on the control plane, which engines call. It knows operations only by
//! number and signature.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device_calls::DeviceCalls;
use crate::fault::{Fault, Late, Member, is_apart};
use crate::leave::Leave;
use crate::monitor::Monitor;
use crate::proposal::Proposal;
use crate::standing::{KINDS, Standing};
use crate::view::View;
use crate::wire::WaitingFor;

/// Follows the ranks of one communicator. All ranks here are ranks of the communicator.
///
/// Collectives are numbered 1, 2, 3, ... in the order in which they are called, which is the same
/// on all ranks, and they finish in that order. [`enter`](Self::enter) and [`finish`](Self::finish)
/// are called for each of them, and cost a few nanoseconds. The other methods are for operations
/// that wait.
///
/// Dropping it leaves the communicator, as [`leave`](Self::leave) does.
pub struct Watch {
    monitor: Arc<Monitor>,
    view: Arc<View>,
}

impl Monitor {
    /// Starts to follow a communicator.
    ///
    /// `context` identifies the communicator: it is the same on all its ranks, and different from
    /// any other's. `members` are the world ranks of its ranks, in order, including this one.
    /// `describe` puts an operation's signature in words.
    ///
    /// If one of the members is already known to have ended, its first collective fails.
    pub fn watch(
        self: &Arc<Self>,
        context: u64,
        members: Vec<u32>,
        describe: fn([u64; 2]) -> String,
    ) -> Arc<Watch> {
        Arc::new(Watch {
            monitor: Arc::clone(self),
            view: self.follow(context, members, describe),
        })
    }
}

impl Watch {
    /// Whether there is a fault. Costs one atomic load.
    #[inline]
    pub fn failed(&self) -> bool {
        self.view.fault().is_some()
    }

    /// The first fault that this rank learned of. Later ones do not replace it.
    pub fn fault(&self) -> Option<Arc<Fault>> {
        self.view.fault().cloned()
    }

    /// The fault of calls that need a member whose process ended, or that was lost, while this rank
    /// was in no collective. [`enter`](Self::enter) raises it in the next collective. Engines ask
    /// for it before messages with that member, and before calls that are not counted here. Costs
    /// one atomic load if there is none.
    pub fn latent(&self) -> Option<Arc<Fault>> {
        self.view.latent().cloned()
    }

    /// The same for calls that need this member alone.
    pub fn latent_of(&self, rank: u32) -> Option<Fault> {
        self.view.latent()?;
        let left = self.left(rank)?;
        left.cause.filter(|cause| cause.is_end_of(rank))
    }

    /// Whether all members are there, without a fault.
    pub fn is_whole(&self) -> bool {
        !self.failed() && self.view.latent().is_none()
    }

    /// Calls `alarm` when a fault occurs from now on, or a member ends, to wake up waiting threads.
    /// Only the first call of this method counts. Once this returns, [`failed`](Self::failed) and
    /// [`latent`](Self::latent) see all earlier events.
    ///
    /// `alarm` runs with the monitor's mutex held: it must not block, and must not call this watch.
    pub fn on_fault(&self, alarm: impl Fn() + Send + Sync + 'static) {
        // Under the mutex, as faults are recorded: else the thread that records one could miss the
        // alarm, while this one misses the fault.
        self.monitor
            .with(|_| self.view.alarm.set(Box::new(alarm)).is_ok());
    }

    /// The context that identifies the communicator.
    pub fn context(&self) -> u64 {
        self.view.context
    }

    /// A rank with its numbers and name, for a fault.
    pub fn member(&self, rank: u32) -> Member {
        match self.view.members.get(rank as usize) {
            Some(&world) => self.view.member(world),
            None => Member::new(rank, rank, format!("rank {rank}").into()),
        }
    }

    /// Records that this rank enters collective `sequence`. Callers must be serialised.
    ///
    /// The communicator fails if another rank is known to have called something else, or to have
    /// left before.
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

    /// Records that this rank has done its part in collective `sequence` and all before it.
    ///
    /// Other ranks do not count a rank that has done its part as [`late`](Self::late).
    #[inline]
    pub fn finish(&self, sequence: u64) {
        self.view.finish(sequence);
    }

    /// The last collective in which this rank has done its part.
    pub fn finished(&self) -> u64 {
        self.view.finished()
    }

    /// The signature with which this rank entered collective `sequence`, if that was one of the
    /// last 64.
    pub fn called(&self, sequence: u64) -> Option<[u64; 2]> {
        self.view.history.get(sequence)
    }

    /// Records the call of device memory with this number, counted from 1 and alike on all ranks. A
    /// rank that announces another call of this number is then at fault. One thread records.
    pub fn record_on_device(&self, number: u64, signature: [u64; 2]) {
        self.view.on_device.record(number, signature);
    }

    /// The signature of the call of device memory with this number, if it was recorded and is one
    /// of the last 64.
    pub fn called_on_device(&self, number: u64) -> Option<[u64; 2]> {
        self.view.on_device.get(number)
    }

    /// Announces that this rank waits in an operation, and for which rank.
    ///
    /// Call it once an operation has waited for 200 ms, and every second after that. Call it at
    /// once if a message of another operation arrives, so that its sender can say what it called.
    /// The `sequence` of a point-to-point operation is marked with
    /// [`POINT_TO_POINT_MARK`](crate::POINT_TO_POINT_MARK), that of a call of device memory with
    /// [`DEVICE_MARK`](crate::DEVICE_MARK).
    pub fn announce(&self, sequence: u64, signature: [u64; 2], waiting_for: Option<u32>) {
        let world = waiting_for.and_then(|rank| self.view.members.get(rank as usize));
        let waiting = world.map_or(WaitingFor::Anyone, |&world| WaitingFor::Rank(world));
        let context = self.view.context;
        self.monitor
            .with(|state| state.announce(context, sequence, signature, waiting, Instant::now()));
    }

    /// Repeats here a wait that this rank has announced in `part` after `start`. `part` is another
    /// communicator of the same ranks, which does a part of a call. `whole` makes the number and
    /// the signature of the call from those of the part. Returns false if there is none.
    pub fn announce_part(
        &self,
        part: &Self,
        start: Instant,
        whole: impl FnOnce(u64, [u64; 2]) -> (u64, [u64; 2]),
    ) -> bool {
        let announced = self.monitor.with(|state| {
            let now = Instant::now();
            let wait = state.table(part.view.context)?.own_wait(start, now)?;
            let waiting = wait.for_rank.map_or(WaitingFor::Anyone, WaitingFor::Rank);
            let (sequence, signature) = whole(wait.sequence, wait.signature);
            state.announce(self.view.context, sequence, signature, waiting, now);
            Some(())
        });
        announced.flatten().is_some()
    }

    /// The ranks that have neither finished collective `sequence` nor announced within `window`
    /// that they wait in it. A rank that waits in another operation is replaced by the rank that it
    /// waits for, in turn.
    ///
    /// Use a window of some seconds: ranks that wait announce it once a second, and the others
    /// answer about as often.
    pub fn late(&self, sequence: u64, window: Duration) -> Vec<Late> {
        debug_assert!(!is_apart(sequence), "who is late, its own rank knows");
        let late = self.monitor.with(|state| {
            let table = state.table(self.view.context);
            table.map(|table| table.late(sequence, window, Instant::now()))
        });
        late.flatten().unwrap_or_default()
    }

    /// The knowledge about one rank: its last operation, and the time since it was last heard.
    ///
    /// This is for point-to-point operations, which wait for that rank alone; see
    /// [`awaited`](Self::awaited).
    pub fn last_seen(&self, rank: u32) -> Late {
        let known = self.monitor.with(|state| {
            state
                .table(self.view.context)?
                .last_seen(rank, Instant::now())
        });
        known.flatten().unwrap_or_else(|| Late {
            rank: self.member(rank),
            last: None,
            age: None,
            needs_thread: false,
        })
    }

    /// Like [`last_seen`](Self::last_seen), for `rank`, for the rank that it waits for in a message
    /// or on its device, and so on: the last of them holds up the others.
    pub fn awaited(&self, rank: u32) -> Vec<Late> {
        let others = self.monitor.with(|state| {
            let table = state.table(self.view.context)?;
            Some(table.awaited_in_turn(rank, Instant::now()))
        });
        let others = others.flatten().unwrap_or_default();
        let chain = std::iter::once(rank).chain(others);
        chain.map(|rank| self.last_seen(rank)).collect()
    }

    /// Like [`awaited`](Self::awaited), from the rank on that this one has announced to wait for on
    /// its device. Empty if it has announced none.
    pub fn awaited_on_device(&self) -> Vec<Late> {
        let awaited = self.monitor.with(|state| {
            let table = state.table(self.view.context)?;
            table.awaited_on_device(Instant::now())
        });
        awaited
            .flatten()
            .map_or_else(Vec::new, |rank| self.awaited(rank))
    }

    /// Sets the function that counts this rank's calls by kind, for ranks that ask how far it is.
    /// Only the first call of this method counts.
    ///
    /// `calls` runs with the monitor's mutex held: it must not block, and must not call this watch.
    pub fn count_calls(&self, calls: impl Fn() -> [u64; KINDS] + Send + Sync + 'static) {
        let _is_first = self.view.calls.set(Box::new(calls)).is_ok();
    }

    /// Asks all other ranks how far they are. [`standings`](Self::standings) has their answers when
    /// they come.
    pub fn ask(&self) {
        let all = self.view.members.iter().copied().collect();
        self.ask_some(&all);
    }

    /// Asks some of the other ranks, by their ranks in the world.
    pub fn ask_some(&self, whom: &BTreeSet<u32>) {
        self.monitor
            .with(|state| state.ask(self.view.context, whom));
    }

    /// How long ago each other rank last answered, by world rank. Ranks that never did are missing.
    pub fn answered(&self) -> HashMap<u32, Duration> {
        let standings = self.standings().into_iter();
        let answers = standings.filter_map(|it| Some((it.rank.world as u32, it.answer?.1)));
        answers.collect()
    }

    /// The known progress of each rank, by rank.
    pub fn standings(&self) -> Vec<Standing> {
        let context = self.view.context;
        let standings = self
            .monitor
            .with(|state| state.standings(context, Instant::now()));
        standings.unwrap_or_default()
    }

    /// Fails the communicator, here and on all its ranks. If it has a fault already, that one stays
    /// and this one is dropped.
    ///
    /// [`Fault::Left`], [`Fault::Died`] and [`Fault::Lost`] are not spread: they concern only the
    /// ranks that need the one that left or ended. These hear that this one takes part in nothing
    /// further.
    pub fn raise(&self, fault: Fault) {
        self.monitor
            .with(|state| state.raise(self.view.context, fault));
    }

    /// Tells all ranks that this one leaves the communicator, and only takes part in calls that it
    /// has begun. Only the first call counts, and the first with nothing in flight.
    pub fn leave(&self, leave: Leave) {
        let leave = self.with_device_calls(leave);
        self.monitor
            .with(|state| state.leave_once(&self.view, leave));
    }

    /// Like [`leave`](Self::leave), for a rank that completes no further call, as `leave` says: its
    /// calls fail with [`Fault::Left`], on this rank only.
    pub fn leave_now(&self, leave: Leave) {
        let leave = self.with_device_calls(leave);
        self.monitor
            .with(|state| state.leave_now(&self.view, leave));
    }

    fn with_device_calls(&self, leave: Leave) -> Leave {
        let device_calls = self.view.device_calls.get().cloned().unwrap_or_default();
        Leave {
            device_calls,
            ..leave
        }
    }

    /// Says which calls of device memory this rank has done, before it [leaves](Self::leave). Only
    /// the first call counts; without one, it has done none.
    pub fn has_done(&self, calls: DeviceCalls) {
        let _is_first = self.view.device_calls.set(calls).is_ok();
    }

    /// Records a call of device memory, which all ranks make alike and in the same order, before it
    /// can run. Callers must be serialised.
    ///
    /// The communicator fails if another rank is known to have made a different one.
    pub fn record_call(&self, signature: [u64; 2]) {
        if self.view.ledger.lock().add(signature) {
            let context = self.view.context;
            self.monitor.with(|state| state.compare_pending(context));
        }
    }

    /// Takes back the last call recorded, which was refused before anything of it could run.
    /// Callers must be serialised.
    pub fn take_back_call(&self) {
        self.view.ledger.lock().take_back();
    }

    /// How many calls of device memory this rank has recorded.
    pub fn calls_made(&self) -> u64 {
        self.view.ledger.lock().count()
    }

    /// The last recorded call up to which other ranks are known to have made the same, in the same
    /// order. These are all other ranks in a communicator of up to 8, else the
    /// [`neighbours`](crate::neighbours). Costs one atomic load.
    pub fn calls_compared(&self) -> u64 {
        self.view.compared()
    }

    /// How many claims other ranks have made about their calls. Costs one atomic load.
    pub fn calls_claimed(&self) -> u64 {
        self.view.claims()
    }

    /// Asks the ranks of [`calls_compared`](Self::calls_compared) whether they have made the same
    /// calls. Their monitors answer, whatever the ranks do. Returns the number of the question.
    pub fn ask_of_calls(&self) -> u64 {
        let context = self.view.context;
        let asked = self.monitor.with(|state| state.ask_of_calls(context));
        asked.unwrap_or_default()
    }

    /// The asked ranks that are still there, and of which this one knows neither the same calls up
    /// to `number` nor an answer to `question`. A rank that answers without having made those calls
    /// is alive, and just not as far.
    pub fn uncompared(&self, number: u64, question: u64) -> Vec<u32> {
        let context = self.view.context;
        let ranks = self.monitor.with(|state| {
            let table = state.table(context);
            table.map(|table| table.uncompared(number, question))
        });
        ranks.flatten().unwrap_or_default()
    }

    /// Tells the other ranks how this one wants to go on after the communicator.
    pub fn propose(&self, proposal: Proposal) {
        self.monitor
            .with(|state| state.propose(self.view.context, proposal));
    }

    /// The latest proposals of the other ranks, by their ranks in the world.
    pub fn proposals(&self) -> HashMap<u32, Proposal> {
        let proposals = self.monitor.with(|state| {
            let table = state.table(self.view.context);
            table.map(|table| table.proposals.clone())
        });
        proposals.flatten().unwrap_or_default()
    }

    /// Tells all ranks that this one will not be in a communicator that it had proposed.
    pub fn renounce(&self, proposed: u64) {
        self.monitor
            .with(|state| state.leave(proposed, Leave::default()));
    }

    /// The ranks of the world that are gone, as far as this rank knows: they died, are lost, or
    /// have said goodbye. It names itself where others have given it up.
    pub fn gone(&self) -> BTreeSet<u32> {
        self.monitor.with(|state| state.gone()).unwrap_or_default()
    }

    /// The gone ranks that have ended for sure: they have said goodbye, or a rank on the same host
    /// has seen them die, as the kernel reports. Lost ranks may still work somewhere. So may ranks
    /// on hosts that refuse connections, since a firewall may refuse them.
    pub fn ended(&self) -> BTreeSet<u32> {
        self.monitor
            .with(|state| state.ended_ranks())
            .unwrap_or_default()
    }

    /// Whether a member has died or is lost, as far as this rank knows, also if it had left the
    /// communicator before.
    pub fn has_lost_a_process(&self) -> bool {
        let members = &self.view.members;
        let lost = self
            .monitor
            .with(|state| members.iter().any(|&world| state.is_lost(world)));
        lost.unwrap_or_default()
    }

    /// A rank's leave, perhaps with calls in flight.
    pub fn left(&self, rank: u32) -> Option<Leave> {
        let leave = self
            .monitor
            .with(|state| state.table(self.view.context)?.left(rank).cloned())
            .flatten()?;
        let cause = leave.cause.map(|cause| self.view.localise(cause));
        Some(Leave { cause, ..leave })
    }

    /// The fault, if a member has left, of an operation after all calls so far that needs all
    /// members. `words` names the operation.
    pub fn left_before(&self, words: &str) -> Option<Fault> {
        let members = 0..self.view.members.len() as u32;
        members.into_iter().find_map(|rank| {
            let leave = self.left(rank)?;
            Some(leave.cause.unwrap_or_else(|| Fault::Left {
                rank: self.member(rank),
                last_sequence: leave.last_sequence,
                sequence: self.finished() + 1,
                words: words.to_owned(),
            }))
        })
    }

    /// A rank's leave if nothing is in flight, or the record of its end.
    pub fn has_left(&self, rank: u32) -> Option<Leave> {
        self.left(rank).filter(|leave| !leave.is_in_flight)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.leave(Leave::after(self.view.finished()));
        self.monitor.with(|state| state.unwatch(&self.view));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults are recorded under the monitor's mutex, too. So a thread that sets an alarm either is
    /// alarmed, or finds the fault recorded already.
    #[test]
    fn no_alarm_is_set_while_a_fault_is_being_recorded() {
        let monitor = Monitor::start(0, vec!["rank 0".to_owned()], Vec::new(), None).unwrap();
        let watch = monitor.watch(7, vec![0], |_| String::new());
        std::thread::scope(|scope| {
            monitor.with(|_| {
                scope.spawn(|| watch.on_fault(|| {}));
                std::thread::sleep(Duration::from_millis(200));
                assert!(watch.view.alarm.get().is_none());
            });
        });
        assert!(watch.view.alarm.get().is_some());
    }
}
