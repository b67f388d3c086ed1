//! Which samples each rank takes in which step. Knows no data, and no calls.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use spark_ccl::Communicator;

use crate::error::Error;
use crate::world::World;

/// Deals the samples of a data set out to the ranks: each once in an epoch, in an order that the
/// seed and the epoch decide.
///
/// It counts in global batches, so the ranks together take the same samples in the same steps,
/// however many they are. All ranks need a sampler in the same state.
///
/// ```
/// use spark_ccl::Communicator;
/// use spark_ccl_training::{LastBatch, Sampler};
///
/// # let comm = Communicator::local(1)?.remove(0);
/// let mut sampler = Sampler::new(10, 4, 7, LastBatch::Padded)?;
/// let sizes = [(); 3].map(|()| sampler.next_batch(&comm).total);
/// assert_eq!(sizes, [4, 4, 2]);
/// assert_eq!(sampler.next_batch(&comm).epoch, 1);
/// # Ok::<(), spark_ccl_training::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampler {
    samples: usize,
    global_batch: usize,
    seed: u64,
    last: LastBatch,
    epoch: u64,
    /// How many samples of the epoch are dealt out.
    position: usize,
    /// The order of the epoch; made when it is needed.
    #[serde(skip)]
    order: Vec<usize>,
}

/// Their order, a number for each, has to be in memory.
const MOST_SAMPLES: usize = isize::MAX as usize / size_of::<usize>();
/// More than any run takes.
const MOST_EPOCHS: u64 = 1 << 53;

/// The use of the samples at the end of an epoch that do not fill a global batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LastBatch {
    /// They are a smaller batch.
    Padded,
    /// They are left out: different ones in each epoch.
    Dropped,
}

/// A rank's share of a global batch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Batch {
    /// The epoch; the first is 0.
    pub epoch: u64,
    /// The samples; the same number on each rank. If they cannot be divided evenly, the last one of
    /// some ranks is padding, which repeats a sample of the same batch.
    pub indices: Vec<usize>,
    /// How many are no padding. 0 on some ranks if a batch has fewer samples than there are ranks.
    pub real: usize,
    /// How many samples all ranks together have in this batch, without padding.
    pub total: usize,
    /// The number of ranks.
    pub ranks: usize,
    /// The samples that this epoch leaves out after this batch, which is its last. 0 otherwise.
    pub dropped: usize,
}

impl Batch {
    /// The factor for the sum of losses, or of gradients, over this rank's real samples. With it,
    /// the mean over the ranks is the mean over all samples of the batch.
    pub fn sum_weight(&self) -> f64 {
        self.ranks as f64 / self.total as f64
    }

    /// The same factor for their mean. A rank without real samples has no mean: its loss and its
    /// gradients are 0.
    pub fn weight(&self) -> f64 {
        (self.real * self.ranks) as f64 / self.total as f64
    }
}

impl Sampler {
    /// A sampler at the beginning of the first epoch.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is not a single batch in an epoch.
    pub fn new(
        samples: usize,
        global_batch: usize,
        seed: u64,
        last: LastBatch,
    ) -> Result<Self, Error> {
        let sampler = Self {
            samples,
            global_batch,
            seed,
            last,
            epoch: 0,
            position: 0,
            order: Vec::new(),
        };
        sampler.checked()
    }

    /// Checks what may have come from a file.
    pub(crate) fn checked(self) -> Result<Self, Error> {
        let (samples, batch, at) = (self.samples, self.global_batch, self.position);
        let is_short = self.last == LastBatch::Dropped && samples < batch;
        let whole = (samples, LastBatch::Padded);
        let problem = if samples == 0 || batch == 0 || is_short {
            format!(
                "no batch of {batch} samples in {samples}, with the last one {:?}",
                self.last
            )
        } else if samples > MOST_SAMPLES {
            format!("{samples} samples, whose numbers no memory holds")
        } else if self.epoch > MOST_EPOCHS {
            format!("epoch {}, which no run reaches", self.epoch)
        } else if at > samples || !at.is_multiple_of(batch) && (at, self.last) != whole {
            format!("no batch of {batch} in {samples} samples begins or ends at {at}")
        } else {
            return Ok(self);
        };
        Err(Error::Invalid {
            what: "a sampler",
            problem,
        })
    }

    /// Goes on where `saved` was, which must be one of the same data set, batches and order.
    /// Returns what differs.
    pub(crate) fn go_on_from(&self, saved: &Self) -> Result<Self, String> {
        let describe = |it: &Self| {
            format!(
                "{} samples in batches of {}, seed {}, the last batch {:?}",
                it.samples, it.global_batch, it.seed, it.last
            )
        };
        let (saved_as, own) = (describe(saved), describe(self));
        if saved_as == own {
            Ok(saved.clone())
        } else {
            Err(format!("has a sampler of {saved_as}; this run has {own}"))
        }
    }

