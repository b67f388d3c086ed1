//! Before NCCL connects the ranks for a call, they check that all of them are about to make it:
//! NCCL would wait without end, and cannot be aborted meanwhile.

use std::sync::atomic::Ordering;
use std::time::Duration;

use spark_ccl_control::{DEVICE_MARK, Fault};
use spark_ccl_types::{DType, Operation};

use super::NcclEngine;
use super::connection_key::ConnectionKey;
use crate::api::call::{OutOfPlace, Pending};
use crate::error::Error;
use crate::task::names::describe;
use crate::task::{Spec, Task};

/// Words that each rank tells all others over the links, while they are under way.
pub(super) struct GatheredWords(Pending<(Vec<u64>, Vec<u64>)>);

impl GatheredWords {
    /// All ranks' words.
    ///
    /// # Errors
    /// A rank is late, or gone, or makes another call.
    pub(super) fn wait(self) -> Result<Vec<u64>, Error> {
        let done = self.0.wait().map_err(|failed| failed.error);
        done.map(|(_, all)| all)
    }
}

/// A check that is under way.
pub(super) struct ConnectionCheck<'a> {
    engine: &'a NcclEngine,
    key: ConnectionKey,
    words: [u64; 2],
    gathered: GatheredWords,
}

impl NcclEngine {
    /// Tells all ranks some words, within this time limit, or else within the communicator's.
    pub(super) fn gather(
        &self,
        words: &[u64],
        limit: Option<Duration>,
    ) -> Result<GatheredWords, Error> {
        let membership = self.membership.upgrade().ok_or_else(|| self.base.gone())?;
        let spec = Spec::new(Operation::AllGather, DType::U64).internal();
        let spec = Spec { limit, ..spec };
        let all = vec![0; words.len() * self.base.size];
        let buffers = OutOfPlace(words.to_vec(), all);
        let pending =
            Pending::start::<u64, _>(&membership, &spec, buffers).map_err(|failed| failed.error)?;
        Ok(GatheredWords(pending))
    }

    /// Begins a check if the call is the first of its kind, for which NCCL may have to connect the
    /// ranks.
    pub(super) fn check_connection(
        &self,
        task: &Task,
    ) -> Result<Option<ConnectionCheck<'_>>, Error> {
        let signature = task.signature;
        let Some(key) = ConnectionKey::of(signature).filter(|_| self.base.size > 1) else {
            return Ok(None);
        };
        if self.last_key.load(Ordering::Relaxed) == key.word() {
            return Ok(None);
        }
        if self.checked.lock().contains(&key) {
            self.last_key.store(key.word(), Ordering::Relaxed);
            return Ok(None);
        }
        let words = signature.words();
        Ok(Some(ConnectionCheck {
            engine: self,
            key,
            words,
            gathered: self.gather(&words, task.limit)?,
        }))
    }
}

impl ConnectionCheck<'_> {
    /// Waits for all ranks.
    ///
    /// # Errors
    /// A rank is late, or gone, or makes another call.
    pub(super) fn wait(self) -> Result<(), Error> {
        let all = self.gathered.wait()?;
        let (engine, own) = (self.engine, self.words);
        let other = all.chunks_exact(own.len()).position(|words| words != own);
        let Some(other) = other else {
            engine.checked.lock().insert(self.key);
            return Ok(());
        };
        let sequence = DEVICE_MARK | (engine.base.lock()?.calls.count + 1);
        let words = [all[other * own.len()], all[other * own.len() + 1]];
        engine.base.watch.raise(Fault::Mismatch {
            sequence,
            rank_a: engine.base.member(),
            words_a: describe(own),
            rank_b: engine.base.watch.member(other as u32),
            words_b: describe(words),
        });
        Err(engine.base.gone())
    }
}
