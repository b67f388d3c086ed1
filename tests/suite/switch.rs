//! Hosts joined by one switch, as network namespaces on a bridge.

use std::collections::BTreeSet;
use std::time::Instant;

use spark_ccl_testing::{Need, has};

use crate::hosts::{beside, counted, ip, new_host, on_host, until_usable};
use crate::processes::{Rank, WATCHDOG, all, assert_all_ok, assert_contains, join, place};

/// Four ranks on four hosts.
fn four_hosts(env: &[(&str, &str)]) -> Option<Vec<Rank>> {
    if !has(Need::Namespaces) {
        return None;
    }
    let mut ranks = switched_hosts(4, env);
    join(&mut ranks);
    Some(ranks)
}

/// Ranks on hosts of their own; the n-th has the address 10.77.0.(n+1).
pub(crate) fn switched_hosts(count: usize, env: &[(&str, &str)]) -> Vec<Rank> {
    let ranks: Vec<Rank> = (0..count).map(|_| new_host(env)).collect();
    let switch = ranks[0].pid().to_string();
    for (number, rank) in ranks.iter().enumerate() {
        plug(&switch, number, &rank.pid().to_string());
    }
    ranks
}

/// Joins the n-th host to the switch, which is on the first host.
fn plug(switch: &str, number: usize, pid: &str) {
    let address = format!("10.77.0.{}/24", number + 1);
    ip(pid, &["link", "set", "lo", "up"]);
    if number == 0 {
        ip(switch, &["link", "add", "switch", "type", "bridge"]);
        let up = ["link", "set", "switch", "addrgenmode", "none", "up"];
        ip(switch, &up);
        ip(switch, &["address", "add", &address, "dev", "switch"]);
        return;
    }
    let port = format!("port{number}");
    let link = ["link", "add", &port, "type", "veth"];
    let peer = ["peer", "cable", "netns", pid];
    ip(switch, &[&link[..], &peer].concat());
    ip(switch, &["link", "set", &port, "master", "switch"]);
    ip(switch, &["link", "set", &port, "addrgenmode", "none", "up"]);
    ip(pid, &["address", "add", &address, "dev", "cable"]);
    ip(pid, &["link", "set", "cable", "addrgenmode", "none", "up"]);
    until_usable(pid, "cable");
}

/// The links of all ranks take no more files than most systems allow a process.
#[test]
fn many_hosts_of_four_ranks() {
    let _place = place();
    if !has(Need::Namespaces) {
        return;
    }
    let mut ranks = Vec::new();
    for first in switched_hosts(32, &[]) {
        let pid = first.pid();
        ranks.push(first);
        ranks.extend((1..4).map(|_| beside(pid, &[])));
    }
    let files = rustix::process::Rlimit {
        current: Some(1024),
        maximum: Some(1024),
    };
    for rank in &ranks {
        let pid = rustix::process::Pid::from_raw(rank.pid() as i32);
        rustix::process::prlimit(pid, rustix::process::Resource::Nofile, files).unwrap();
    }
    join(&mut ranks);
    for call in ["barrier", "i32 all_reduce sum 1000", "f64 all_to_all 3"] {
        assert_all_ok(&mut ranks, &format!("call {call}"));
    }
    assert_all_ok(&mut ranks, "finalize");
}

/// Makes the kernel of a rank's host drop packets from these addresses, and packets to them.
pub(crate) fn cut(rank: &Rank, from: usize) -> [String; 2] {
    let address = format!("10.77.0.{}", from + 1);
    for rule in ["to", "from"] {
        let arguments = ["rule", "add", rule, &address, "priority", "1", "blackhole"];
        ip(&rank.pid().to_string(), &arguments);
    }
    [rank.pid().to_string(), address]
}

pub(crate) fn mend([pid, address]: &[String; 2]) {
    for rule in ["to", "from"] {
        ip(pid, &["rule", "del", rule, address, "priority", "1"]);
    }
}

