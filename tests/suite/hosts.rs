//! Two hosts, as two network namespaces joined by virtual cables. The namespaces belong only to
//! their processes, so nothing is left behind whatever becomes of the test.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use spark_ccl_testing::{Need, has};

use crate::processes::{
    Rank, WATCHDOG, all, assert_all_ok, assert_contains, assert_names, in_time, join, links_of,
    lost_host, place, some_time,
};

/// Two ranks on hosts of their own, joined by one cable.
fn two_hosts() -> Option<Vec<Rank>> {
    let mut ranks = two_hosts_of(1, &["cable"])?;
    assert_eq!(links_of(&mut ranks, 0), "self; tcp 10.77.0.1 -> 10.77.0.2");
    Some(ranks)
}

/// Two hosts of `per_host` ranks each, the first host's first, joined by these cables. The hosts'
/// addresses on the n-th cable are 10.77.n.1 and 10.77.n.2. `None`, loudly, if this process may not
/// make hosts.
fn two_hosts_of(per_host: usize, cables: &[&str]) -> Option<Vec<Rank>> {
    two_hosts_with(&[], per_host, cables)
}

/// The same, with these variables.
pub(crate) fn two_hosts_with(
    env: &[(&str, &str)],
    per_host: usize,
    cables: &[&str],
) -> Option<Vec<Rank>> {
    if !has(Need::Namespaces) {
        return None;
    }
    let hosts = [new_host(env), new_host(env)];
    let pids = [hosts[0].pid().to_string(), hosts[1].pid().to_string()];
    for (number, cable) in cables.iter().enumerate() {
        lay(cable, number, &pids);
    }
    let mut ranks = Vec::new();
    for first in hosts {
        let pid = first.pid();
        ranks.push(first);
        ranks.extend((1..per_host).map(|_| beside(pid, env)));
    }
    join(&mut ranks);
    Some(ranks)
}

#[test]
fn a_rank_whose_filter_leaves_only_loopback_names_the_setting() {
    if !has(Need::Namespaces) {
        return;
    }
    let _place = place();
    let filter = [("SPARK_CCL_SOCKET_IFNAME", "=lo")];
    let mut ranks = [new_host(&[]), new_host(&filter)];
    let pids = ranks.each_ref().map(|rank| rank.pid().to_string());
    lay("cable", 0, &pids);
    let id = ranks[0].ask("id");
    for (number, rank) in ranks.iter_mut().enumerate() {
        rank.order(&format!("join {id} {number} 2"));
    }
    for rank in &ranks {
        let error = rank.hear();
        assert_contains(
            &error,
            &[
                "with SPARK_CCL_SOCKET_IFNAME==lo rank 1 (",
                "has loopback addresses only, at which rank 0 (",
                "there are also: cable (10.77.0.2)",
            ],
        );
    }
    // The id of a rank on loopback cannot be reached from elsewhere.
    let id = ranks[1].ask("id");
    let error = ranks[0].ask(&format!("join {id} 0 2"));
    let why = "it was made on another host, where SPARK_CCL_SOCKET_IFNAME leaves only loopback";
    assert_contains(&error, &[why]);
}

/// A rank on a host of its own, with these variables.
pub(crate) fn new_host(env: &[(&str, &str)]) -> Rank {
    let mut rank = started(&["unshare", "--net"], env);
    // By the time it answers, `unshare` has become the rank.
    assert_eq!(rank.ask("sleep 0"), "ok");
    rank
}

/// Another rank on the host of a process.
pub(crate) fn beside(pid: u32, env: &[(&str, &str)]) -> Rank {
    started(&["nsenter", "--target", &pid.to_string(), "--net"], env)
}

/// A rank started by this command.
pub(crate) fn started(command: &[&str], env: &[(&str, &str)]) -> Rank {
    let mut all = Command::new(command[0]);
    all.args(&command[1..]);
    all.arg(std::env::current_exe().unwrap());
    Rank::launch(all, env)
}

/// Joins the hosts of two processes by a cable.
pub(crate) fn lay(cable: &str, number: usize, pids: &[String; 2]) {
    plug_in(cable, number, pids);
    for pid in pids {
        bring_up(cable, pid);
    }
    for pid in pids {
        until_usable(pid, cable);
    }
}

pub(crate) fn plug_in(cable: &str, number: usize, pids: &[String; 2]) {
    let link = ["link", "add", cable, "type", "veth"];
    let peer = ["peer", cable, "netns", &pids[1]];
    ip(&pids[0], &[&link[..], &peer].concat());
    for (pid, host) in pids.iter().zip(1..) {
        let address = format!("10.77.{number}.{host}/24");
        ip(pid, &["link", "set", "lo", "up"]);
        ip(pid, &["address", "add", &address, "dev", cable]);
    }
}

