//! The closed forms stay close to the simulation of every message.

use spark_ccl_sched::check::Case;
use spark_ccl_sched::cost::{Fabric, LinkCost, estimate, simulate};
use spark_ccl_sched::{Algorithm, Shape, schedule};
use spark_ccl_types::Operation;

const MEMORY: LinkCost = LinkCost {
    latency_us: 0.3,
    overhead_us: 0.1,
    wire_us_per_byte: 0.0,
    copy_us_per_byte: 1.0 / 10_000.0,
    reduce_us_per_byte: 1.0 / 8_000.0,
    slice_bytes: 16 << 10,
};

const NETWORK: LinkCost = LinkCost {
    latency_us: 20.0,
    overhead_us: 3.0,
    wire_us_per_byte: 1.0 / 1_200.0,
    slice_bytes: 64 << 10,
    ..MEMORY
};

fn both(
    operation: Operation,
    algorithm: Algorithm,
    size: u32,
    count: u64,
    cost: &LinkCost,
) -> (f64, f64) {
    let case = Case {
        operation,
        algorithm,
        in_place: algorithm != Algorithm::OneSided || operation != Operation::AllToAll,
        size,
        count,
        root: 0,
        chunk: 4 * cost.slice_bytes / 4,
        slice: cost.slice_bytes / 4,
    };
    let fabric = Fabric::Switch(*cost);
    let ranks: Vec<_> = (0..)
        .zip(fabric.hosts(size))
        .map(|(rank, hosts)| {
            let hosts = Some(hosts);
            let shape = Shape {
                hosts,
                ..case.shape(rank)
            };
            schedule(operation, algorithm, case.in_place, shape).unwrap()
        })
        .collect();
    let simulated = simulate(&ranks, case.chunk, 4, &fabric).unwrap();
    let estimated = estimate(operation, algorithm, &case.shape(0), 4, &fabric);
    (estimated, simulated)
}

#[test]
fn estimates_are_within_a_factor_of_two_of_the_simulation() {
    let mut wrong = Vec::new();
    for operation in Operation::ALL {
        for algorithm in Algorithm::of(operation) {
            for size in [2, 3, 4, 7, 8, 16] {
                for count in [2, 1 << 10, 1 << 15, 1 << 20] {
                    for (name, cost) in [("memory", MEMORY), ("network", NETWORK)] {
                        let (estimated, simulated) =
                            both(operation, *algorithm, size, count, &cost);
                        let ratio = estimated / simulated;
                        if !(0.5..=2.0).contains(&ratio) {
                            wrong.push(format!(
                                "{operation} {algorithm} {size} {count} {name}: \
                                 {estimated:.1} for {simulated:.1}, {ratio:.2}"
                            ));
                        }
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn nothing_to_do_takes_no_time() {
    let (estimated, simulated) = both(Operation::AllReduce, Algorithm::Ring, 1, 100, &MEMORY);
    assert!(estimated == 0.0 && simulated > 0.0);
    let (estimated, simulated) = both(Operation::AllReduce, Algorithm::Ring, 4, 0, &MEMORY);
    assert!(estimated == 0.0 && simulated == 0.0);
}

#[test]
fn combinations_without_a_schedule_are_infinitely_slow() {
    let (finite, _) = both(Operation::AllReduce, Algorithm::Ring, 4, 100, &MEMORY);
    assert!(finite.is_finite());
    let shape = Shape {
        rank: 0,
        size: 4,
        count: 100,
        root: 0,
        chunk: 10,
        hosts: None,
    };
    for operation in Operation::ALL {
        for algorithm in Algorithm::ALL {
            let time = estimate(operation, algorithm, &shape, 4, &Fabric::Switch(MEMORY));
            let is_known = Algorithm::of(operation).contains(&algorithm);
            assert_eq!(time.is_finite(), is_known, "{operation} {algorithm}");
        }
    }
}