/// Makes the kernel of a rank's host randomly lose this percentage of packets from others.
pub(crate) fn lose(rank: &Rank, percent: usize) {
    let rules = format!(
        "add table inet loss; add chain inet loss in {{ type filter hook input priority 0; }}; \
         add rule inet loss in iif != lo numgen random mod 100 < {percent} counter drop"
    );
    on_host(&rank.pid().to_string(), "nft", &[&rules]);
}

/// Ends the loss of packets. Returns how many the rank's host has lost.
pub(crate) fn stop_losing(rank: &Rank) -> u64 {
    let count = counted(rank, "loss");
    on_host(&rank.pid().to_string(), "nft", &["delete table inet loss"]);
    count
}

/// The only way between two ranks fails for longer than a switch pauses; the others hear both.
#[test]
fn a_cut_between_two_of_four_hosts_heals() {
    let _place = place();
    let Some(mut ranks) = four_hosts(&[]) else {
        return;
    };
    assert_all_ok(&mut ranks, "call f32 all_reduce sum 1000");
    let gap = cut(&ranks[2], 3);
    assert_eq!(ranks[0].ask("sleep 11000"), "ok");
    for answer in all(&mut ranks, "check") {
        assert_eq!(answer, "ok");
    }
    mend(&gap);
    // A fault passes over the new stream as over the old one.
    assert_eq!(ranks[0].ask("sleep 3000"), "ok");
    assert_all_ok(&mut ranks, "check");
    assert_eq!(ranks[3].ask("abort enough"), "ok");
    let deadline = Instant::now() + WATCHDOG;
    while ranks[2].ask("check") == "ok" {
        assert!(Instant::now() < deadline, "the abort has not arrived");
    }
}

#[test]
fn a_cut_that_does_not_heal_is_named() {
    let _place = place();
    let limit = ("SPARK_CCL_CUT_AFTER", "8");
    let Some(mut ranks) = four_hosts(&[limit]) else {
        return;
    };
    for answer in all(&mut ranks, "loop ordinary 1000") {
        assert_eq!(answer, "running");
    }
    cut(&ranks[2], 3);
    for rank in &ranks {
        let answer = rank.hear();
        assert_contains(&answer, &["is lost: ", "hears it"]);
    }
}

/// Connections that are reset, as by a firewall that forgot them, are reopened at once.
#[test]
fn streams_that_are_reset_are_made_anew() {
    let _place = place();
    let Some(mut ranks) = four_hosts(&[]) else {
        return;
    };
    let pid = ranks[1].pid().to_string();
    let control = control_streams(&pid, 3);
    assert_all_ok(&mut ranks, "call f32 all_reduce sum 1000");
    for ends in control {
        let (source, target) = ends.split_once(' ').unwrap();
        let (port, other) = (port_of(source), port_of(target));
        on_host(
            &pid,
            "ss",
            &["-K", "-t", "sport", "=", port, "and", "dport", "=", other],
        );
    }
    assert_eq!(ranks[0].ask("sleep 2000"), "ok");
    for _ in 0..3 {
        assert_all_ok(&mut ranks, "call f32 all_reduce sum 1000");
    }
    assert_all_ok(&mut ranks, "finalize");
}

/// The connections of a host that the kernel probes, each as its two ends. They are those of the
/// control plane, until a call makes a link, which is never reopened. While data await their
/// acknowledgement, the kernel shows another timer, so one look does not show all `expected`.
fn control_streams(pid: &str, expected: usize) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let deadline = Instant::now() + WATCHDOG;
    while found.len() < expected {
        assert!(Instant::now() < deadline, "{found:?} of {:?}", streams(pid));
        let probed = streams(pid)
            .into_iter()
            .filter(|(_, timer)| timer.contains("keepalive"));
        found.extend(probed.map(|(ends, _)| ends));
    }
    found
}

/// The TCP connections of a host: their ends, and the kernel's other information.
pub(crate) fn streams(pid: &str) -> Vec<(String, String)> {
    let all = on_host(pid, "ss", &["-tnoH", "state", "established"]);
    let stream = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (format!("{} {}", words[2], words[3]), words[4..].join(" "))
    };
    all.lines().map(stream).collect()
}

fn port_of(end: &str) -> &str {
    end.rsplit_once(':').unwrap().1
}