pub(crate) fn bring_up(cable: &str, pid: &str) {
    // Without an automatic address, which would not be usable at once.
    ip(pid, &["link", "set", cable, "addrgenmode", "none", "up"]);
}

/// The kernel takes a while to see that the other end is up, too.
pub(crate) fn until_usable(pid: &str, cable: &str) {
    let deadline = Instant::now() + WATCHDOG;
    while !ip(pid, &["link", "show", cable]).contains("state UP") {
        assert!(Instant::now() < deadline, "{cable} stays down");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs `ip` on the host of a process. Returns its output.
pub(crate) fn ip(pid: &str, arguments: &[&str]) -> String {
    on_host(pid, "ip", arguments)
}

pub(crate) fn on_host(pid: &str, program: &str, arguments: &[&str]) -> String {
    // Through a shell: busybox's nsenter would take busybox's programs.
    let shell = ["/bin/sh", "-c", "exec \"$0\" \"$@\"", program];
    let mut all = vec!["--target", pid, "--net"];
    all.extend(shell);
    all.extend(arguments);
    run("nsenter", &all).unwrap()
}

/// How many packets have met the rule of a table of the rank's host that counts them.
pub(crate) fn counted(rank: &Rank, table: &str) -> u64 {
    let list = format!("list table inet {table}");
    let listed = on_host(&rank.pid().to_string(), "nft", &[&list]);
    let count = listed.split_once("counter packets ").unwrap().1;
    count.split(' ').next().unwrap().parse().unwrap()
}

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} {arguments:?}: {text}"))
}

#[test]
fn ranks_of_two_hosts_reduce_and_exchange() {
    let _place = place();
    let Some(mut ranks) = two_hosts() else { return };
    for count in [1, 1000, 1_000_000] {
        assert_all_ok(&mut ranks, &format!("call f32 all_reduce sum {count}"));
        assert_all_ok(&mut ranks, &format!("call f32 all_to_all {count}"));
    }
    // Each rank only has its own memory.
    assert_all_ok(&mut ranks, "call f32 alloc 1000");
    assert_all_ok(&mut ranks, "finalize");
}

/// A network card has no carrier in the first seconds after the cable is plugged in or the other
/// end is started.
#[test]
fn a_unique_id_that_was_made_before_the_cable_had_a_carrier_is_good() {
    let _place = place();
    if !has(Need::Namespaces) {
        return;
    }
    let mut ranks = vec![new_host(&[]), new_host(&[])];
    let pids = [ranks[0].pid().to_string(), ranks[1].pid().to_string()];
    plug_in("cable", 0, &pids);
    bring_up("cable", &pids[0]);
    let id = ranks[0].ask("id");
    bring_up("cable", &pids[1]);
    until_usable(&pids[1], "cable");
    for (number, rank) in ranks.iter_mut().enumerate() {
        rank.order(&format!("join {id} {number} 2"));
    }
    for rank in &ranks {
        assert_eq!(rank.hear(), "ok");
    }
    assert_all_ok(&mut ranks, "call f32 all_reduce sum 1000");
}

#[test]
fn hosts_of_two_ranks_reduce_by_levels() {
    let _place = place();
    let Some(mut ranks) = two_hosts_of(2, &["cable"]) else {
        return;
    };
    assert_eq!(
        links_of(&mut ranks, 0),
        "self; shm; tcp 10.77.0.1 -> 10.77.0.2; tcp 10.77.0.1 -> 10.77.0.2"
    );
    for (count, algorithm) in [
        (1, "direct"),
        (100_000, "hierarchical"),
        (1_000_001, "hierarchical"),
    ] {
        for answer in all(&mut ranks, &format!("explain ordinary {count}")) {
            assert!(answer.starts_with(algorithm), "{count}: {answer}");
        }
        assert_all_ok(&mut ranks, &format!("call f32 all_reduce sum {count}"));
        assert_all_ok(&mut ranks, &format!("call f64 all_reduce max {count}"));
    }
    // First, ranks of both hosts alternate; then each host is alone.
    split(&mut ranks, [(0, 0), (0, 2), (0, 1), (0, 3)]);
    for answer in all(&mut ranks, "explain ordinary 100000") {
        assert!(answer.starts_with("hierarchical"), "{answer}");
    }
    assert_all_ok(&mut ranks, "call f32 all_reduce sum 100000");
    split(&mut ranks, [(0, 0), (0, 0), (1, 0), (1, 0)]);
    for answer in all(&mut ranks, "explain ordinary 100000") {
        assert!(answer.starts_with("ring"), "{answer}");
    }
    assert_all_ok(&mut ranks, "call f32 all_reduce sum 100000");
    assert_all_ok(&mut ranks, "finalize");
}

