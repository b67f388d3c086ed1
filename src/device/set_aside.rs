//! Frees memory that was set aside, while no call of this process is in flight on its GPU: the
//! driver waits for all kernels there, and meanwhile no thread can launch what one of them may wait
//! for. Knows no backend.

use super::gate::{Closed, Gate, gate};
use super::guarded::Guarded;
use spark_ccl_cuda::{devices_with_memory_set_aside, free_set_aside};
use spark_ccl_log::Mutex;
use std::sync::{Arc, Weak};

/// A rank that enqueues calls on a GPU.
trait Enqueues: Send + Sync {
    /// Whether no call of it is known to be in flight. To be asked while none can be launched.
    fn is_idle(&self) -> bool;
}

impl<E: Guarded> Enqueues for E {
    fn is_idle(&self) -> bool {
        let Some(state) = self.base().state.try_lock() else {
            return false;
        };
        // Kernels of a communicator that has ended wait for nobody.
        state.backend.is_none() || !state.calls.may_run()
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

/// Whether there is memory that could be freed now, and that no thread frees.
pub(super) fn is_ready() -> bool {
    let mut devices = devices_with_memory_set_aside().into_iter();
    devices.any(|device| close(&gate(device), device).is_some())
}

/// Frees what can be freed now. May wait for kernels of the program, so it is for threads that
/// nobody waits for.
pub(super) fn free() {
    for device in devices_with_memory_set_aside() {
        let gate = gate(device);
        // One thread at a time is enough for a GPU.
        if let Some(_closed) = close(&gate, device) {
            free_set_aside(device);
        }
    }
}

/// Keeps all ranks of this process from launching on a GPU; not where a call of one is in flight
/// there, or about to be launched.
fn close(gate: &Gate, device: usize) -> Option<Closed<'_>> {
    let closed = gate.close()?;
    let ranks: Vec<_> = {
        let ranks = RANKS.lock();
        let of_device = ranks.iter().filter(|(of, _)| *of == device);
        of_device.filter_map(|(_, rank)| rank.upgrade()).collect()
    };
    ranks.iter().all(|rank| rank.is_idle()).then_some(closed)
}
