//! Random sizes, with real arithmetic.

use proptest::prelude::*;
use spark_ccl_sched::check::{Case, Contributions, Goal, Layout, Sums, Want, check};
use spark_ccl_sched::lockstep::Window;
use spark_ccl_sched::{Algorithm, Rank, all_to_all_v};
use spark_ccl_types::Operation;

fn any_algorithm() -> impl Strategy<Value = (Operation, Algorithm)> {
    let all: Vec<_> = Operation::ALL
        .into_iter()
        .flat_map(|operation| {
            let algorithms = Algorithm::of(operation).iter();
            algorithms.map(move |algorithm| (operation, *algorithm))
        })
        .collect();
    proptest::sample::select(all)
}

prop_compose! {
    fn any_case()(
        (operation, algorithm) in any_algorithm(),
        in_place: bool,
        size in 1..20_u32,
        root in any::<prop::sample::Index>(),
        count in prop_oneof![0..40_u64, 200..1500_u64],
        chunk in prop_oneof![1..20_u64, 30..400_u64, Just(u64::MAX / 2)],
        slice in prop_oneof![1..20_u64, 30..400_u64],
    ) -> Case {
        // In place, each rank would overwrite what others read.
        let is_one_sided_exchange = operation == Operation::AllToAll && algorithm == Algorithm::OneSided;
        let root = root.index(size as usize) as Rank;
        // Links for unlimited chunks would hold everything: the test would find nothing, and need
        // too much memory.
        let slice = if chunk > 400 { chunk } else { slice };
        let in_place = in_place && !is_one_sided_exchange;
        Case { operation, algorithm, in_place, size, count, root, chunk, slice }
    }
}

/// An all-to-all with a length for every pair. Blocks lie in the order of ranks, with gaps.
#[derive(Debug, Clone)]
struct Exchange {
    size: usize,
    gap: u64,
    /// `lens[from][to]`.
    lens: Vec<Vec<u64>>,
}

impl Exchange {
    fn sent(&self, rank: usize) -> Vec<u64> {
        self.lens[rank].clone()
    }

    fn received(&self, rank: usize) -> Vec<u64> {
        self.lens.iter().map(|row| row[rank]).collect()
    }

    fn offsets(&self, lens: &[u64]) -> Vec<u64> {
        let mut end = 0;
        let place = |len: &u64| {
            let offset = end + self.gap;
            end = offset + len;
            offset
        };
        lens.iter().map(place).collect()
    }

    fn end(&self, lens: &[u64]) -> u64 {
        lens.iter().sum::<u64>() + self.gap * lens.len() as u64
    }
}

impl Goal for Exchange {
    fn layout(&self, rank: Rank) -> Layout {
        let input = self.end(&self.sent(rank as usize));
        let output = self.end(&self.received(rank as usize));
        Layout {
            input: (0, input),
            output: (input, output),
        }
    }

    fn want(&self, rank: Rank, index: u64) -> Want {
        let lens = self.received(rank as usize);
        for (from, (offset, len)) in self.offsets(&lens).into_iter().zip(&lens).enumerate() {
            if (offset..offset + len).contains(&index) {
                let there = self.offsets(&self.sent(from))[rank as usize];
                return Want::Copy {
                    rank: from as Rank,
                    index: there + index - offset,
                };
            }
        }
        Want::Same
    }

    fn reduces(&self) -> bool {
        false
    }
}

fn any_exchange() -> impl Strategy<Value = Exchange> {
    (1..9_usize, 0..3_u64).prop_flat_map(|(size, gap)| {
        let len = prop_oneof![Just(0), 1..30_u64];
        let row = prop::collection::vec(len, size);
        prop::collection::vec(row, size).prop_map(move |lens| Exchange { size, gap, lens })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_size_is_done_right(case in any_case()) {
        let ranks = case.schedules().unwrap();
        let sums = check::<Sums, _>(&case, &ranks, case.window());
        prop_assert!(sums.is_ok(), "{}", sums.unwrap_err());
        let contributions = check::<Contributions, _>(&case, &ranks, case.window());
        prop_assert_eq!(contributions, sums);
    }

    #[test]
    fn any_exchange_is_done_right(
        exchange in any_exchange(),
        slice in 1..10_u64,
        slots in 1..4_usize,
    ) {
        let tables: Vec<_> = (0..exchange.size)
            .map(|rank| {
                let (sent, received) = (exchange.sent(rank), exchange.received(rank));
                let (from, to) = (exchange.offsets(&sent), exchange.offsets(&received));
                (sent, from, received, to)
            })
            .collect();
        let ranks: Vec<_> = (0..)
            .zip(&tables)
            .map(|(rank, (sent, from, received, to))| {
                all_to_all_v(rank, sent, from, received, to).unwrap()
            })
            .collect();
        let checked = check::<Sums, _>(&exchange, &ranks, Window { slice, slots });
        prop_assert!(checked.is_ok(), "{}", checked.unwrap_err());
    }
}
