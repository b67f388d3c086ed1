//! The guard: a thread that ends calls which cannot complete. The user may wait for streams by
//! CUDA's own means, which know nothing of communicators, so the library's own waits are not
//! enough.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use spark_ccl_control::{DeviceCalls, Fault};
use spark_ccl_log::{Mutex, MutexGuard};

use super::allocation::{free_in_background, tidy_in_background};
use super::calls::{CallEnd, Mark};
use super::rank::{DeviceRank, DeviceState};
use super::watched_engine::WatchedEngine;
use crate::error::Error;
use crate::memory::device::block;
use crate::memory::device::set_aside::{self, Enqueues};
use crate::world::exit::{self, Leaves};

/// How often it looks. A rank's death is noticed within milliseconds, and nobody waits for less.
const TICK: Duration = Duration::from_millis(50);
/// How long a call may continue after a rank has left without its part in the call. The part may
/// still be there: parts in graphs are not counted.
const AFTER_A_FAREWELL: Duration = Duration::from_secs(2);
/// The time after which the stream of a call that is not enqueued counts as full.
const FULL_AFTER: Duration = Duration::from_secs(1);

/// Watches an engine as long as the engine exists; `look` checks whether something has gone wrong.
pub(super) fn start<E: WatchedEngine>(
    engine: &Arc<E>,
    look: impl FnMut(&E) + Send + 'static,
) -> Result<(), Error> {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    // Registered once CUDA is there: the function asks CUDA which calls have run.
    exit::register(&IS_REGISTERED);
    exit::add(engine);
    let (device, most) = (engine.base().device(), engine.base().most_set_aside);
    let engine = Arc::downgrade(engine);
    set_aside::add(device, most, engine.clone());
    spark_ccl_log::spawn("spark-gpu-guard", move || watch_over(&engine, look))
        .map(drop)
        .map_err(|error| Error::System {
            what: "starting the thread that watches over calls of device memory".to_owned(),
            problem: error.to_string(),
        })
}

fn watch_over<E: WatchedEngine>(engine: &Weak<E>, mut look: impl FnMut(&E)) {
    loop {
        std::thread::sleep(TICK);
        let Some(engine) = engine.upgrade() else {
            break;
        };
        if engine.base().watch.failed() {
            engine.abort();
            block::sweep();
            if set_aside::is_ready() {
                free_in_background(&engine);
            }
            continue;
        }
        look(&engine);
        engine.observe_ends();
        block::sweep();
        if engine.has_leftovers() || set_aside::is_ready() {
            tidy_in_background(&engine);
        }
    }
    block::free_the_rest();
}

impl<E: WatchedEngine> Enqueues for E {
    fn is_idle(&self) -> bool {
        let Some(state) = self.base().state.try_lock() else {
            return false;
        };
        // Kernels of a communicator that has ended wait for nobody.
        state.backend.is_none() || !state.calls.may_run()
    }
}

impl<E: WatchedEngine> Leaves for E {
    fn leave_at_exit(&self, deadline: Instant) {
        let base = self.base();
        // The membership leaves afterwards. Where calls do not end, or CUDA is gone, the other
        // ranks get an error at calls that need this rank.
        if let Ok(true) = base.subside(deadline) {
            base.tell_what_is_done();
        }
    }
}

impl<B> DeviceRank<B> {
    /// Checks the watched call, which may go without progress for `grace` longer than its time.
    /// Returns whether there is one. While another thread holds the state, it only checks whether a
    /// rank has ended.
    pub(super) fn look(&self, grace: Duration, progress: u64) -> bool {
        let mut state = match held(&self.state, self.watch.latent()) {
            Ok(Some(state)) => state,
            Ok(None) => return false,
            Err(fault) => {
                self.watch.raise((*fault).clone());
                return true;
            }
        };
        let DeviceState { calls, .. } = &mut *state;
        if let Err(error) = calls.look(progress) {
            drop(self.lost(error));
        }
        // `check_members` asks this before a call is enqueued; but a rank may end later.
        let of_an_end = |rank| {
            let fault = self.watch.latent_of(rank);
            fault.filter(|_| calls.may_need(rank))
        };
        if let Some(fault) = (0..self.size as u32).find_map(of_an_end) {
            drop(state);
            self.watch.raise(fault);
            return true;
        }
        let Some(mark) = &mut calls.mark else {
            return false;
        };
        let waited = mark.stall.lasts(progress);
        let limit = mark.end.limit.saturating_add(grace);
        let fault = self.judge(mark, &calls.ran, waited, limit);
        drop(state);
        if let Some(fault) = fault {
            self.watch.raise(fault);
        }
        true
    }

    /// The fault of a call that takes too long, or needs a call that a rank has left without.
    fn judge(
        &self,
        mark: &mut Mark,
        ran: &DeviceCalls,
        waited: Duration,
        limit: Duration,
    ) -> Option<Fault> {
        if waited > limit {
            return Some(self.stalled(mark.end.calls, waited));
        }
        let left = (0..self.size as u32).find(|&rank| self.lacks(&mark.end, ran, rank))?;
        let (rank, since) = *mark.farewell.get_or_insert((left, Instant::now()));
        // All ranks get the fault: the output of a call that is aborted here may look like a result
        // to them.
        (since.elapsed() > AFTER_A_FAREWELL).then(|| Fault::Aborted {
            by: self.member(),
            reason: format!(
                "{} left the communicator, but call {} on device {} needs it",
                self.watch.member(rank),
                mark.end.calls,
                self.device()
            ),
        })
    }

    /// Whether a rank has left without its part in a call up to `end`. The data of parts that it
    /// has done are there, or on their way.
    fn lacks(&self, end: &CallEnd, ran: &DeviceCalls, rank: u32) -> bool {
        let left = self.watch.has_left(rank);
        left.is_some_and(|left| !left.meets(rank, self.rank as u32, &end.made, ran))
    }
}

/// The state; `None` if another thread holds it. With a `latent` fault, waits a second for the
/// state, and then returns the fault: the holder enqueues into a full stream, whose calls may wait
/// for the rank that has ended.
fn held<T, F>(state: &Mutex<T>, latent: Option<F>) -> Result<Option<MutexGuard<'_, T>>, F> {
    match latent {
        None => Ok(state.try_lock()),
        Some(fault) => state.try_lock_for(FULL_AFTER).map(Some).ok_or(fault),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_a_thread_holds_for_long_has_the_fault_of_an_end() {
        let state = Mutex::new(7);
        assert!(matches!(held(&state, Some("died")), Ok(Some(free)) if *free == 7));
        let enqueues = state.lock();
        assert!(matches!(held(&state, None::<&str>), Ok(None)));
        assert_eq!(held(&state, Some("died")).err(), Some("died"));
        drop(enqueues);
    }
}