    /// The current epoch; the first is 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The number of global batches in an epoch.
    pub fn batches(&self) -> usize {
        match self.last {
            LastBatch::Padded => self.samples.div_ceil(self.global_batch),
            LastBatch::Dropped => self.samples / self.global_batch,
        }
    }

    /// This rank's share of the next global batch.
    pub fn next_batch(&mut self, comm: &Communicator) -> Batch {
        self.share(World::of(comm))
    }

    fn share(&mut self, world: World) -> Batch {
        let all = self.advance();
        let order = &self.order[all.clone()];
        let each = all.len().div_ceil(world.size);
        // As even as can be: the ranks differ by one sample at most.
        let share_begin = |rank: usize| rank * order.len() / world.size;
        let real = &order[share_begin(world.rank)..share_begin(world.rank + 1)];
        let padding = order.iter().cycle().take(each - real.len());
        let left = self.samples - all.end;
        Batch {
            epoch: self.epoch,
            real: real.len(),
            total: all.len(),
            ranks: world.size,
            dropped: if left < self.global_batch && self.last == LastBatch::Dropped {
                left
            } else {
                0
            },
            indices: real.iter().chain(padding).copied().collect(),
        }
    }

    /// Goes on to the next global batch. Returns its place in the order of the epoch.
    fn advance(&mut self) -> Range<usize> {
        let left = self.samples - self.position;
        let is_over = match self.last {
            LastBatch::Padded => left == 0,
            LastBatch::Dropped => left < self.global_batch,
        };
        if is_over {
            self.epoch += 1;
            self.position = 0;
            self.order.clear();
        }
        if self.order.is_empty() {
            self.order = shuffled(self.samples, self.seed, self.epoch);
        }
        let begin = self.position;
        self.position = self.samples.min(begin.saturating_add(self.global_batch));
        begin..self.position
    }
}

/// The numbers below `len`, in an order that is the same in all versions and on all machines.
fn shuffled(len: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let mut random = SplitMix(SplitMix(seed).next() ^ epoch);
    let mut order: Vec<_> = (0..len).collect();
    for last in (1..len).rev() {
        order.swap(last, random.below(last + 1));
    }
    order
}

