//! Measurements with a planted fault each, and the findings about them.

use spark_ccl_console::rails::{MemoryKind, RailEnds};
use spark_ccl_topology::testing;

use super::*;

fn row(rails: &[usize], gb_per_s: f64) -> BandwidthRow {
    BandwidthRow {
        bytes: 1 << 20,
        rails: rails.to_vec(),
        carried: vec![1; rails.len()],
        seconds: 1.0,
        gb_per_s,
        cpu_us_per_mib: 1.0,
        wrong: 0,
    }
}

fn measured(ends: &[[&str; 2]], rates: [f64; 3]) -> Measured<BandwidthRow> {
    let rail = |ends: &[&str; 2]| RailEnds {
        ends: ends.map(str::to_owned),
        unbound: None,
        round_trip_us: Some(30.0),
    };
    Measured {
        what: String::new(),
        memory: MemoryKind::Host,
        rails: ends.iter().map(rail).collect(),
        rows: vec![
            row(&[0], rates[0]),
            row(&[1], rates[1]),
            row(&[0, 1], rates[2]),
        ],
    }
}

/// The findings about a pair of Sparks that carries this over RDMA.
fn said(rates: [f64; 3], change: impl FnOnce(&mut Measured<BandwidthRow>)) -> Vec<Finding> {
    let hosts = testing::hosts(&testing::pair());
    let cluster = Cluster::of(&hosts);
    let netdevs = [["enp1s0f0np0 (x)"; 2], ["enP2p1s0f0np0 (x)"; 2]];
    let devices = [["rocep1s0f0:1 (x)"; 2], ["roceP2p1s0f0:1 (x)"; 2]];
    let mut rdma = measured(&devices, rates);
    change(&mut rdma);
    let pair = Pair {
        hosts: [0, 1],
        tcp: Ok(measured(&netdevs, [4.0, 4.0, 6.0])),
        rdma: Some(Ok(rdma)),
        latency: None,
    };
    let found = judge::pair(&cluster, &pair);
    found
        .into_iter()
        .filter(|one| one.status > Status::Ok)
        .collect()
}

#[test]
fn a_measurement_that_ends_is_explained_by_all_ranks() {
    let stalled = "spark-perf: rank 0: nothing moved for 10 s";
    let left = "spark-perf: rank 1: rank 0 left the communicator";
    let end = "spark-perf: rank 0 on node1 ended with exit code 1";
    let said = [stalled, left, end].join("\n");
    assert_eq!(why(&said), format!("{stalled}; {left}"));
    assert_eq!(
        why("warning: slow\nno route to node2\n\n"),
        "no route to node2"
    );
    assert_eq!(why(end), "it said nothing");
}

#[test]
fn a_pair_of_sparks_that_carries_what_it_can_is_fine() {
    assert_eq!(said([12.0, 12.1, 23.7], |_| ()), []);
}

#[test]
fn what_is_slow_is_named_with_what_it_should_carry() {
    let cases = [
        ([5.0, 12.0, 23.7], "rocep1s0f0:1", "12.0 GB/s"),
        ([12.0, 12.0, 12.0], "2 rails together", "23.7 GB/s"),
    ];
    for (rates, seen, wanted) in cases {
        let found = said(rates, |_| ());
        let [one] = found.as_slice() else {
            panic!("{found:#?}");
        };
        assert_eq!((one.status, one.id), (Status::Warn, "probe.rdma"));
        assert!(one.seen.contains(seen), "{one}");
        assert_eq!(one.wanted.as_deref(), Some(wanted));
    }
}

#[test]
fn wrong_bytes_fail_and_missing_rails_are_named() {
    let found = said([12.0, 12.0, 23.7], |it| it.rows[1].wrong = 3);
    assert_eq!(found[0].status, Status::Fail);
    let found = said([12.0, 12.0, 23.7], |it| {
        it.rails.truncate(1);
        it.rows.truncate(1);
    });
    assert!(found[0].seen.contains("1 of 2 rails"), "{}", found[0]);
}

