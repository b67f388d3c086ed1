//! Two ranks and the rails between them, as the commands that measure rails share them.
//!
//! The ranks come from the same sources as all ranks of spark-perf, and exchange what they need
//! with collectives over a communicator. Launchers, failed peers and errors are therefore handled
//! as everywhere. Must not know what carries the data.

pub(crate) mod args;
mod buffer;
mod output;
pub(crate) mod rows;

use std::time::Duration;

use args::PairArgs;
pub(crate) use buffer::{Allocator, Buffer};
pub(crate) use output::Output;
use spark_ccl::{Communicator, Net};
use spark_ccl_config::Settings;

use crate::error::Error;
use crate::ranks::{
    self,
    world::{self, World},
};

/// The time limit for the other rank to measure. A rank that dies is noticed at once.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// A rank, with all that it measures with.
pub(crate) struct Rank {
    pub(crate) comm: Communicator,
    /// The number of ranks in this process.
    pub(crate) here: usize,
    pub(crate) memory: Allocator,
}

/// Runs `body` as both ranks.
pub(crate) fn run_both(
    args: &PairArgs,
    settings: &Settings,
    body: impl Fn(Rank) -> Result<u8, Error> + Sync,
) -> Result<u8, Error> {
    let ranks = args.ranks.checked()?;
    let world = World::find(ranks)?;
    let count = world.ranks(ranks)?;
    if count != 2 {
        return Err(Error::usage(format!(
            "rails are measured between 2 ranks, and not {count}"
        )));
    }
    let here = world::local_ranks(ranks)?;
    // The communicator uses TCP, so that a measurement has the RDMA ports for itself.
    let builder = Communicator::builder()
        .operation_timeout(OPERATION_TIMEOUT)
        .network(Net::Tcp);
    ranks::run(world, ranks, &builder, |comm| {
        let memory = Allocator::open(&comm, args.memory, settings)?;
        body(Rank { comm, here, memory })
    })
}

/// The seed of the bytes that a rank sends on a lane.
pub(crate) fn seed(size: usize, lane: usize, rank: usize) -> u64 {
    ((size * 256 + lane) * 2 + rank) as u64 + 1
}

/// Bytes without zeros, which differ from those of other seeds.
pub(crate) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let word = |index: u64| {
        let mixed =
            (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 32)) | 0x0101_0101_0101_0101
    };
    let words = (1..=bytes.div_ceil(8) as u64).map(word);
    let mut text: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    text.truncate(bytes);
    text
}

/// The number of bytes that differ from those of `seed`.
pub(crate) fn differing(seed: u64, seen: &[u8]) -> u64 {
    let expected = pattern(seed, seen.len());
    let differ = seen.iter().zip(&expected).filter(|(a, b)| a != b);
    differ.count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_differ_in_every_place_that_matters() {
        let one = pattern(1, 1 << 16);
        assert_eq!(one.len(), 1 << 16);
        assert_eq!(one, pattern(1, 1 << 16));
        assert!(!one.contains(&0));
        let other = pattern(2, 1 << 16);
        let same = one.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(same < 1 << 12, "{same}");
        assert_ne!(one[..4096], one[4096..8192]);
        assert_eq!(pattern(1, 3), one[..3]);
        assert_eq!(differing(1, &one), 0);
    }
}
