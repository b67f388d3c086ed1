//! `all_reduce` on machines of many hosts: the closed forms stay close to the simulation of the
//! real schedules, and both agree with the textbook formulas where those apply.

use spark_ccl_sched::cost::{Fabric, LinkCost, estimate, simulate};
use spark_ccl_sched::{Algorithm, Schedule, Shape, schedule};
use spark_ccl_types::Operation;

const CHUNK: u64 = 1 << 20;

const NETWORK: LinkCost = LinkCost {
    latency_us: 5.0,
    overhead_us: 0.5,
    wire_us_per_byte: 1.0 / 23_700.0,
    copy_us_per_byte: 1.0 / 130_000.0,
    reduce_us_per_byte: 1.0 / 90_000.0,
    slice_bytes: 128 << 10,
};

const GPU: LinkCost = LinkCost {
    copy_us_per_byte: 0.0,
    reduce_us_per_byte: 1.0 / 1_600_000.0,
    ..NETWORK
};

const HOSTS: Fabric = Fabric::Hosts {
    per_host: 8,
    cards: 8,
    inside: LinkCost {
        latency_us: 1.0,
        overhead_us: 0.2,
        wire_us_per_byte: 1.0 / 337_000.0,
        ..GPU
    },
    across: LinkCost {
        wire_us_per_byte: 1.0 / 50_000.0,
        ..GPU
    },
};

fn schedules(algorithm: Algorithm, fabric: &Fabric, size: u32, bytes: u64) -> Vec<Schedule> {
    (0..)
        .zip(fabric.hosts(size))
        .map(|(rank, hosts)| {
            let shape = Shape {
                rank,
                hosts: Some(hosts),
                ..shape(size, bytes)
            };
            schedule(Operation::AllReduce, algorithm, true, shape).unwrap()
        })
        .collect()
}

/// One element is one byte.
fn shape(size: u32, bytes: u64) -> Shape {
    Shape {
        rank: 0,
        size,
        count: bytes,
        root: 0,
        chunk: CHUNK,
        hosts: None,
    }
}

fn simulated(algorithm: Algorithm, fabric: &Fabric, size: u32, bytes: u64) -> f64 {
    let ranks = schedules(algorithm, fabric, size, bytes);
    simulate(&ranks, CHUNK, 1, fabric).unwrap()
}

fn estimated(algorithm: Algorithm, fabric: &Fabric, size: u32, bytes: u64) -> f64 {
    estimate(
        Operation::AllReduce,
        algorithm,
        &shape(size, bytes),
        1,
        fabric,
    )
}

fn close(algorithm: Algorithm, fabric: &Fabric, sizes: &[u32], tolerance: f64) {
    for size in sizes {
        for bytes in [1 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20] {
            let simulated = simulated(algorithm, fabric, *size, bytes);
            let estimated = estimated(algorithm, fabric, *size, bytes);
            assert!(
                (estimated / simulated - 1.0).abs() <= tolerance,
                "{algorithm}, {size} ranks, {bytes} bytes: {estimated:.1} for {simulated:.1}"
            );
        }
    }
}

#[test]
fn closed_forms_on_a_switch() {
    let fabric = Fabric::Switch(NETWORK);
    close(Algorithm::Ring, &fabric, &[2, 4, 7, 8, 16, 64], 0.06);
    close(
        Algorithm::HalvingDoubling,
        &fabric,
        &[2, 4, 8, 16, 64],
        0.02,
    );
    close(Algorithm::HalvingDoubling, &fabric, &[3, 7, 24], 0.2);
    close(Algorithm::Hierarchical, &fabric, &[8, 16, 24, 32, 64], 0.12);
    close(Algorithm::DoubleTree, &fabric, &[2, 4, 7, 8, 16, 64], 0.13);
}

#[test]
fn closed_forms_on_hosts_of_eight() {
    close(Algorithm::Ring, &HOSTS, &[8, 16, 24, 32, 64], 0.06);
    close(Algorithm::HalvingDoubling, &HOSTS, &[8, 16, 32, 64], 0.02);
    close(Algorithm::Hierarchical, &HOSTS, &[8, 16, 24, 32, 64], 0.12);
    close(Algorithm::DoubleTree, &HOSTS, &[8, 16, 32, 64], 0.35);
}

