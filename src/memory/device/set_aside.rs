//! Frees memory that was set aside, while no call of this process is in flight on its GPU. The
//! driver waits for all kernels there, and meanwhile no thread can launch a kernel that one of them
//! may wait for. Knows no backend.
//!
//! Kernels of the program's, and of other libraries, are not known here, and may wait for a launch
//! as well. So memory is freed only where it must be: where more than half of a limit is set aside,
//! or an allocation finds no memory. The rest is kept for later allocations, to the end of the
//! process.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::{Duration, Instant};

use spark_ccl_cuda::cudarc::driver::CudaContext;
use spark_ccl_cuda::{
    Error, MemoryKind, check_set_aside, devices_with_memory_set_aside, free_set_aside,
    has_set_aside,
};
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

/// The most bytes that stay set aside on a GPU, by CUDA's numbers, as its newest rank has set it.
static LIMITS: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// Adds a rank of a GPU, before it enqueues anything. At most `most` bytes stay set aside there.
pub(crate) fn add(device: usize, most: usize, rank: Weak<dyn Enqueues>) {
    LIMITS.lock().insert(device, most);
    let mut ranks = RANKS.lock();
    ranks.retain(|(_, rank)| rank.strong_count() > 0);
    ranks.push((device, rank));
}

/// Whether this process has a rank, whose guard frees what is dropped.
pub(crate) fn has_ranks() -> bool {
    let ranks = RANKS.lock();
    ranks.iter().any(|(_, rank)| rank.strong_count() > 0)
}

/// The GPUs on which more is set aside than half of their limit. It is freed before allocations
/// fail, which they do above the limit.
fn above_half() -> impl Iterator<Item = usize> {
    let is_over = |&(device, bytes): &(usize, usize)| {
        LIMITS
            .lock()
            .get(&device)
            .is_some_and(|&most| bytes > most / 2)
    };
    let devices = devices_with_memory_set_aside().into_iter();
    devices.filter(is_over).map(|(device, _)| device)
}

/// Whether a GPU has more set aside than half of its limit.
pub(crate) fn is_too_much() -> bool {
    above_half().next().is_some()
}

/// Whether that could be freed now, and no thread frees it.
pub(crate) fn is_ready() -> bool {
    above_half().any(can_free)
}

/// Frees all memory of GPUs that have more set aside than half of their limit, if it can be freed
/// now. May wait for kernels of the user, so it is for threads that nobody waits for.
pub(crate) fn free_what_is_too_much() {
    above_half().for_each(|device| free(device, None));
}

/// The same on a thread of its own. If no thread can be started, a guard frees the memory, or the
/// end of the process does.
pub(crate) fn free_in_background() {
    let _ = spawn("spark-gpu-free", free_what_is_too_much);
}

fn can_free(device: usize) -> bool {
    close(&gate(device), device).is_some()
}

fn free(device: usize, only: Option<MemoryKind>) {
    let gate = gate(device);
    // One thread at a time is enough for a GPU.
    if let Some(_closed) = close(&gate, device) {
        free_set_aside(device, only);
    }
}

/// An allocation on a GPU that waits for memory that is set aside there.
pub(crate) struct Shortage {
    device: usize,
    /// The kind of memory that helps; `None` if any does.
    only: Option<MemoryKind>,
    since: Instant,
    /// How long it has lasted when it next has memory freed.
    next: Duration,
}

impl Shortage {
    /// Begins a shortage that memory of this kind ends; with `None`, memory of any kind.
    pub(crate) fn of(device: usize, only: Option<MemoryKind>) -> Self {
        Self {
            device,
            only,
            since: Instant::now(),
            next: Duration::ZERO,
        }
    }

    /// How long it has lasted.
    pub(crate) fn waited(&self) -> Duration {
        self.since.elapsed()
    }

    /// Whether memory that would help is set aside, or is being freed.
    pub(crate) fn may_end(&self) -> bool {
        has_set_aside(self.device, self.only)
    }

    /// Has a thread free the memory, if that can be freed now.
    pub(crate) fn relieve(&mut self) {
        let (device, only, waited) = (self.device, self.only, self.waited());
        if waited >= self.next && can_free(device) {
            // If no thread can be started, the next attempt may start one.
            let _ = spawn("spark-gpu-free", move || free(device, only));
            self.next = waited + FREE_EVERY;
        }
    }
}

/// Waits a little until at most `most` bytes of a context are set aside.
///
/// # Errors
/// There still are more.
pub(crate) fn wait_for_room(context: &CudaContext, most: usize) -> Result<(), Error> {
    let mut shortage = Shortage::of(context.ordinal(), None);
    while let Err(error) = check_set_aside(context, most) {
        if shortage.waited() >= FOR_SET_ASIDE {
            return Err(error);
        }
        shortage.relieve();
        pause(shortage.waited());
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
