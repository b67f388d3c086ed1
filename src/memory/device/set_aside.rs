//! Frees memory that was set aside, while no call of this process is in flight on its GPU: the
//! driver waits for all kernels there, and meanwhile no thread can launch what one of them may wait
//! for. Knows no backend.

use std::sync::Weak;
use std::time::{Duration, Instant};

use spark_ccl_cuda::cudarc::driver::CudaContext;
use spark_ccl_cuda::{Error, check_set_aside, devices_with_memory_set_aside, free_set_aside};
use spark_ccl_log::Mutex;

use super::gate::{Closed, Gate, gate};
use super::helper_thread::spawn;
use super::pause::pause;

/// How long an allocation waits for memory that was set aside: the calls in flight that it waits
/// for may need one that this thread makes next.
pub(crate) const FOR_SET_ASIDE: Duration = Duration::from_secs(5);
/// How often an allocation that waits has memory freed.
pub(crate) const FREE_EVERY: Duration = Duration::from_millis(50);

/// A rank that enqueues calls on a GPU.
pub(crate) trait Enqueues: Send + Sync {
    /// Whether no call of it is known to be in flight. To be asked while none can be launched.
    fn is_idle(&self) -> bool;
}

/// The ranks of this process, each with CUDA's number of its GPU.
static RANKS: Mutex<Vec<(usize, Weak<dyn Enqueues>)>> = Mutex::new(Vec::new());

/// Adds a rank of a GPU, before it enqueues anything.
pub(crate) fn add(device: usize, rank: Weak<dyn Enqueues>) {
    let mut ranks = RANKS.lock();
    ranks.retain(|(_, rank)| rank.strong_count() > 0);
    ranks.push((device, rank));
}

/// Whether this process has a rank, whose guard frees what is dropped.
pub(crate) fn has_ranks() -> bool {
    let ranks = RANKS.lock();
    ranks.iter().any(|(_, rank)| rank.strong_count() > 0)
}

/// Whether there is any memory that was set aside.
pub(crate) fn any() -> bool {
    !devices_with_memory_set_aside().is_empty()
}

/// Whether there is memory that could be freed now, and that no thread frees.
pub(crate) fn is_ready() -> bool {
    let mut devices = devices_with_memory_set_aside().into_iter();
    devices.any(|device| close(&gate(device), device).is_some())
}

/// Frees what can be freed now. May wait for kernels of the user, so it is for threads that
/// nobody waits for.
pub(crate) fn free() {
    for device in devices_with_memory_set_aside() {
        let gate = gate(device);
        // One thread at a time is enough for a GPU.
        if let Some(_closed) = close(&gate, device) {
            free_set_aside(device);
        }
    }
}

/// The same on a thread of its own. If none can be started, a guard, or the end of the process,
/// frees it.
pub(crate) fn free_in_background() {
    let _ = spawn("spark-gpu-free", free);
}

/// Waits a little until at most `most` bytes of a context are set aside.
///
/// # Errors
/// There still are more.
pub(crate) fn wait_for_room(context: &CudaContext, most: usize) -> Result<(), Error> {
    let start = Instant::now();
    let mut next = Duration::ZERO;
    while let Err(error) = check_set_aside(context, most) {
        let waited = start.elapsed();
        if waited >= FOR_SET_ASIDE {
            return Err(error);
        }
        if waited >= next && is_ready() {
            free_in_background();
            next = waited + FREE_EVERY;
        }
        pause(waited);
    }
    Ok(())
}

/// Keeps all ranks of this process from launching on a GPU; not if a call of one is in flight
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