/// Has each rank continue in the part of its color, at the place of its key.
fn split(ranks: &mut [Rank], parts: [(usize, usize); 4]) {
    for (rank, (color, key)) in ranks.iter_mut().zip(parts) {
        rank.order(&format!("split {color} {key}"));
    }
    for rank in ranks {
        assert_eq!(rank.hear(), "ok");
    }
}

#[test]
fn a_slow_network_is_only_slow() {
    let _place = place();
    let Some(mut ranks) = two_hosts() else { return };
    for rank in &ranks {
        let shape = ["rate", "100mbit", "burst", "64kb", "latency", "50ms"];
        let mut arguments = vec!["qdisc", "add", "dev", "cable", "root", "tbf"];
        arguments.extend(shape);
        on_host(&rank.pid().to_string(), "tc", &arguments);
    }
    for count in [1, 1000, 1_000_000] {
        assert_all_ok(&mut ranks, &format!("call f32 all_reduce sum {count}"));
        assert_all_ok(
            &mut ranks,
            &format!("call f32 all_to_all {}", count / 2 + 1),
        );
    }
    assert_all_ok(&mut ranks, "finalize");
}

/// The interface of `down` vanishes; both ranks must find out by themselves.
fn lose_host(down: usize) {
    in_time(|watch| {
        let Some(mut ranks) = two_hosts() else { return };
        for answer in all(&mut ranks, "loop ordinary 4000000") {
            assert_eq!(answer, "running");
        }
        std::thread::sleep(some_time(20..200));
        let since = Instant::now();
        ip(
            &ranks[down].pid().to_string(),
            &["link", "set", "cable", "down"],
        );
        for (number, rank) in ranks.iter().enumerate() {
            let answer = watch.hear(rank, since, lost_host());
            let peer = 1 - number;
            assert_names(&answer, peer, ranks[peer].pid());
            assert_contains(&answer, &["is lost: "]);
        }
    });
}

#[test]
fn a_host_that_vanishes_in_the_middle_is_lost() {
    let _place = place();
    lose_host(0);
    lose_host(1);
}

#[test]
fn a_host_that_vanishes_while_the_others_wait_is_lost() {
    let _place = place();
    in_time(|watch| {
        let Some(mut ranks) = two_hosts() else { return };
        assert_all_ok(&mut ranks, "call barrier");
        ranks[0].order("call barrier");
        let since = Instant::now();
        ip(
            &ranks[1].pid().to_string(),
            &["link", "set", "cable", "down"],
        );
        let answer = watch.hear(&ranks[0], since, lost_host());
        assert_names(&answer, 1, ranks[1].pid());
        assert_contains(&answer, &["is lost: "]);
    });
}

#[test]
fn two_cables_carry_the_same() {
    let _place = place();
    let cables = ["left", "right"];
    let Some(mut ranks) = two_hosts_of(1, &cables) else {
        return;
    };
    let routes = "self; tcp 10.77.0.1 -> 10.77.0.2, 10.77.1.1 -> 10.77.1.2";
    assert_eq!(links_of(&mut ranks, 0), routes);
    let sent = |rank: &Rank| cables.map(|cable| sent_bytes(rank.pid(), cable));
    let before: Vec<_> = ranks.iter().map(sent).collect();
    let count = 4_000_000;
    assert_all_ok(&mut ranks, &format!("call f32 all_reduce sum {count}"));
    for (rank, before) in ranks.iter().zip(before) {
        let after = sent(rank);
        let carried = [after[0] - before[0], after[1] - before[1]];
        let total: u64 = carried.iter().sum();
        assert!(total >= 4 * count, "{carried:?} of {count} floats");
        for carried in carried {
            assert!(carried * 5 >= total * 2, "{carried} of {total} bytes");
        }
    }
    assert_all_ok(&mut ranks, "finalize");
}

/// The bytes that an interface of a process's host has sent.
pub(crate) fn sent_bytes(pid: u32, interface: &str) -> u64 {
    let all = std::fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap();
    let line = all.lines().find_map(|line| {
        let (name, counters) = line.split_once(':')?;
        (name.trim() == interface).then_some(counters)
    });
    // Eight counters of received data come first.
    let sent = line.unwrap().split_whitespace().nth(8);
    sent.unwrap().parse().unwrap()
}

