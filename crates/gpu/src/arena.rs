//! The memory that the ranks of a communicator share, within a process.
//!
//! Between processes, the scratch will be memory of `cuMemCreate` whose handles are passed as
//! descriptors: a survivor's stores then stay mapped when a peer has died. Only how `scratch` comes
//! about differs; kernels, rounds and reports do not.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use spark_ccl_cuda::cudarc::driver::CudaContext;
use spark_ccl_cuda::{DeviceBlock, PinnedWords, Reach, reach};

use crate::kernels::Kernels;
use crate::layout::{MemberLayout, ROUNDS_BYTES, scratch_bytes};
use crate::{Error, Limits, MAX_RANKS};

/// What all ranks of an arena have to set alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The most CTAs of a kernel, from 1 to 32. All CTAs of the ranks that share a GPU must fit on it
    /// at the same time.
    pub ctas: u32,
    /// How long a kernel waits for what its peers send next. An operation that goes on may take longer.
    pub patience: Duration,
}

impl Default for Settings {
    /// 32 CTAs and 30 s.
    fn default() -> Self {
        Self {
            ctas: 32,
            patience: Duration::from_secs(30),
        }
    }
}

/// The memory that the ranks of a communicator share.
///
/// When it and the last [`Member`](crate::Member) are dropped, all waits are ended. The memory is
/// freed, and the kernels are unloaded, once everything that was enqueued in the contexts has run.
#[derive(Debug)]
pub struct Arena {
    /// By rank.
    pub(crate) contexts: Vec<Arc<CudaContext>>,
    /// By rank; unloaded only after they have run.
    pub(crate) kernels: Vec<Kernels>,
    blocks: Vec<DeviceBlock>,
    /// The word that ends waits, and each rank's report.
    words: PinnedWords,
    pub(crate) limits: Limits,
    pub(crate) patience: Duration,
}

/// A cache line, in words: the host writes the first, the GPUs the others.
const LINE: usize = 8;
/// Behind a rank's scratch: the word that says that it has failed.
const FAILED_BYTES: usize = 128;

impl Arena {
    /// Makes the memory of ranks that are threads of this process; rank i is on the GPU of the i-th
    /// context. Several may be on one.
    ///
    /// A rank has 10 MiB of scratch for each rank, on its GPU. The kernels are loaded on all GPUs.
    ///
    /// # Errors
    /// There are too few or too many ranks, GPUs cannot reach each other's memory, there are no
    /// kernels for one, or the driver fails.
    pub fn in_process(
        contexts: &[Arc<CudaContext>],
        settings: Settings,
    ) -> Result<Arc<Self>, Error> {
        let ranks = contexts.len();
        if !(2..=MAX_RANKS).contains(&ranks) {
            return Err(Error::Ranks { ranks });
        }
        let lines = all_reach(contexts)?;
        let bytes = scratch_bytes(ranks) + ROUNDS_BYTES + FAILED_BYTES;
        let blocks = contexts
            .iter()
            .map(|context| DeviceBlock::zeroed(context, bytes))
            .collect::<Result<_, _>>()?;
        Ok(Arc::new(Self {
            words: PinnedWords::new(&contexts[0], LINE * (1 + ranks))?,
            contexts: contexts.to_vec(),
            kernels: contexts
                .iter()
                .map(Kernels::load)
                .collect::<Result<_, _>>()?,
            blocks,
            limits: Limits {
                ctas: settings.ctas,
                lines,
            },
            patience: settings.patience,
        }))
    }

    pub(crate) fn layout_of(&self, rank: usize) -> Result<MemberLayout, Error> {
        let ranks = self.blocks.len();
        let words = self.words.address_for(&self.contexts[rank])?;
        let mut scratch = [0; MAX_RANKS];
        for (address, block) in scratch.iter_mut().zip(&self.blocks) {
            *address = block.address();
        }
        let rounds = scratch[rank] + scratch_bytes(ranks) as u64;
        Ok(MemberLayout {
            scratch,
            rounds,
            failed: rounds + ROUNDS_BYTES as u64,
            abort: words,
            report: words + (report_word(rank) * 8) as u64,
            patience: nanoseconds(self.patience),
            rank: rank as u32,
            ranks: ranks as u32,
        })
    }

    /// Ends all waits of all ranks, for good.
    pub(crate) fn abort(&self) {
        // Relaxed: kernels read nothing else that this thread has written before.
        self.words.words()[0].store(1, Ordering::Relaxed);
    }

    pub(crate) fn report(&self, rank: usize) -> u64 {
        // Relaxed: the report is all that it says.
        self.words.words()[report_word(rank)].load(Ordering::Relaxed)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.abort();
        if self.blocks.iter().any(|block| block.settle().is_err()) {
            // A kernel may still run, and use it.
            std::mem::forget(std::mem::take(&mut self.kernels));
            std::mem::forget(std::mem::take(&mut self.blocks));
            self.words.leak();
        }
    }
}

/// A time, but no more than what a clock can be moved on by: GPUs count from 1970, in 64 bits.
fn nanoseconds(time: Duration) -> u64 {
    const MOST: u64 = u64::MAX >> 1;
    u64::try_from(time.as_nanos()).map_or(MOST, |time| time.min(MOST))
}

fn report_word(rank: usize) -> usize {
    LINE * (1 + rank)
}

/// Lets all GPUs reach each other; whether no way tears lines.
fn all_reach(contexts: &[Arc<CudaContext>]) -> Result<bool, Error> {
    let mut lines = true;
    for (from, context) in contexts.iter().enumerate() {
        for (to, other) in contexts.iter().enumerate() {
            match reach(context, other)? {
                Reach::Own | Reach::Link => {}
                Reach::Pcie => lines = false,
                Reach::None => return Err(Error::NoAccess { from, to }),
            }
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_patience_ends_before_it_has_begun() {
        let now = 2_000_000_000_000_000_000_u64;
        for seconds in [0, 30, 9_300_000_000, 18_000_000_000, u64::MAX] {
            let patience = nanoseconds(Duration::from_secs(seconds));
            assert!(now.checked_add(patience).is_some(), "{seconds}");
        }
        assert_eq!(nanoseconds(Duration::from_secs(30)), 30_000_000_000);
    }
}
