//! Limits the sweep to the memory that is available.
//!
//! Knows sizes and names of limits. Must not know what the memory is for.

mod available;

use std::collections::BTreeMap;

pub(crate) use available::{here, peak_resident};
use spark_ccl_console::notation::size::human;

use crate::cli::sweep::Sweep;

/// The memory that each rank needs besides its buffers: stacks and the program.
const PER_RANK: u64 = 16 << 20;
/// The memory that each rank needs for each rank of its host: the slots of their link.
const PER_LINK: u64 = 2 << 20;
/// The prefix of the names of GPUs' limits.
pub(crate) const GPU: &str = "gpu";
/// The fraction of the available memory that is left free for other programs.
const RESERVE_FRACTION: u64 = 16;

/// A limit on the memory of a rank, which other ranks may share.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct MemoryLimit {
    /// The owner of the limit: ranks with the same name share the bytes.
    pub(crate) name: String,
    /// The bytes that can be allocated without swapping or being killed.
    pub(crate) bytes: u64,
}

/// Lowers the end of the sweep to what fits, and returns a line that says so.
///
/// `limits` has one entry per rank. `need` returns the bytes of a rank's buffers if its argument is
/// the largest size of the sweep.
pub(crate) fn clamp(
    sweep: Sweep,
    limits: &[Vec<MemoryLimit>],
    need: impl Fn(u64) -> u64,
) -> Result<(Sweep, Option<String>), String> {
    let Some(tight) = tightest(limits) else {
        return Ok((sweep, None));
    };
    let fits = |size: u64| need(size) <= tight.per_rank;
    if fits(sweep.last()) {
        return Ok((sweep, None));
    }
    if !fits(sweep.min) {
        return Err(format!(
            "{} a rank are needed for the first size ({}), and {} are there: {tight}; lower -b or \
             the number of ranks",
            human(need(sweep.min)),
            human(sweep.min),
            human(tight.per_rank),
        ));
    }
    let max = largest(sweep, fits);
    let line = format!(
        "Reducing the last size from {} to {}: {} a rank would be needed, and {} are there: \
         {tight}",
        human(sweep.max),
        human(max),
        human(need(sweep.last())),
        human(tight.per_rank),
    );
    Ok((Sweep { max, ..sweep }, Some(line)))
}

/// The largest size of the sweep that fits; the first size must fit.
fn largest(sweep: Sweep, fits: impl Fn(u64) -> bool) -> u64 {
    if sweep.factor > 1 {
        return sweep
            .sizes()
            .take_while(|&size| fits(size))
            .last()
            .unwrap_or(sweep.min);
    }
    let (mut low, mut high) = (0, sweep.len() - 1);
    while low < high {
        let middle = high - (high - low) / 2;
        if fits(sweep.min + middle * sweep.step) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    sweep.min + low * sweep.step
}

/// The limit that leaves the fewest bytes to each of its ranks.
struct TightestLimit {
    per_rank: u64,
    available: u64,
    ranks: u64,
    location: &'static str,
}

impl std::fmt::Display for TightestLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} available {}, a {RESERVE_FRACTION}th kept free, {} ranks, {} each for the library",
            human(self.available),
            self.location,
            self.ranks,
            human(library(self.ranks))
        )
    }
}

fn tightest(limits: &[Vec<MemoryLimit>]) -> Option<TightestLimit> {
    let mut shared: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for limit in limits.iter().flatten() {
        let (bytes, ranks) = shared.entry(&limit.name).or_insert((limit.bytes, 0));
        *bytes = limit.bytes.min(*bytes);
        *ranks += 1;
    }
    let tight = |(name, (available, ranks)): (&str, (u64, u64))| TightestLimit {
        per_rank: ((available - available / RESERVE_FRACTION) / ranks)
            .saturating_sub(library(ranks)),
        available,
        ranks,
        location: match name.split_whitespace().next() {
            Some("control") => "in the control group",
            Some(GPU) => "on the GPU",
            _ => "on the host",
        },
    };
    shared
        .into_iter()
        .map(tight)
        .min_by_key(|tight| tight.per_rank)
}

/// The memory that a rank needs besides its buffers, with `ranks` ranks on its host.
fn library(ranks: u64) -> u64 {
    PER_RANK + PER_LINK * ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWEEP: Sweep = Sweep {
        min: 8,
        max: 1 << 30,
        factor: 2,
        step: 1,
    };

    fn host(bytes: u64) -> Vec<MemoryLimit> {
        vec![MemoryLimit {
            name: "machine a".into(),
            bytes,
        }]
    }

    #[test]
    fn nothing_to_do() {
        assert_eq!(
            clamp(SWEEP, &[host(16 << 30), host(16 << 30)], |size| 2 * size),
            Ok((SWEEP, None))
        );
        assert_eq!(
            clamp(SWEEP, &[vec![], vec![]], |size| 2 * size),
            Ok((SWEEP, None))
        );
    }

    #[test]
    fn end_is_lowered_to_a_size_of_the_sweep() {
        // 2 GiB minus a sixteenth, for two ranks: 960 MiB minus 20 MiB each, which is enough for
        // two buffers of 256 MiB, but not of 512 MiB.
        let (lowered, line) =
            clamp(SWEEP, &[host(2 << 30), host(2 << 30)], |size| 2 * size).unwrap();
        assert_eq!(lowered.max, 256 << 20);
        let line = line.unwrap();
        assert!(
            line.contains("256 MiB") && line.contains("940 MiB") && line.contains("2 ranks"),
            "{line}"
        );
        let steps = Sweep {
            min: 1 << 20,
            max: 1 << 30,
            factor: 1,
            step: 1 << 20,
        };
        let (lowered, _) = clamp(steps, &[host(2 << 30), host(2 << 30)], |size| 2 * size).unwrap();
        assert_eq!(lowered.max, 470 << 20);
    }

    #[test]
    fn refused_when_the_first_size_does_not_fit() {
        let sweep = Sweep {
            min: 1 << 30,
            ..SWEEP
        };
        let error = clamp(sweep, &[host(2 << 30), host(2 << 30)], |size| 2 * size).unwrap_err();
        assert!(
            error.contains("2 GiB") && error.contains("940 MiB"),
            "{error}"
        );
    }

    #[test]
    fn ranks_of_other_hosts_do_not_count() {
        let other = vec![MemoryLimit {
            name: "machine b".into(),
            bytes: 4 << 30,
        }];
        assert_eq!(
            clamp(SWEEP, &[host(4 << 30), other], |size| 2 * size),
            Ok((SWEEP, None))
        );
    }

    #[test]
    fn control_group_can_be_tighter() {
        let group = MemoryLimit {
            name: "control group x".into(),
            bytes: 256 << 20,
        };
        let limits = vec![
            MemoryLimit {
                name: "machine a".into(),
                bytes: 64 << 30,
            },
            group,
        ];
        let (lowered, line) = clamp(SWEEP, &[limits], |size| 2 * size).unwrap();
        assert_eq!(lowered.max, 64 << 20);
        assert!(line.unwrap().contains("control group"));
    }
}