/// If set, this test program is a silent stranger. Its value: the first port to listen at.
const SILENT: &str = "SPARK_CCL_TEST_SILENT";
/// An address that both hosts have, as containers' bridges do.
const BRIDGE: &str = "10.88.0.1";
/// How many ports a host uses.
const PORTS: u16 = 20;

/// The first port that the kernel selects on a host.
fn first_port(host: u16) -> u16 {
    40_000 + 1000 * host
}

/// Listens where another test's rank might expect its peer; the kernel accepts connections.
#[test]
#[ignore = "another test here starts it as a child process, with --ignored --exact"]
fn listen_silently() {
    let Ok(first) = std::env::var(SILENT) else {
        return;
    };
    let first: u16 = first.parse().unwrap();
    let listen = |port| TcpListener::bind((BRIDGE, port)).unwrap();
    let listeners: Vec<_> = (first..first + PORTS).map(listen).collect();
    eprintln!("listening");
    std::thread::sleep(3 * WATCHDOG);
    drop(listeners);
}

/// A silent stranger. Dropping it ends it.
struct Stranger(Child);

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A stranger on the host of a process, at the ports of the other host.
fn stranger_at_ports_of(other: u16, pid: &str) -> Stranger {
    let mut child = Command::new("nsenter")
        .args(["--target", pid, "--net"])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "hosts::listen_silently",
            "--nocapture",
        ])
        .env(SILENT, first_port(other).to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let stranger = Stranger(child);
    assert!(lines.any(|line| line.unwrap() == "listening"));
    stranger
}

#[test]
fn an_address_that_both_hosts_have_is_no_way_to_the_other() {
    let _place = place();
    if !has(Need::Namespaces) {
        return;
    }
    let mut ranks = vec![new_host(&[]), new_host(&[])];
    let pids = [ranks[0].pid().to_string(), ranks[1].pid().to_string()];
    lay("cable", 0, &pids);
    let mut strangers = Vec::new();
    for (pid, host) in pids.iter().zip([0, 1]) {
        ip(
            pid,
            &[
                "link", "add", "bridge", "type", "veth", "peer", "name", "inside",
            ],
        );
        ip(
            pid,
            &["address", "add", &format!("{BRIDGE}/24"), "dev", "bridge"],
        );
        bring_up("bridge", pid);
        bring_up("inside", pid);
        until_usable(pid, "bridge");
        let (first, last) = (first_port(host), first_port(host) + PORTS - 1);
        let range = format!("echo {first} {last} > /proc/sys/net/ipv4/ip_local_port_range");
        on_host(pid, "sh", &["-c", &range]);
        strangers.push(stranger_at_ports_of(1 - host, pid));
    }
    join(&mut ranks);
    assert_eq!(links_of(&mut ranks, 0), "self; tcp 10.77.0.1 -> 10.77.0.2");
    drop(strangers);
}

/// Only the kernel of its host can tell: no other rank is there.
#[test]
fn a_rank_of_another_host_whose_child_lives_on_has_died() {
    let _place = place();
    let Some(mut ranks) = two_hosts() else { return };
    assert_eq!(ranks[1].ask("fork sleep"), "ok");
    let pid = ranks[1].pid();
    ranks[0].order("call barrier");
    ranks[1].kill();
    let answer = ranks[0].hear();
    assert_names(&answer, 1, pid);
    assert_contains(&answer, &["died"]);
}

/// A thread of the library may hold what the program has dropped, and ends with the process. Here
/// it is the progress thread, which checks ten times a second whether it must end.
#[test]
fn a_process_that_ends_right_after_its_drop_has_said_goodbye() {
    let _place = place();
    let logs = tempfile::tempdir().unwrap();
    let log = |process: &str| format!("{}/{process}", logs.path().display());
    let env = [
        ("SPARK_CCL_PROGRESS_THREAD", "1"),
        ("SPARK_CCL_LOG", "info"),
        ("SPARK_CCL_LOG_FILE", &log("%p")),
    ];
    let Some(mut ranks) = two_hosts_with(&env, 1, &["cable"]) else {
        return;
    };
    assert_all_ok(&mut ranks, "call f32 all_reduce sum 1000");
    let [first, second] = &mut ranks[..] else {
        unreachable!("there are two")
    };
    assert_eq!(first.ask("drop"), "ok");
    first.order("exit");
    assert_eq!(first.ended(), Some(0));
    // A break of the other's stream is noticed within a moment.
    assert_eq!(second.ask("sleep 300"), "ok");
    let log = std::fs::read_to_string(log(&second.pid().to_string())).unwrap();
    assert_contains(&log, &["watches ranks [0]"]);
    assert!(!log.contains("will be reopened"), "{log}");
}