/// The generator `SplitMix64`.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// A number below `end`: the high word of a product, which favours none noticeably.
    fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The batches of an epoch, each as the shares of all ranks.
    fn epoch(sampler: &Sampler, size: usize) -> Vec<Vec<Batch>> {
        let share = |step: usize, rank| {
            let mut sampler = sampler.clone();
            for _ in 0..step {
                sampler.advance();
            }
            sampler.share(World { rank, size })
        };
        let steps = 0..sampler.batches();
        steps
            .map(|step| (0..size).map(|rank| share(step, rank)).collect())
            .collect()
    }

    /// The samples of some shares, without padding.
    fn real(shares: &[Batch]) -> Vec<usize> {
        shares
            .iter()
            .flat_map(|it| it.indices[..it.real].to_vec())
            .collect()
    }

    proptest! {
        #[test]
        fn an_epoch_has_each_sample_once(
            samples in 1_usize..100, batch in 1_usize..30, seed: u64, size in 1_usize..8,
            is_padded: bool,
        ) {
            let last = if is_padded { LastBatch::Padded } else { LastBatch::Dropped };
            let Ok(sampler) = Sampler::new(samples, batch, seed, last) else {
                prop_assert!(!is_padded && samples < batch);
                return Ok(());
            };
            let batches = epoch(&sampler, size);
            let mut seen: Vec<_> = batches.iter().flat_map(|shares| real(shares)).collect();
            let dropped: usize = batches.iter().map(|shares| shares[0].dropped).sum();
            prop_assert_eq!(seen.len() + dropped, samples);
            prop_assert_eq!(dropped, if is_padded { 0 } else { samples % batch });
            seen.sort_unstable();
            seen.dedup();
            prop_assert_eq!(seen.len() + dropped, samples);
            for shares in &batches {
                let own = real(shares);
                for share in shares {
                    prop_assert_eq!(share.indices.len(), shares[0].indices.len());
                    prop_assert_eq!(share.total, own.len());
                    prop_assert!(share.indices.iter().all(|it| own.contains(it)));
                }
                let weights: f64 = shares.iter().map(Batch::weight).sum();
                prop_assert!((weights - size as f64).abs() < 1e-9);
            }
        }

        #[test]
        fn batches_do_not_depend_on_the_number_of_ranks(
            samples in 1_usize..60, batch in 1_usize..20, seed: u64, size in 2_usize..6,
        ) {
            let sampler = Sampler::new(samples, batch, seed, LastBatch::Padded).unwrap();
            let alone = epoch(&sampler, 1).into_iter().map(|shares| real(&shares));
            let shared = epoch(&sampler, size).into_iter().map(|shares| real(&shares));
            prop_assert!(alone.eq(shared));
        }

        #[test]
        fn a_sampler_goes_on_where_it_was_saved(
            samples in 1_usize..60, batch in 1_usize..20, seed: u64, steps in 0_usize..20,
        ) {
            let mut sampler = Sampler::new(samples, batch, seed, LastBatch::Padded).unwrap();
            for _ in 0..steps {
                sampler.advance();
            }
            let saved = serde_json::to_string(&sampler).unwrap();
            let mut loaded: Sampler = serde_json::from_str(&saved).unwrap();
            for _ in 0..5 {
                let world = World { rank: 0, size: 1 };
                prop_assert_eq!(loaded.share(world), sampler.share(world));
            }
        }
    }

    #[test]
    fn all_ranks_have_samples_where_there_are_enough() {
        let mut sampler = Sampler::new(18, 16, 1, LastBatch::Padded).unwrap();
        let shares = epoch(&sampler, 5);
        let reals: Vec<Vec<_>> = shares
            .iter()
            .map(|shares| shares.iter().map(|share| share.real).collect())
            .collect();
        assert_eq!(reals, [[3, 3, 3, 3, 4], [0, 0, 1, 0, 1]]);
        for (share, real) in shares[0].iter().zip(&reals[0]) {
            let weight = share.sum_weight() * *real as f64;
            assert!((weight - share.weight()).abs() < 1e-9);
        }
        let alone = sampler.share(World { rank: 0, size: 1 });
        assert!((alone.sum_weight() - 1.0 / 16.0).abs() < 1e-9);
    }

    #[test]
    fn epochs_and_seeds_have_orders_of_their_own() {
        let orders = [(1, 0), (1, 1), (2, 0)].map(|(seed, epoch)| shuffled(100, seed, epoch));
        assert!(orders[0] != orders[1] && orders[0] != orders[2] && orders[1] != orders[2]);
        // As in every version: checkpoints depend on it.
        assert_eq!(shuffled(8, 1, 0), [4, 1, 7, 5, 3, 0, 6, 2]);
    }

    /// A sampler of ten samples in batches of four, as a file may have it.
    fn read(last: LastBatch, change: impl Fn(&mut Sampler)) -> Result<Sampler, Error> {
        let mut sampler = Sampler::new(10, 4, 1, last)?;
        change(&mut sampler);
        sampler.checked()
    }

    #[test]
    fn absurd_states_are_refused() {
        for position in [0, 4, 8, 10] {
            read(LastBatch::Padded, |it| it.position = position).unwrap();
        }
        let position = |position| read(LastBatch::Padded, move |it| it.position = position);
        let refused = [
            (position(3), "ends at 3"),
            (position(12), "ends at 12"),
            (
                read(LastBatch::Dropped, |it| it.epoch = u64::MAX),
                "epoch 18446744073709551615",
            ),
            (
                read(LastBatch::Padded, |it| it.samples = usize::MAX / 2),
                "no memory holds",
            ),
        ];
        for (outcome, expected) in refused {
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let mut whole = Sampler::new(10, usize::MAX, 1, LastBatch::Padded).unwrap();
        for _ in 0..2 {
            assert_eq!(whole.share(World { rank: 0, size: 1 }).total, 10);
        }
    }

    #[test]
    fn a_sampler_of_other_data_is_told_apart() {
        let own = Sampler::new(10, 4, 1, LastBatch::Padded).unwrap();
        let mut saved = own.clone();
        saved.advance();
        assert_eq!(own.go_on_from(&saved).unwrap().position, 4);
        for other in [
            Sampler::new(11, 4, 1, LastBatch::Padded),
            Sampler::new(10, 5, 1, LastBatch::Padded),
            Sampler::new(10, 4, 2, LastBatch::Padded),
            Sampler::new(10, 4, 1, LastBatch::Dropped),
        ] {
            let problem = other.unwrap().go_on_from(&saved).unwrap_err();
            let expected = "has a sampler of 10 samples in batches of 4, seed 1";
            assert!(problem.contains(expected), "{problem}");
        }
    }

    #[test]
    fn an_epoch_without_a_batch_is_refused() {
        for (samples, batch) in [(0, 1), (3, 0), (3, 4)] {
            let error = Sampler::new(samples, batch, 0, LastBatch::Dropped).unwrap_err();
            assert!(
                error.to_string().contains(&format!("in {samples}")),
                "{error}"
            );
        }
    }
}
