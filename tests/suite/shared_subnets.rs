//! Hosts whose interfaces share a subnet: routes alone would send everything over the first one.

use std::fs::read_to_string;

use spark_ccl_testing::{Need, has};
use tempfile::TempDir;

use crate::hosts::{ip, new_host, on_host, until_usable};
use crate::processes::{Rank, assert_all_ok, assert_contains, join, place};

/// The interfaces of each host.
const INTERFACES: [&str; 2] = ["left", "right"];
/// The floats of a call.
const COUNT: u64 = 4_000_000;

/// Two ranks on hosts of their own, and their logs.
struct Hosts {
    ranks: Vec<Rank>,
    logs: TempDir,
}

/// The bytes sent and received over an interface.
type Carried = [u64; 2];

impl Hosts {
    /// `None`, loudly, if this process may not make hosts.
    fn new(env: &[(&str, &str)]) -> Option<Self> {
        if !has(Need::Namespaces) {
            return None;
        }
        let logs = tempfile::tempdir().unwrap();
        let path = logs.path().join("%p");
        let log = [
            ("SPARK_CCL_LOG", "warn"),
            ("SPARK_CCL_LOG_FILE", path.to_str().unwrap()),
        ];
        let env = [&log, env].concat();
        let ranks = vec![new_host(&env), new_host(&env)];
        Some(Self { ranks, logs })
    }

    /// Two cables join the hosts; `left` leads to the second host's interface `ends[0]`. All
    /// addresses are in one subnet.
    fn on_two_cables(env: &[(&str, &str)], ends: [usize; 2]) -> Option<Self> {
        let hosts = Self::new(env)?;
        let [first, second] = hosts.pids();
        for (own, end) in INTERFACES.iter().zip(ends) {
            let link = ["link", "add", own, "type", "veth"];
            let peer = ["peer", INTERFACES[end], "netns", &second];
            ip(&first, &[&link[..], &peer].concat());
        }
        hosts.bring_up("169.254", 16);
        Some(hosts)
    }

    /// All interfaces are on one switch, a host of its own.
    fn on_a_switch() -> Option<(Self, Rank)> {
        let hosts = Self::new(&[])?;
        let switch = new_host(&[]);
        let at = switch.pid().to_string();
        ip(&at, &["link", "add", "switch", "type", "bridge"]);
        ip(&at, &["link", "set", "switch", "up"]);
        for (host, pid) in hosts.pids().iter().enumerate() {
            for interface in INTERFACES {
                let port = format!("{interface}{host}");
                let link = ["link", "add", &port, "type", "veth"];
                let peer = ["peer", interface, "netns", pid];
                ip(&at, &[&link[..], &peer].concat());
                ip(&at, &["link", "set", &port, "master", "switch", "up"]);
            }
        }
        hosts.bring_up("192.168", 16);
        Some((hosts, switch))
    }

    fn pids(&self) -> [String; 2] {
        [0, 1].map(|rank: usize| self.ranks[rank].pid().to_string())
    }

    /// The n-th interface of host m gets the address m.n.
    fn bring_up(&self, network: &str, prefix: u8) {
        for (host, pid) in self.pids().iter().enumerate() {
            ip(pid, &["link", "set", "lo", "up"]);
            for (number, interface) in INTERFACES.iter().enumerate() {
                let address = format!("{network}.{}.{}/{prefix}", host + 1, number + 1);
                ip(pid, &["address", "add", &address, "dev", interface]);
                // Without an automatic address, which would not be usable at once.
                ip(
                    pid,
                    &["link", "set", interface, "addrgenmode", "none", "up"],
                );
            }
        }
        for pid in &self.pids() {
            for one in &INTERFACES {
                until_usable(pid, one);
            }
        }
    }

    fn set(&self, name: &str, value: u8) {
        for pid in &self.pids() {
            for interface in INTERFACES {
                let set = format!("echo {value} > /proc/sys/net/ipv4/conf/{interface}/{name}");
                on_host(pid, "sh", &["-c", &set]);
            }
        }
    }

    fn mac(&self, host: usize, interface: &str) -> String {
        let shown = ip(&self.pids()[host], &["-o", "link", "show", interface]);
        let (_, rest) = shown.split_once("link/ether ").unwrap();
        rest.split(' ').next().unwrap().to_owned()
    }

    /// From now on, packets of an interface for this address go to another interface of the other
    /// host.
    fn divert(&self, host: usize, interface: &str, address: &str, to: &str) {
        let mac = self.mac(1 - host, to);
        let words = [
            "neigh", "replace", address, "lladdr", &mac, "dev", interface,
        ];
        ip(&self.pids()[host], &words);
    }

