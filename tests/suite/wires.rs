//! Which of several networks joins two hosts, and which one is passed over. Hosts are namespaces,
//! as in [`hosts`](crate::hosts), with speeds as reported by their interfaces.

use std::time::Instant;

use spark_ccl_testing::{Need, has};

use crate::cables::outcome;
use crate::hosts::{bring_up, ip, on_host, plug_in, sent_bytes, started, until_usable};
use crate::processes::{
    Rank, WATCHDOG, assert_all_ok, assert_contains, join, links_of, logged, place, some_time,
};

/// A network of two hosts: the name of its interfaces, and Mbit/s.
type Network = (&'static str, u32);

const LAN: Network = ("lan", 1_000);
const RADIO: Network = ("radio", 600);
const CABLE: Network = ("cable", 200_000);
const TWIN: Network = ("twin", 200_000);

/// The ranks of two hosts joined by these networks. The addresses on the n-th are 10.77.n.1 and
/// 10.77.n.2, and link-local ones. `None`, loudly, if this process may not make hosts.
fn two_hosts(networks: &[Network], env: &[(&str, &str)]) -> Option<Vec<Rank>> {
    if !has(Need::Namespaces) {
        return None;
    }
    let ranks = vec![new_host(env), new_host(env)];
    let pids = [ranks[0].pid().to_string(), ranks[1].pid().to_string()];
    for (number, &(name, speed)) in networks.iter().enumerate() {
        plug_in(name, number, &pids);
        for pid in &pids {
            // A random address, as on most systems.
            ip(pid, &["link", "set", name, "addrgenmode", "random", "up"]);
            report_speed(pid, name, speed);
        }
    }
    for pid in &pids {
        for (name, _) in networks {
            until_usable(pid, name);
        }
    }
    Some(ranks)
}

/// A rank on a host of its own, whose kernel does not check new link-local addresses.
fn new_host(env: &[(&str, &str)]) -> Rank {
    let mut rank = started(&["unshare", "--net", "--mount"], env);
    assert_eq!(rank.ask("sleep 0"), "ok");
    let prepare = "mount -t sysfs none /sys && mount -t tmpfs none /mnt \
                   && cd /proc/sys/net/ipv6/conf/default && echo 0 > accept_dad || true";
    in_host(&rank.pid().to_string(), prepare);
    rank
}

/// Has an interface report this speed: all virtual ones report the same one.
fn report_speed(pid: &str, name: &str, speed: u32) {
    let file = format!("/mnt/{name}");
    let there = format!("$(readlink -f /sys/class/net/{name})/speed");
    in_host(
        pid,
        &format!("echo {speed} > {file} && mount --bind {file} {there}"),
    );
}

/// Runs a shell line with the host's interfaces and mounts.
fn in_host(pid: &str, line: &str) {
    let inside = ["--target", pid, "--mount", "/bin/sh", "-c", line];
    on_host(pid, "nsenter", &inside);
}

/// How many TCP connections a rank's host has begun, and how many of them failed.
fn dials(rank: &Rank) -> [u64; 2] {
    let path = format!("/proc/{}/net/snmp", rank.pid());
    let all = std::fs::read_to_string(path).unwrap();
    let mut lines = all.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let [names, values] = [lines.next().unwrap(), lines.next().unwrap()];
    ["ActiveOpens", "AttemptFails"].map(|wanted| {
        let place = names.split(' ').position(|name| name == wanted).unwrap();
        values.split(' ').nth(place).unwrap().parse().unwrap()
    })
}

/// Only necessary connections are dialled: one from each rank to the rendezvous, and one between
/// the ranks. Each interface has link-local addresses, which other interfaces do not reach.
#[test]
fn a_start_dials_no_route_that_leads_nowhere() {
    let _place = place();
    let Some(mut ranks) = two_hosts(&[LAN, RADIO, CABLE, TWIN], &[]) else {
        return;
    };
    // Gives the two hosts' addresses different orders.
    for (rank, slower) in ranks.iter().zip([CABLE, TWIN]) {
        report_speed(&rank.pid().to_string(), slower.0, slower.1 / 2);
    }
    join(&mut ranks);
    let each = [dials(&ranks[0]), dials(&ranks[1])];
    assert_eq!(each.map(|[_, failed]| failed), [0, 0]);
    assert_eq!(
        each.iter().map(|[begun, _]| begun).sum::<u64>(),
        3,
        "{each:?}"
    );
    assert_all_ok(&mut ranks, "finalize");
}

#[test]
fn the_fastest_network_carries_the_data() {
    let _place = place();
    for networks in [&[LAN, CABLE][..], &[CABLE, RADIO], &[LAN, CABLE, RADIO]] {
        for family in ["", "AF_INET"] {
            let env = [("SPARK_CCL_SOCKET_FAMILY", family)];
            let env = &env[usize::from(family.is_empty())..];
            let Some(mut ranks) = two_hosts(networks, env) else {
                return;
            };
            join(&mut ranks);
            let fastest = networks.iter().position(|one| *one == CABLE).unwrap();
            let route = format!("self; tcp 10.77.{fastest}.1 -> 10.77.{fastest}.2");
            assert_eq!(links_of(&mut ranks, 0), route);
            let count = 1_000_000;
            assert_all_ok(&mut ranks, &format!("call f32 all_reduce sum {count}"));
            for rank in &ranks {
                let sent = networks
                    .iter()
                    .map(|(name, _)| sent_bytes(rank.pid(), name));
                for (place, sent) in sent.enumerate() {
                    let is_fast = place == fastest;
                    assert_eq!(sent > count, is_fast, "{}: {sent}", networks[place].0);
                }
            }
            assert_all_ok(&mut ranks, "finalize");
        }
    }
}

/// No other network is as fast, so links have one rail.
#[test]
fn a_lan_carries_what_the_only_cable_does_not_deliver_until_that_is_back() {
    let _place = place();
    let logs = tempfile::tempdir().unwrap();
    let file = format!("{}/%p", logs.path().display());
    let env = [("SPARK_CCL_LOG", "warn"), ("SPARK_CCL_LOG_FILE", &file)];
    let Some(mut ranks) = two_hosts(&[LAN, CABLE], &env) else {
        return;
    };
    join(&mut ranks);
    assert_eq!(links_of(&mut ranks, 0), "self; tcp 10.77.1.1 -> 10.77.1.2");
    for call in [
        "rounds 20 f32 all_reduce sum 1000000",
        "rounds 20 f32 all_gather 1000000",
        "rounds 20 f32 all_to_all 1000000",
    ] {
        assert_all_ok(&mut ranks, "call barrier");
        for rank in &mut ranks {
            rank.order(call);
        }
        std::thread::sleep(some_time(0..50));
        let pid = ranks[1].pid().to_string();
        ip(&pid, &["link", "set", "cable", "down"]);
        for rank in &ranks {
            assert_eq!(outcome(rank), "ok");
        }
        let said = logged(logs.path(), &ranks, "data go over lan (10.77.0.");
        assert_contains(&said, &["nothing has come back over cable (10.77.1."]);
        ip(&pid, &["link", "set", "cable", "up"]);
        until_back_on_the_cable(&mut ranks);
    }
    assert_all_ok(&mut ranks, "finalize");
}

/// Waits for data on the cable. The kernel notices it by retransmitting, ever more rarely.
fn until_back_on_the_cable(ranks: &mut [Rank]) {
    let deadline = Instant::now() + WATCHDOG;
    loop {
        let before = sent_bytes(ranks[0].pid(), "cable");
        assert_all_ok(ranks, "call f32 all_reduce sum 1000000");
        if sent_bytes(ranks[0].pid(), "cable") > before + 1_000_000 {
            return;
        }
        assert!(Instant::now() < deadline, "the cable carries nothing");
    }
}

/// Both rails carry data; the slower networks carry none of it.
#[test]
fn two_fast_networks_carry_the_data_together() {
    let _place = place();
    let Some(mut ranks) = two_hosts(&[LAN, CABLE, RADIO, TWIN], &[]) else {
        return;
    };
    join(&mut ranks);
    let routes = "self; tcp 10.77.1.1 -> 10.77.1.2, 10.77.3.1 -> 10.77.3.2";
    assert_eq!(links_of(&mut ranks, 0), routes);
    assert_all_ok(&mut ranks, "finalize");
}

/// The interfaces are up and have addresses of one subnet, but no cable joins them.
#[test]
fn a_fast_network_that_does_not_answer_is_passed_over_and_named() {
    let _place = place();
    let logs = tempfile::tempdir().unwrap();
    let file = format!("{}/%p", logs.path().display());
    let env = [("SPARK_CCL_LOG", "warn"), ("SPARK_CCL_LOG_FILE", &file)];
    let Some(mut ranks) = two_hosts(&[LAN], &env) else {
        return;
    };
    for (rank, address) in ranks.iter().zip(["10.77.1.1/24", "10.77.1.2/24"]) {
        let pid = rank.pid().to_string();
        let (name, speed) = CABLE;
        let inside = ["type", "veth", "peer", "name", "nowhere"];
        ip(&pid, &[&["link", "add", name][..], &inside].concat());
        ip(&pid, &["address", "add", address, "dev", name]);
        bring_up(name, &pid);
        bring_up("nowhere", &pid);
        report_speed(&pid, name, speed);
        until_usable(&pid, name);
    }
    join(&mut ranks);
    assert_eq!(links_of(&mut ranks, 0), "self; tcp 10.77.0.1 -> 10.77.0.2");
    assert_all_ok(&mut ranks, "finalize");
    // Either rank may have called.
    let logs = logged(logs.path(), &ranks, "data for rank ");
    assert_contains(&logs, &[" go to 10.77.0.", " since 10.77.1."]);
}

/// The two ends of a cable may have different names.
#[test]
fn an_interface_that_only_the_other_host_has_is_named_beside_those_that_are_there() {
    if !has(Need::Namespaces) {
        return;
    }
    let _place = place();
    let named = |names| {
        let host = || new_host(&[("NCCL_SOCKET_IFNAME", names)]);
        let ranks = vec![host(), host()];
        let pids = [&ranks[0], &ranks[1]].map(|rank| rank.pid().to_string());
        plug_in("cable", 0, &pids);
        ip(&pids[1], &["link", "set", "cable", "name", "port"]);
        for (pid, end) in pids.iter().zip(["cable", "port"]) {
            bring_up(end, pid);
        }
        for (pid, end) in pids.iter().zip(["cable", "port"]) {
            until_usable(pid, end);
        }
        ranks
    };
    let mut ranks = named("cable");
    let id = ranks[0].ask("id");
    let error = ranks[1].ask(&format!("join {id} 1 2"));
    let parts = ["NCCL_SOCKET_IFNAME=cable", "port (10.77.0.2)"];
    assert_contains(&error, &parts);
    drop(ranks);
    let mut ranks = named("cable,port");
    join(&mut ranks);
    assert_eq!(links_of(&mut ranks, 0), "self; tcp 10.77.0.1 -> 10.77.0.2");
    assert_all_ok(&mut ranks, "call f32 all_reduce sum 1000");
    assert_all_ok(&mut ranks, "finalize");
}
