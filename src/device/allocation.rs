//! New blocks of device memory, of a rank that may have dropped others; and a thread that gives those back.

use super::block::{self, Block};
use super::guarded::Guarded;
use super::helper_thread::spawn;
use super::pause::pause;
use crate::error::Error;
use spark_ccl_cuda::{DeviceBlock, make_current, relaxed};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Waits for memory that was dropped while it was in use, where there is no other.
pub(super) fn new_block(engine: &impl Guarded, bytes: usize) -> Result<Arc<Block>, Error> {
    let (base, start) = (engine.base(), Instant::now());
    loop {
        block::sweep();
        let error = match base.own(DeviceBlock::new(&base.context, bytes)) {
            Ok(memory) => return Ok(Arc::new(Block::new(memory, Arc::clone(&base.gpu)))),
            Err(error @ spark_ccl_cuda::Error::Call { .. }) => error,
            Err(error) => return Err(error.into()),
        };
        let is_short = error.is_of_memory();
        let is_late = || Ok::<_, Error>(start.elapsed() > base.lock()?.timeout);
        if !is_short || !engine.will_free() || is_late()? {
            return Err(Error::Memory {
                what: format!(
                    "{bytes} bytes of device {} for {}",
                    base.device(),
                    base.member()
                ),
                problem: error.to_string(),
            });
        }
        engine.tidy();
        pause(start.elapsed());
    }
}

/// Gives dropped memory back on a thread of its own: the driver may take its time, and wait for what runs.
pub(super) fn tidy_elsewhere<E: Guarded>(engine: &Arc<E>) {
    // Taken by this swap, given back by the store below: the two carry nothing else.
    if engine.base().tidies.swap(true, Ordering::Relaxed) {
        return;
    }
    let engine_there = Arc::clone(engine);
    let started = spawn("spark-gpu-free", move || {
        let base = engine_there.base();
        match make_current(&base.context).and_then(relaxed) {
            Ok(_relaxed) => engine_there.tidy(),
            Err(error) => tracing::warn!("rank {}: {error}", base.rank),
        }
        base.tidies.store(false, Ordering::Relaxed);
    });
    if let Err(error) = started {
        let base = engine.base();
        tracing::warn!("rank {}: {error}", base.rank);
        base.tidies.store(false, Ordering::Relaxed);
    }
}
