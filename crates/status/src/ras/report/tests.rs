//! Which ranks are late, and what the report says of it.

use super::*;
use crate::ras::text;

fn rank(number: u32, entered: u64, waits: Option<(u64, f64)>) -> Rank {
    let mut calls = [0; 16];
    calls[usize::from(Operation::AllReduce.code())] = entered;
    Rank {
        rank: number,
        host: format!("host{}", number / 2),
        pid: 100 + number,
        cuda_dev: -1,
        nvml_dev: -1,
        status: RankStatus::default(),
        collective_counts: Counts::new(&calls),
        spark_ccl: RankMore {
            entered,
            finished: entered.saturating_sub(u64::from(waits.is_some())),
            call: (entered > 0).then(|| "all_reduce(count 4, float, sum)".to_owned()),
            waits: waits.map(|(sequence, sec)| Wait {
                sequence: Some(sequence),
                call: "all_reduce(count 4, float, sum)".to_owned(),
                for_rank: Some(1),
                sec,
            }),
            late_sec: None,
            calls: BTreeMap::from([("all_reduce".to_owned(), entered)]),
        },
    }
}

fn missing(number: u32, status: MissingStatus) -> Missing {
    Missing {
        rank: number,
        host: "host1".to_owned(),
        pid: 100 + number,
        cuda_dev: -1,
        nvml_dev: -1,
        status,
    }
}

const SILENT: MissingStatus = MissingStatus {
    unresponsive: true,
    considered_dead: false,
};
const LEFT: MissingStatus = MissingStatus {
    unresponsive: false,
    considered_dead: false,
};

fn report(communicators: Vec<Communicator>) -> Report {
    Report::new(
        "spark-ccl 9",
        "2026-01-01 00:00:00".to_owned(),
        communicators,
        0.25,
    )
}

#[test]
fn a_rank_is_late_for_a_collective_that_it_has_not_called() {
    let ranks = vec![
        rank(0, 7, Some((7, 3.25))),
        rank(1, 5, None),
        // It has made the call in which the others wait, and computes.
        rank(2, 7, None),
        rank(3, 6, Some((6, 9.5))),
    ];
    let report = report(vec![Communicator::new(0xabc, 1, 4, ranks, Vec::new())]);
    let late = report.communicators[0].ranks.iter();
    let late: Vec<_> = late.map(|rank| rank.spark_ccl.late_sec).collect();
    assert_eq!(late, [None, Some(9.5), None, Some(3.25)]);

    let text = text(&report, false);
    for expected in [
        "Rank 1 is late by 9.5 s: its last call is #5 all_reduce(count 4, float, sum) -- managed \
         by process 101 on node host0",
        "Rank 0 has waited for rank 1 for 3.2 s in #7 all_reduce(count 4, float, sum)",
        "Communicator ranks have different AllReduce operation counts",
        "#0-0 (0000000000000abc) MISMATCH",
        "    0         1         2         2         4         4   RUNNING  MISMATCH",
    ] {
        assert!(text.contains(expected), "{expected:?} is not in:\n{text}");
    }
}

#[test]
fn ranks_that_do_not_answer() {
    let ranks = vec![rank(0, 2, None)];
    let gone = vec![missing(1, SILENT), missing(2, LEFT)];
    let mut communicator = Communicator::new(1, 1, 3, ranks, gone);
    communicator.spark_ccl.fault = Some("rank 1 died".to_owned());
    communicator.ranks[0].status.async_error = 6;
    let report = report(vec![communicator]);
    assert_eq!(report.ras.timeouts_count, 1);
    let text = text(&report, true);
    for expected in [
        "Missing communicator data from 1 rank\n  Rank 1 does not answer -- managed by process 101 \
         on node host1",
        "#0-0 (0000000000000001) ERROR\n  rank 1 died",
        "  Rank 2 has left",
        "INCOMPLETE,ERROR,MISMATCH",
    ] {
        assert!(text.contains(expected), "{expected:?} is not in:\n{text}");
    }
}

#[test]
fn json_has_the_names_that_nccl_has_and_is_read_back() {
    let ranks = vec![rank(0, 2, Some((2, 0.5)))];
    let report = report(vec![Communicator::new(
        16,
        1,
        2,
        ranks,
        vec![missing(1, LEFT)],
    )]);
    let text = report.json().unwrap();
    assert_eq!(Report::parse(&text).unwrap(), report);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let communicator = &json["communicators"][0];
    assert_eq!(communicator["hash"], "0x10");
    assert_eq!(
        communicator["ranks"][0]["collective_counts"]["AllReduce"],
        2
    );
    assert_eq!(communicator["ranks"][0]["status"]["async_error"], 0);
    assert_eq!(
        communicator["missing_ranks"][0]["status"]["considered_dead"],
        false
    );
    assert_eq!(json["ras"]["timeouts_count"], 0);
    let counts = communicator["ranks"][0]["collective_counts"]
        .as_object()
        .unwrap();
    let names: Vec<_> = counts.keys().map(String::as_str).collect();
    for name in [
        "Broadcast",
        "Reduce",
        "AllGather",
        "ReduceScatter",
        "AllReduce",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
}
