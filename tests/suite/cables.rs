//! Two hosts joined by two cables, one of which fails while data are on their way.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use spark_ccl_testing::{Need, has};

use crate::hosts::{ip, on_host, two_hosts_with, until_usable};
use crate::processes::{
    Rank, WATCHDOG, assert_all_ok, assert_contains, links_of, logged, place, some_time,
};
use crate::switch::streams;

const CABLES: [&str; 2] = ["left", "right"];

/// Unplugs a cable in the middle of a call. Its other end keeps its address, but carries nothing
/// either.
fn unplug(ranks: &mut [Rank], cable: &str, call: &str) {
    assert_all_ok(ranks, "call barrier");
    for rank in ranks.iter_mut() {
        rank.order(call);
    }
    std::thread::sleep(some_time(0..100));
    ip(&ranks[1].pid().to_string(), &["link", "set", cable, "down"]);
}

fn plug_in(ranks: &[Rank], cable: &str) {
    let pids = [ranks[0].pid().to_string(), ranks[1].pid().to_string()];
    ip(&pids[1], &["link", "set", cable, "up"]);
    for pid in pids {
        until_usable(&pid, cable);
    }
}

/// The outcome of the calls that a rank repeats.
pub(crate) fn outcome(rank: &Rank) -> String {
    std::iter::repeat_with(|| rank.hear())
        .find(|answer| answer != "running")
        .unwrap()
}

/// Two hosts whose links have one rail, over `left`. The other cable loses all packets but short
/// ones, for instance the control plane's.
fn on_one_cable(env: &[(&str, &str)]) -> Option<Vec<Rank>> {
    let env = [&[("SPARK_CCL_SOCKETS", "1")], env].concat();
    let mut ranks = two_hosts_with(&env, 1, &CABLES)?;
    let links = links_of(&mut ranks, 0);
    assert_eq!(links, "self; tcp 10.77.0.1 -> 10.77.0.2");
    for rank in &ranks {
        let pid = rank.pid().to_string();
        ip(&pid, &["link", "set", "right", "mtu", "9000"]);
        let short = ["rate", "1gbit", "burst", "2kb", "latency", "50ms"];
        let shape = ["qdisc", "add", "dev", "right", "root", "tbf"];
        on_host(&pid, "tc", &[&shape[..], &short].concat());
    }
    Some(ranks)
}

#[test]
fn a_cable_that_goes_for_good_is_named() {
    let _place = place();
    let Some(mut ranks) = on_one_cable(&[("SPARK_CCL_TIMEOUT", "15")]) else {
        return;
    };
    unplug(&mut ranks, "left", "loop ordinary 4000000");
    for rank in &ranks {
        assert_contains(&outcome(rank), &["nothing comes back over left (10.77.0."]);
    }
}

#[test]
fn the_other_cable_carries_what_one_has_not_delivered() {
    let _place = place();
    let Some(mut ranks) = two_hosts_with(&[], 1, &CABLES) else {
        return;
    };
    for cable in CABLES {
        unplug(&mut ranks, cable, "rounds 20 f32 all_reduce sum 1000000");
        for rank in &ranks {
            assert_eq!(outcome(rank), "ok");
        }
        assert_all_ok(&mut ranks, "call f32 all_to_all 1000000");
        assert_all_ok(&mut ranks, "call f32 all_reduce sum 1");
        plug_in(&ranks, cable);
        assert_all_ok(&mut ranks, "call f32 all_reduce sum 1000000");
    }
    assert_all_ok(&mut ranks, "finalize");
}