    /// The bytes that a call moves over each interface of each host.
    fn carried(&mut self) -> [[Carried; 2]; 2] {
        join(&mut self.ranks);
        assert_all_ok(&mut self.ranks, "call barrier");
        let counted = |hosts: &Self| {
            hosts
                .pids()
                .map(|pid| INTERFACES.map(|one| count(&pid, one)))
        };
        let before = counted(self);
        assert_all_ok(&mut self.ranks, &format!("call f32 all_reduce sum {COUNT}"));
        let after = counted(self);
        [0, 1].map(|host| {
            [0, 1].map(|interface| {
                [0, 1].map(|way| after[host][interface][way] - before[host][interface][way])
            })
        })
    }

    /// The rank's warnings.
    fn warned(&self, rank: usize) -> String {
        read_to_string(self.logs.path().join(&self.pids()[rank])).unwrap_or_default()
    }
}

/// The bytes that an interface of a process's host has sent and received.
fn count(pid: &str, interface: &str) -> Carried {
    let all = read_to_string(format!("/proc/{pid}/net/dev")).unwrap();
    let line = all.lines().find_map(|line| {
        let (name, counters) = line.split_once(':')?;
        (name.trim() == interface).then_some(counters)
    });
    let counters: Vec<u64> = line
        .unwrap()
        .split_whitespace()
        .map(|one| one.parse().unwrap())
        .collect();
    // Eight counters of received data come first.
    [counters[8], counters[0]]
}

/// Checks that on each host, each interface has carried its part both ways.
#[track_caller]
fn assert_even(carried: [[Carried; 2]; 2]) {
    for host in carried {
        for way in 0..2 {
            let both = host.map(|interface| interface[way]);
            let total: u64 = both.iter().sum();
            assert!(total >= 4 * COUNT, "{carried:?}");
            assert!(both.iter().all(|one| one * 5 >= total * 2), "{carried:?}");
        }
    }
}

#[test]
fn each_cable_of_one_link_local_subnet_carries_its_part() {
    let _place = place();
    // The second time, the cables are crossed.
    for ends in [[0, 1], [1, 0]] {
        let Some(mut hosts) = Hosts::on_two_cables(&[], ends) else {
            return;
        };
        assert_even(hosts.carried());
        assert_eq!([0, 1].map(|rank| hosts.warned(rank)), ["", ""]);
        assert_all_ok(&mut hosts.ranks, "finalize");
    }
}

#[test]
fn the_only_interface_that_may_be_used_carries_all() {
    let _place = place();
    let env = [("SPARK_CCL_SOCKET_IFNAME", "right")];
    let Some(mut hosts) = Hosts::on_two_cables(&env, [0, 1]) else {
        return;
    };
    for [left, right] in hosts.carried() {
        assert!(left.iter().all(|one| *one < 100_000), "{left:?}");
        assert!(right.iter().all(|one| *one >= 4 * COUNT), "{right:?}");
    }
}

#[test]
fn twins_on_one_switch_that_answer_for_themselves_carry_a_part_each() {
    let _place = place();
    let Some((mut hosts, _switch)) = Hosts::on_a_switch() else {
        return;
    };
    hosts.set("arp_ignore", 1);
    hosts.set("arp_announce", 2);
    assert_even(hosts.carried());
    assert_eq!([0, 1].map(|rank| hosts.warned(rank)), ["", ""]);
}

/// A twin has answered for the other one, as twins do unless told not to.
#[test]
fn an_interface_for_which_its_twin_answers_is_named() {
    let _place = place();
    let Some((mut hosts, _switch)) = Hosts::on_a_switch() else {
        return;
    };
    // The second rank calls.
    for (number, interface) in INTERFACES.iter().enumerate() {
        let [own, peer] = [2, 1].map(|host| format!("192.168.{host}.{}", number + 1));
        hosts.divert(1, interface, &peer, "left");
        hosts.divert(0, "left", &own, interface);
    }
    let [first, second] = hosts.carried();
    let [_, received] = first[1];
    assert!(received < COUNT, "{first:?}");
    assert!(
        second.iter().flatten().all(|one| *one >= COUNT),
        "{second:?}"
    );
    let warned = hosts.warned(0);
    assert_contains(
        &warned,
        &["right (192.168.1.2) may carry nothing", "rank 1"],
    );
    assert_eq!(warned.matches("may carry nothing").count(), 1, "{warned}");
    assert_all_ok(&mut hosts.ranks, "finalize");
}

/// The kernel drops packets that arrive over another interface than its own route would take.
#[test]
fn where_a_bound_connection_does_not_come_up_another_one_does() {
    let _place = place();
    let Some(mut hosts) = Hosts::on_two_cables(&[], [0, 1]) else {
        return;
    };
    hosts.set("rp_filter", 1);
    hosts.carried();
    let warned = hosts.warned(1);
    let parts = [
        "right (169.254.2.2) may carry nothing",
        "169.254.2.2 -> 169.254.1.2",
    ];
    assert_contains(&warned, &parts);
    assert_all_ok(&mut hosts.ranks, "finalize");
}
