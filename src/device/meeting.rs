//! Before NCCL connects the ranks for a call, they make sure that all are about to make it: NCCL would wait
//! for ever, and cannot be aborted meanwhile.

use super::Engine;
use super::connection_key::ConnectionKey;
use crate::call::{OutOfPlace, Pending};
use crate::communicator::Communicator;
use crate::error::Error;
use spark_ccl_control::{DEVICE, Fault};
use spark_ccl_types::describe;
use std::sync::Arc;

/// What a rank tells all others: its call's signature.
type Words = Vec<u64>;

/// A meeting under way.
pub(super) struct Meeting {
    engine: Arc<Engine>,
    key: ConnectionKey,
    words: [u64; 2],
    pending: Pending<u64, OutOfPlace<Words, Words>>,
}

impl Meeting {
    pub(super) fn start(
        comm: &Communicator,
        engine: &Arc<Engine>,
        key: ConnectionKey,
        words: [u64; 2],
    ) -> Result<Self, Error> {
        let all = vec![0; words.len() * comm.size()];
        let pending = comm
            .all_gather(words.to_vec(), all)
            .by_any_path()
            .start()
            .map_err(|failed| failed.error)?;
        Ok(Self {
            engine: Arc::clone(engine),
            key,
            words,
            pending,
        })
    }

    /// Waits for all ranks.
    ///
    /// # Errors
    /// One is late, or gone, or makes another call.
    pub(super) fn wait(self) -> Result<(), Error> {
        let (_, all) = self.pending.wait().map_err(|failed| failed.error)?;
        let (engine, own) = (&self.engine, self.words);
        let other = all.chunks_exact(own.len()).position(|words| words != own);
        let mut state = engine.lock()?;
        let Some(other) = other else {
            state.calls.met.insert(self.key);
            return Ok(());
        };
        let sequence = DEVICE | (state.calls.count + 1);
        drop(state);
        let words = [all[other * own.len()], all[other * own.len() + 1]];
        engine.watch.raise(Fault::Mismatch {
            sequence,
            rank_a: engine.member(),
            words_a: describe(own),
            rank_b: engine.watch.member(other as u32),
            words_b: describe(words),
        });
        Err(engine.gone())
    }
}