#[test]
fn another_attempt_hides_neither_wrong_bytes_nor_a_failure() {
    let ends = [["a (x)"; 2], ["b (x)"; 2]];
    let attempt = |rates, wrong| {
        let mut measured = measured(&ends, rates);
        measured.rows[0].wrong = wrong;
        Ok(measured)
    };
    for (first, second) in [(3, 0), (0, 3)] {
        let mut own = attempt([1.0, 2.0, 3.0], first);
        keep(&mut own, attempt([2.0, 1.0, 3.0], second));
        let rows = own.unwrap().rows;
        let kept: Vec<_> = rows.iter().map(|row| (row.gb_per_s, row.wrong)).collect();
        assert_eq!(kept, [(2.0, 3), (2.0, 0), (3.0, 0)]);
    }
    let failed = || Err("no answer".to_owned());
    for (first, second) in [
        (attempt([1.0; 3], 5), failed()),
        (failed(), attempt([1.0; 3], 5)),
    ] {
        let mut own = first;
        keep(&mut own, second);
        let why = own.unwrap_err();
        assert!(
            why.contains("no answer") && why.contains("5 wrong bytes"),
            "{why}"
        );
    }
    let mut own = failed();
    keep(&mut own, attempt([1.0; 3], 0));
    assert_eq!(own.unwrap_err(), "no answer");
}

#[test]
fn rows_of_two_attempts_are_matched_by_the_names_of_their_rails() {
    let mut own = Ok(measured(&[["a (x)"; 2], ["b (x)"; 2]], [1.0, 2.0, 3.0]));
    // The same in another order, and one more.
    let mut second = measured(&[["b (x)"; 2], ["a (x)"; 2], ["c (x)"; 2]], [1.5, 4.0, 5.0]);
    second.rows[0].wrong = 7;
    second.rows[2].carried = vec![8, 9];
    second.rows.push(row(&[2], 6.0));
    keep(&mut own, Ok(second));
    let own = own.unwrap();
    let names: Vec<_> = own.rails.iter().map(|one| one.ends[0].as_str()).collect();
    assert_eq!(names, ["a (x)", "b (x)", "c (x)"]);
    let rows: Vec<_> = own
        .rows
        .iter()
        .map(|row| (&row.rails[..], row.gb_per_s, row.wrong))
        .collect();
    let expected: [(&[usize], f64, u64); 4] = [
        (&[0], 4.0, 0),
        (&[1], 2.0, 7),
        (&[1, 0], 5.0, 0),
        (&[2], 6.0, 0),
    ];
    assert_eq!(rows, expected);
    assert_eq!(own.rows[2].carried, [8, 9], "in the order of its rails");
}

#[test]
fn an_answer_with_rails_that_it_does_not_list_is_refused() {
    let mut answer = measured(&[["a (x)"; 2], ["b (x)"; 2]], [1.0, 2.0, 3.0]);
    assert_eq!(with_known_rails(answer.clone()), Ok(answer.clone()));
    answer.rows[1].rails = vec![1, 2];
    let why = with_known_rails(answer.clone()).unwrap_err();
    assert!(why.contains("rail 2"), "{why}");
    answer.rows[1].rails.clear();
    let why = with_known_rails(answer).unwrap_err();
    assert!(why.contains("no rail"), "{why}");
}

#[test]
fn where_no_figure_is_known_rails_are_compared() {
    let hosts = testing::hosts(&testing::pair());
    let cluster = Cluster::of(&hosts);
    let tcp = measured(&[["v0 (x)"; 2], ["v1 (x)"; 2]], [2.0, 0.01, 2.0]);
    let pair = Pair {
        hosts: [0, 1],
        tcp: Ok(tcp),
        rdma: None,
        latency: None,
    };
    let found = judge::pair(&cluster, &pair);
    let slow: Vec<_> = found
        .iter()
        .filter(|one| one.status == Status::Warn)
        .collect();
    assert_eq!(slow.len(), 1);
    assert!(slow[0].seen.contains("v1"), "{}", slow[0]);
}