/// Has a rank's host reset each connection over an interface once something comes by it, as a
/// firewall does that has forgotten them, until one is lost.
fn forget(rank: &Rank, interface: &str, is_lost: impl Fn() -> bool) {
    let rules = format!(
        "add table inet forgets; \
         add chain inet forgets in {{ type filter hook input priority 0; }}; \
         add rule inet forgets in iif {interface} meta l4proto tcp reject with tcp reset"
    );
    let pid = rank.pid().to_string();
    on_host(&pid, "nft", &[&rules]);
    let deadline = Instant::now() + WATCHDOG;
    while !is_lost() {
        assert!(
            Instant::now() < deadline,
            "nothing is lost over {interface}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    on_host(&pid, "nft", &["delete table inet forgets"]);
}

/// Starts calls that last longer than that. What is on its way lies in the callers' memory: steps
/// of 4 MB are lent.
fn keep_calling(ranks: &mut [Rank]) {
    assert_all_ok(ranks, "call barrier");
    for rank in ranks.iter_mut() {
        rank.order("rounds 60 f32 all_to_all 1000000");
    }
    for rank in ranks {
        assert_eq!(rank.hear(), "running");
    }
}

/// The peer is still there, also when the cable of the other connection goes later: then a new one
/// over the first cable carries.
#[test]
fn the_other_cable_carries_what_is_lent_when_a_connection_is_reset() {
    let _place = place();
    if !has(Need::Nft) {
        return;
    }
    let logs = tempfile::tempdir().unwrap();
    let file = format!("{}/%p", logs.path().display());
    let Some(mut ranks) = two_hosts_with(&logging_to(&file), 1, &CABLES) else {
        return;
    };
    keep_calling(&mut ranks);
    let log = logs.path().join(ranks[0].pid().to_string());
    forget(&ranks[1], "right", || {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        log.contains("a connection over right (10.77.1.1 -> 10.77.1.2) is lost")
    });
    for rank in &ranks {
        assert_eq!(outcome(rank), "ok");
    }
    assert_all_ok(&mut ranks, "call f32 all_reduce sum 1000000");
    unplug(&mut ranks, "left", "rounds 20 f32 all_reduce sum 1000000");
    for rank in &ranks {
        assert_eq!(outcome(rank), "ok");
    }
    assert_all_ok(&mut ranks, "call f32 all_reduce sum 1000000");
    plug_in(&ranks, "left");
    assert_all_ok(&mut ranks, "call f32 all_reduce sum 1000000");
    assert_all_ok(&mut ranks, "finalize");
}

/// Variables for links of two connections whose rails the log in this file tells of.
fn logging_to(file: &str) -> [(&str, &str); 4] {
    [
        ("SPARK_CCL_SOCKETS", "2"),
        ("SPARK_CCL_TIMEOUT", "60"),
        ("SPARK_CCL_LOG", "warn"),
        ("SPARK_CCL_LOG_FILE", file),
    ]
}

/// The link does not use the third network. A connection over it is replaced when it is reset.
#[test]
fn another_network_carries_what_no_cable_delivers() {
    let _place = place();
    if !has(Need::Nft) {
        return;
    }
    let logs = tempfile::tempdir().unwrap();
    let file = format!("{}/%p", logs.path().display());
    let Some(mut ranks) = two_hosts_with(&logging_to(&file), 1, &["left", "right", "lan"]) else {
        return;
    };
    let links = links_of(&mut ranks, 0);
    assert_eq!(
        links,
        "self; tcp 10.77.0.1 -> 10.77.0.2, 10.77.1.1 -> 10.77.1.2"
    );
    assert_all_ok(&mut ranks, "call f32 all_reduce sum 1000000");
    ip(
        &ranks[1].pid().to_string(),
        &["link", "set", "left", "down"],
    );
    unplug(&mut ranks, "right", "rounds 20 f32 all_reduce sum 1000000");
    for rank in &ranks {
        assert_eq!(outcome(rank), "ok");
    }
    let logs = logged(logs.path(), &ranks, "data go over lan (10.77.2.");
    assert_contains(
        &logs,
        &["from now on, since nothing comes back over left (10.77.0."],
    );
    // That connection is lost, and the next one comes by the same network: there is no other.
    let over_lan = |rank: &Rank| -> BTreeSet<String> {
        let streams = streams(&rank.pid().to_string()).into_iter();
        let streams = streams.filter(|(ends, _)| ends.starts_with("10.77.2.1:"));
        streams.map(|(ends, _)| ends).collect()
    };
    keep_calling(&mut ranks);
    let before = over_lan(&ranks[0]);
    assert!(!before.is_empty());
    forget(&ranks[1], "lan", || !before.is_subset(&over_lan(&ranks[0])));
    for rank in &ranks {
        assert_eq!(outcome(rank), "ok");
    }
    assert_all_ok(&mut ranks, "call f32 all_reduce sum 1000000");
    assert!(!over_lan(&ranks[0]).is_subset(&before), "another carries");
    for cable in CABLES {
        plug_in(&ranks, cable);
    }
    assert_all_ok(&mut ranks, "call f32 all_reduce sum 1000000");
    assert_all_ok(&mut ranks, "finalize");
}

#[test]
fn a_call_goes_on_when_the_cable_is_back() {
    let _place = place();
    let Some(mut ranks) = on_one_cable(&[]) else {
        return;
    };
    unplug(&mut ranks, "left", "rounds 20 f32 all_reduce sum 1000000");
    std::thread::sleep(Duration::from_secs(4));
    plug_in(&ranks, "left");
    for rank in &ranks {
        assert_eq!(outcome(rank), "ok");
    }
    assert_all_ok(&mut ranks, "finalize");
}

/// Its host's kernel still answers.
#[test]
fn the_cable_to_a_stopped_process_is_not_silent() {
    let _place = place();
    let Some(mut ranks) = two_hosts_with(&[("SPARK_CCL_TIMEOUT", "8")], 1, &CABLES) else {
        return;
    };
    assert_all_ok(&mut ranks, "call f32 all_reduce sum 1000000");
    ranks[1].stop();
    ranks[0].order("call f32 all_reduce sum 4000000");
    let answer = ranks[0].hear();
    assert_contains(&answer, &["gave up after"]);
    assert!(!answer.contains("nothing comes back"), "{answer}");
}
