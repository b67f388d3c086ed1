//! Frees memory that was set aside, while no call of this process is in flight on its GPU: the
//! driver waits for all kernels there, and meanwhile no thread can launch what one of them may wait
//! for. Knows no backend.

use super::guarded::Guarded;
use spark_ccl_cuda::{devices_with_memory_set_aside, free_set_aside};
use spark_ccl_log::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// A rank that enqueues calls on a GPU.
trait Enqueues: Send + Sync {
    /// Does something while the rank can enqueue nothing. Does not where a call of it is in flight,
    /// or about to be enqueued; returns whether it did.
    fn while_idle(&self, work: &mut dyn FnMut() -> bool) -> bool;
}

impl<E: Guarded> Enqueues for E {
    fn while_idle(&self, work: &mut dyn FnMut() -> bool) -> bool {
        // A thread that enqueues holds the lock, for long where the stream is full.
        let Some(state) = self.base().state.try_lock() else {
            return false;
        };
        // Kernels of a communicator that has ended wait for nobody.
        let is_over = state.backend.is_none() || !state.calls.may_run();
        is_over && work()
    }
}

/// The ranks of this process, each with CUDA's number of its GPU.
static RANKS: Mutex<Vec<(usize, Weak<dyn Enqueues>)>> = Mutex::new(Vec::new());

/// Adds a rank, before it enqueues anything.
pub(super) fn add<E: Guarded>(engine: &Arc<E>) {
    let engine_there: Weak<E> = Arc::downgrade(engine);
    let mut ranks = RANKS.lock();
    ranks.retain(|(_, rank)| rank.strong_count() > 0);
    ranks.push((engine.base().device(), engine_there));
}

/// Whether there is any memory that was set aside.
pub(super) fn any() -> bool {
    !devices_with_memory_set_aside().is_empty()
}

/// Whether there is memory that could be freed now.
pub(super) fn is_ready() -> bool {
    let mut devices = devices_with_memory_set_aside().into_iter();
    devices.any(|device| while_idle(device, &mut || true))
}

/// Frees what can be freed now. May wait for kernels of the program, so it is for threads that
/// nobody waits for.
pub(super) fn free() {
    /// One thread at a time is enough. Relaxed: it orders no other memory.
    static IS_UNDER_WAY: AtomicBool = AtomicBool::new(false);
    if IS_UNDER_WAY.swap(true, Ordering::Relaxed) {
        return;
    }
    for device in devices_with_memory_set_aside() {
        while_idle(device, &mut || {
            free_set_aside(device);
            true
        });
    }
    IS_UNDER_WAY.store(false, Ordering::Relaxed);
}

/// Does something while no rank of this process enqueues on a GPU, or has a call in flight there.
fn while_idle(device: usize, work: &mut dyn FnMut() -> bool) -> bool {
    let ranks: Vec<_> = {
        let ranks = RANKS.lock();
        let of_device = ranks.iter().filter(|(of, _)| *of == device);
        of_device.filter_map(|(_, rank)| rank.upgrade()).collect()
    };
    nested(&ranks, work)
}

fn nested(ranks: &[Arc<dyn Enqueues>], work: &mut dyn FnMut() -> bool) -> bool {
    match ranks {
        [] => work(),
        [first, others @ ..] => first.while_idle(&mut || nested(others, work)),
    }
}
