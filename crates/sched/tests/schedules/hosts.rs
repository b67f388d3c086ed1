//! The hierarchical all-reduce over hosts of different sizes and orders.

use proptest::prelude::*;
use spark_ccl_sched::check::{Case, Contributions, Sums, check};
use spark_ccl_sched::{Algorithm, Hosts, Schedule, Shape, lockstep, schedule};
use spark_ccl_types::Operation;

fn all_reduce(size: u32, count: u64, chunk: u64, slice: u64, in_place: bool) -> Case {
    Case {
        operation: Operation::AllReduce,
        algorithm: Algorithm::Hierarchical,
        in_place,
        size,
        count,
        root: 0,
        chunk,
        slice,
    }
}

fn schedules(case: &Case, host_of: &[u32]) -> Vec<Schedule> {
    (0..)
        .zip(Hosts::of_all(host_of))
        .map(|(rank, hosts)| {
            let shape = Shape {
                hosts: Some(hosts),
                ..case.shape(rank)
            };
            schedule(case.operation, case.algorithm, case.in_place, shape).unwrap()
        })
        .collect()
}

/// The host of each of `size` ranks: equal and unequal hosts, with consecutive ranks and not.
fn worlds(size: u32) -> Vec<Vec<u32>> {
    let world = |host: &dyn Fn(u32) -> u32| (0..size).map(host).collect::<Vec<_>>();
    let mut worlds = vec![
        world(&|rank| rank),
        world(&|rank| rank / 2),
        world(&|rank| rank / 8),
        world(&|rank| rank % 3),
        world(&|rank| size - rank % 4),
        // 1, 2, 4, ... ranks; and all ranks but one together.
        world(&|rank| (rank + 1).ilog2()),
        world(&|rank| u32::from(rank + 1 == size)),
    ];
    worlds.sort();
    worlds.dedup();
    worlds
}

#[test]
fn every_size_is_done_right_on_hosts_of_all_kinds() {
    for size in 1..=64 {
        let n = u64::from(size);
        for (world, host_of) in worlds(size).iter().enumerate() {
            for count in [0, 1, n - 1, n, 2 * n + 40, 6 * n + 5] {
                let in_place = (size as usize + world).is_multiple_of(2);
                let case = all_reduce(size, count, 3, 1 + n % 4, in_place);
                check::<Contributions, _>(&case, &schedules(&case, host_of), case.window())
                    .unwrap_or_else(|defect| panic!("{case:?} {host_of:?}: {defect}"));
            }
        }
    }
}

/// Counts what crosses between hosts at the messages' ends: it is the minimum.
#[test]
fn each_share_crosses_between_hosts_as_in_a_ring_of_hosts() {
    let host_of: Vec<_> = (0..24).map(|rank| rank / 8).collect();
    let case = all_reduce(24, 24 * 128, 1 << 20, 1 << 20, true);
    let mut sent = [0; 24];
    for (rank, schedule) in schedules(&case, &host_of).iter().enumerate() {
        let steps = spark_ccl_sched::Steps::walk(schedule, 0);
        let crosses = |to: u32| host_of[to as usize] != host_of[rank];
        sent[rank] = steps
            .filter(|step| step.kind.sends() && crosses(step.send_to))
            .map(|step| step.send_len())
            .sum();
    }
    // A share has 3 * 128 elements per rank, of which a ring of 3 sends 2 * 2 / 3.
    assert_eq!(sent, [4 * 128; 24]);
}

#[test]
fn runs_on_4096_ranks() {
    let eights: Vec<_> = (0..4096).map(|rank| rank / 8).collect();
    let case = all_reduce(4096, 3 * 4096 + 5, 64, 64, true);
    lockstep::run(&schedules(&case, &eights), case.window()).unwrap();
    // From 256 ranks on the first host to 8 on the last.
    let uneven: Vec<_> = (0..4096).map(|rank| rank * rank / (1 << 16)).collect();
    let few = all_reduce(4096, 13, 2, 2, true);
    check::<Sums, _>(&few, &schedules(&few, &uneven), few.window()).unwrap();
}

#[test]
fn hosts_of_another_rank_are_refused() {
    let hosts = Hosts::of_all(&[0, 0, 1, 1]);
    let case = all_reduce(4, 8, 8, 8, true);
    for (rank, size) in [(1, 4), (0, 3)] {
        let shape = Shape {
            size,
            hosts: Some(hosts[0]),
            ..case.shape(rank)
        };
        let refused = schedule(case.operation, case.algorithm, true, shape).unwrap_err();
        assert!(refused.reason.contains("hosts"), "{refused}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_hosts_are_right(
        host_of in prop::collection::vec(0..6_u32, 1..24),
        count in prop_oneof![0..60_u64, 200..1500_u64],
        chunk in prop_oneof![1..20_u64, 30..400_u64],
        slice in prop_oneof![1..20_u64, 30..400_u64],
        in_place: bool,
    ) {
        let case = all_reduce(host_of.len() as u32, count, chunk, slice, in_place);
        let checked = check::<Contributions, _>(&case, &schedules(&case, &host_of), case.window());
        prop_assert!(checked.is_ok(), "{}", checked.unwrap_err());
    }
}
