//! Allocates blocks of device memory, and frees what was dropped on a thread. Knows no backend.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use spark_ccl_cuda::{DeviceBlock, MemoryKind, make_current, relaxed, traits};

use super::watched_engine::WatchedEngine;
use crate::error::Error;
use crate::memory::device::block::{self, Block, BlockMemory};
use crate::memory::device::helper_thread::spawn;
use crate::memory::device::pause::pause;
use crate::memory::device::set_aside::{self, FOR_SET_ASIDE, Shortage};

/// New memory of the GPU.
pub(super) fn new_block(engine: &impl WatchedEngine, bytes: usize) -> Result<Arc<Block>, Error> {
    let base = engine.base();
    let what = format!("{bytes} bytes of device {}", base.device());
    // Memory of the host helps only where the GPU shares it.
    let is_integrated = base.own(traits(base.device()))?.integrated;
    let only = (!is_integrated).then_some(MemoryKind::Device);
    new_block_of(engine, bytes, (&what, only), || {
        DeviceBlock::new(&base.context, bytes).map(BlockMemory::Device)
    })
}

/// If memory runs out, waits for blocks that were dropped while in use. It also waits a little for
/// memory that was set aside: of the kind that is given with the words, or of any.
pub(super) fn new_block_of(
    engine: &impl WatchedEngine,
    bytes: usize,
    (what, only): (&str, Option<MemoryKind>),
    make: impl Fn() -> Result<BlockMemory, spark_ccl_cuda::Error>,
) -> Result<Arc<Block>, Error> {
    let base = engine.base();
    let mut shortage = Shortage::of(base.device(), only);
    loop {
        block::sweep();
        // Asked before the attempt: memory that is being freed now may be free when the attempt has
        // failed.
        let (will_free, is_set_aside) = (engine.will_free(), shortage.may_end());
        let error = match base.own(make()) {
            Ok(memory) => return Ok(Block::new(memory, bytes, Arc::clone(&base.gpu))),
            Err(
                error @ (spark_ccl_cuda::Error::Call { .. }
                | spark_ccl_cuda::Error::SetAside { .. }),
            ) => error,
            Err(error) => return Err(error.into()),
        };
        let timeout = || Ok::<_, Error>(base.lock()?.calls.timeout);
        let patience = match &error {
            spark_ccl_cuda::Error::SetAside { .. } => timeout()?.min(FOR_SET_ASIDE),
            error if error.is_of_memory() && will_free => timeout()?,
            error if error.is_of_memory() && is_set_aside => timeout()?.min(FOR_SET_ASIDE),
            _ => Duration::ZERO,
        };
        if shortage.waited() >= patience {
            return Err(Error::Memory {
                what: format!("{what} for {}", base.member()),
                problem: error.to_string(),
            });
        }
        if is_set_aside {
            shortage.relieve();
        }
        pause(shortage.waited());
    }
}

/// Frees dropped memory on a separate thread: the driver may take long, and may wait for the user's
/// kernels.
pub(super) fn tidy_in_background<E: WatchedEngine>(engine: &Arc<E>) {
    in_background(engine, E::tidy);
}

/// As [`tidy_in_background`], but for an engine that has failed: without the backend.
pub(super) fn free_in_background<E: WatchedEngine>(engine: &Arc<E>) {
    in_background(engine, |_| ());
}

fn in_background<E: WatchedEngine>(engine: &Arc<E>, tidy: fn(&E)) {
    // This swap claims the flag, and the stores below clear it. They order no other memory:
    // relaxed.
    if engine.base().tidies.swap(true, Ordering::Relaxed) {
        return;
    }
    let engine_there = Arc::clone(engine);
    let started = spawn("spark-gpu-free", move || {
        let base = engine_there.base();
        let current = make_current(&base.context).and_then(relaxed);
        match &current {
            Ok(_) => tidy(&engine_there),
            Err(error) => spark_ccl_log::warn!("rank {}: {error}", base.rank),
        }
        // The frees below may take as long as the user's kernels, and the backend may have more to
        // give up meanwhile.
        base.tidies.store(false, Ordering::Relaxed);
        if current.is_ok() {
            set_aside::free_what_is_too_much();
        }
    });
    if let Err(error) = started {
        let base = engine.base();
        spark_ccl_log::warn!("rank {}: {error}", base.rank);
        base.tidies.store(false, Ordering::Relaxed);
    }
}