#[test]
fn closed_forms_on_a_ring_of_cables() {
    let fabric = Fabric::Cables(NETWORK);
    close(Algorithm::Ring, &fabric, &[2, 4, 7, 8, 16, 64], 0.06);
    close(
        Algorithm::HalvingDoubling,
        &fabric,
        &[2, 4, 8, 16, 64],
        0.26,
    );
    close(Algorithm::Hierarchical, &fabric, &[8, 16, 24, 32, 64], 0.35);
    close(Algorithm::DoubleTree, &fabric, &[2, 4, 7, 8, 16, 64], 0.25);
}

/// With only a latency and a time per byte, and messages that are not divided into slices.
#[test]
fn latency_and_bandwidth_give_the_textbook_formulas() {
    let (alpha, beta) = (7.0, 1e-3);
    let fabric = Fabric::Switch(LinkCost {
        latency_us: alpha,
        overhead_us: 0.0,
        wire_us_per_byte: beta,
        copy_us_per_byte: 0.0,
        reduce_us_per_byte: 0.0,
        slice_bytes: CHUNK,
    });
    for log in 1..=6 {
        let size = 1_u32 << log;
        let n = f64::from(size);
        for bytes in [64_u64, 1 << 20] {
            let moved = 2.0 * (n - 1.0) / n * bytes as f64 * beta;
            // Rings of consecutive ranks: the bits of the rank are divided as equally as possible.
            let (inside, across) = (f64::from(1 << (log / 2)), f64::from(1 << (log - log / 2)));
            for (algorithm, messages) in [
                (Algorithm::Ring, 2.0 * (n - 1.0)),
                (Algorithm::HalvingDoubling, 2.0 * f64::from(log)),
                (Algorithm::Hierarchical, 2.0 * (inside - 1.0 + across - 1.0)),
            ] {
                let known = messages * alpha + moved;
                for time in [
                    simulated(algorithm, &fabric, size, bytes),
                    estimated(algorithm, &fabric, size, bytes),
                ] {
                    let ratio = time / known;
                    assert!(
                        (ratio - 1.0).abs() < 1e-9,
                        "{algorithm}, {size} ranks, {bytes} bytes: {time} for {known}"
                    );
                }
            }
        }
    }
}

/// The ranks of a host share what it sends through one card. The hierarchical algorithm sends no
/// more than necessary, and nor does halving and doubling; a ring has one flow per host in any
/// case.
#[test]
fn flows_share_a_card() {
    let Fabric::Hosts { inside, across, .. } = HOSTS else {
        unreachable!()
    };
    let shared = Fabric::Hosts {
        per_host: 8,
        cards: 1,
        inside,
        across,
    };
    let bytes = 256 << 20;
    let slower = |algorithm| {
        simulated(algorithm, &shared, 32, bytes) / simulated(algorithm, &HOSTS, 32, bytes)
    };
    assert!((slower(Algorithm::Ring) - 1.0).abs() < 0.01);
    assert!(slower(Algorithm::Hierarchical) > 2.0);
    assert!(slower(Algorithm::HalvingDoubling) > 2.0);
    // Everything except the host's own share of the vector leaves and enters through the card,
    // twice.
    let card = 2.0 * 3.0 / 4.0 * bytes as f64 * across.wire_us_per_byte;
    let time = simulated(Algorithm::Hierarchical, &shared, 32, bytes);
    assert!((1.0..1.1).contains(&(time / card)), "{time} for {card}");
}

/// Every rank forwards what its neighbours send past it.
#[test]
fn forwarded_messages_use_the_ports_in_between() {
    let bytes = 64 << 20;
    let slower = |algorithm| {
        let time = |fabric: &Fabric| simulated(algorithm, fabric, 16, bytes);
        time(&Fabric::Cables(NETWORK)) / time(&Fabric::Switch(NETWORK))
    };
    assert!((slower(Algorithm::Ring) - 1.0).abs() < 1e-9);
    assert!(slower(Algorithm::HalvingDoubling) > 2.0);
    assert!(slower(Algorithm::DoubleTree) > 2.0);
}