#[test]
fn a_rail_that_routes_choose_is_not_ok() {
    let hosts = testing::hosts(&testing::pair());
    let mut tcp = measured(&[["v0 (x)"; 2], ["v1 (x)"; 2]], [2.0; 3]);
    tcp.rails[1].unbound = Some("refused".to_owned());
    let pair = Pair {
        hosts: [0, 1],
        tcp: Ok(tcp),
        rdma: None,
        latency: None,
    };
    let found = judge::pair(&Cluster::of(&hosts), &pair);
    let warned = found.iter().filter(|one| one.status == Status::Warn);
    let [one] = warned.collect::<Vec<_>>()[..] else {
        panic!("{found:#?}");
    };
    assert!(
        one.seen.contains("v1") && one.seen.ends_with(": refused"),
        "{one}"
    );
}

#[test]
fn a_collective_is_judged_by_the_rails() {
    let hosts = testing::hosts(&testing::pair());
    let cluster = Cluster::of(&hosts);
    let judged = |bus_bw: f64, of_rails| {
        let row = |size: u64| {
            serde_json::json!({"size": size, "type": "float", "redop": "sum", "root": "-1",
                "out_of_place": {"time": 2.0, "bus_bw": bus_bw, "nwrong": 0}, "in_place": null})
        };
        let document = serde_json::json!({"results": [row(8), row(1 << 24)]});
        let document = serde_json::from_value(document).unwrap();
        judge::collective(&cluster, &Ok(document), of_rails)
    };
    // The rate of a LAN beside a rail of 12 GB/s.
    let found = judged(0.11, Some(12.0));
    assert_eq!(found.status, Status::Warn, "{found}");
    assert!(found.wanted.unwrap().contains("1.20 GB/s"));
    for (bus_bw, of_rails) in [(0.11, Some(0.12)), (4.0, Some(12.0)), (0.11, None)] {
        assert_eq!(
            judged(bus_bw, of_rails).status,
            Status::Ok,
            "{bus_bw} {of_rails:?}"
        );
    }
}

/// Each rail carries the same.
#[test]
fn a_slow_rail_slows_the_collective() {
    let even = |rates| {
        let pair = Pair {
            hosts: [0, 1],
            tcp: Ok(measured(&[["v0 (x)"; 2], ["v1 (x)"; 2]], rates)),
            rdma: None,
            latency: None,
        };
        pair.even()
    };
    assert_eq!(even([3.0, 0.5, 3.0]), Some(1.0));
    // Processors are too slow for both at once.
    assert_eq!(even([3.0, 3.0, 4.0]), Some(4.0));
}

#[test]
fn a_slow_network_gets_a_smaller_collective() {
    let pair = |tcp, rdma| Pair {
        hosts: [0, 1],
        tcp,
        rdma,
        latency: None,
    };
    let rates = |rates| Ok(measured(&[["v0 (x)"; 2], ["v1 (x)"; 2]], rates));
    let fast = || pair(rates([1.0, 1.0, 2.0]), None);
    let failed = || pair(Err("no answer".to_owned()), None);
    assert_eq!(last_size(&[fast(), failed()]), 16 << 20);
    assert_eq!(last_size(&[failed()]), 16 << 20);
    // 30 MB a second; the rate of TCP does not matter where there is RDMA.
    let slow = pair(rates([1.0; 3]), Some(rates([0.01, 0.02, 0.03])));
    assert_eq!(last_size(&[fast(), slow]), 9_000_000);
    let without = pair(rates([0.01; 3]), Some(Err("no answer".to_owned())));
    assert_eq!(last_size(&[without]), 3_000_000);
    assert_eq!(last_size(&[pair(rates([0.0; 3]), None)]), 8);
}

#[test]
fn slow_rates_are_not_shown_as_none() {
    let found = said([0.03, 0.02, 12.0], |_| ());
    assert!(found[1].seen.ends_with(" 0.0200 GB/s"), "{}", found[1]);
}
