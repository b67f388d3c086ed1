//! Messages read straight out of the sender's memory, until the kernel no longer allows that.

use std::time::{Duration, Instant};

use spark_ccl_testing::{Need, has};
use tempfile::TempDir;

use crate::processes::{Rank, WATCHDOG, assert_all_ok, place, some_time, world};

/// Calls that move messages long enough to be read in place.
const CALLS: [&str; 4] = [
    "call f32 all_to_all 400000",
    "call f32 all_gather 100000",
    "call f32 broadcast 1 1000000",
    "call i32 all_reduce sum 300000",
];

/// How long to wait for an unwanted line in the log.
const A_LITTLE: Duration = Duration::from_millis(200);
/// The receiver's log line for two copies, for any reason.
const TWO_COPIES: &str = "messages take two copies";
/// The receiver's log line when a lent message may not be read. Without lent messages, where
/// everything goes through slots, it never comes.
const FROM_NOW_ON: &str = "messages take two copies from now on";

#[test]
fn a_rank_that_may_not_be_read_any_more_sends_on() {
    let _place = place();
    if !has(Need::SingleCopy) {
        return;
    }
    for _ in 0..3 {
        let (mut ranks, logs) = readers(3);
        for call in CALLS {
            assert_all_ok(&mut ranks, call);
        }
        for rank in &ranks {
            logs.assert_says(rank, TWO_COPIES, false);
        }
        let moment = some_time(0..100).as_millis();
        assert_eq!(ranks[1].ask(&format!("undumpable-after {moment}")), "ok");
        for _ in 0..10 {
            for call in CALLS {
                assert_all_ok(&mut ranks, call);
            }
        }
        assert_eq!(ranks[1].ask("undumpable"), "ok");
        for call in CALLS {
            assert_all_ok(&mut ranks, call);
        }
        ranks[1].order("call f32 send 2 1000000");
        assert_eq!(ranks[2].ask("call f32 recv 1 1000000"), "ok");
        assert_eq!(ranks[1].hear(), "ok");
        for (rank, is_refused) in ranks.iter().zip([true, false, true]) {
            logs.assert_says(rank, FROM_NOW_ON, is_refused);
        }
        assert_all_ok(&mut ranks, "finalize");
    }
}

/// A probe looks at a message without taking any of it.
#[test]
fn what_was_probed_is_read_where_it_lies() {
    let _place = place();
    if !has(Need::SingleCopy) {
        return;
    }
    let (mut ranks, logs) = readers(2);
    let [sender, receiver] = &mut ranks[..] else {
        unreachable!("two ranks");
    };
    for count in [0, 1, 3000, 300_000, 20_000, 300_000] {
        sender.order(&format!("call f64 send 1 {count}"));
        assert_eq!(receiver.ask("probe 0"), format!("F64 {count}"));
        assert_eq!(receiver.ask(&format!("call f64 recv 0 {count}")), "ok");
        assert_eq!(sender.hear(), "ok");
    }
    assert_eq!(sender.ask("undumpable"), "ok");
    sender.order("call f64 send 1 300000");
    assert_eq!(receiver.ask("probe 0"), "F64 300000");
    logs.assert_says(receiver, TWO_COPIES, false);
    assert_eq!(receiver.ask("call f64 recv 0 300000"), "ok");
    assert_eq!(sender.hear(), "ok");
    logs.assert_says(receiver, FROM_NOW_ON, true);
}

/// Ranks that read one another's memory as ordinary users do, and their logs.
fn readers(size: usize) -> (Vec<Rank>, Logs) {
    let logs = Logs(tempfile::tempdir().unwrap());
    let settings = [
        ("SPARK_CCL_SHM", "1"),
        ("SPARK_CCL_SINGLE_COPY", "1"),
        ("SPARK_CCL_LOG", "spark_ccl_transport=debug"),
        ("SPARK_CCL_LOG_FILE", &logs.path("%p")),
    ];
    let mut ranks = world(size, &settings);
    // A superuser may read anything.
    assert_all_ok(&mut ranks, "without-leave-to-trace");
    (ranks, logs)
}

struct Logs(TempDir);

impl Logs {
    fn path(&self, process: &str) -> String {
        format!("{}/{process}", self.0.path().display())
    }

    /// Checks whether the text is there: a thread of the rank writes it a little later.
    fn assert_says(&self, rank: &Rank, text: &str, wanted: bool) {
        let path = self.path(&rank.pid().to_string());
        let is_there = || std::fs::read_to_string(&path).is_ok_and(|log| log.contains(text));
        let until = Instant::now() + if wanted { WATCHDOG } else { A_LITTLE };
        while !is_there() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(is_there(), wanted, "{text} in {path}");
    }
}
