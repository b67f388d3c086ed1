//! Interfaces that share a subnet: on hosts whose data go over TCP, and where one has no link.

use spark_ccl_topology::{Neighbour, NeighbourState};

use super::apply::mend;
use super::*;

/// The functions of a Spark's first cage.
const TWINS: [&str; 2] = ["enp1s0f0np0", "enP2p1s0f0np0"];

/// Two hosts without RDMA. On the first, this subnet has both interfaces.
fn hosts(network: [u8; 2], prefix: u8) -> Vec<Host> {
    let mut hosts = pair();
    for (index, host) in hosts.iter_mut().enumerate() {
        host.rdma.clear();
        host.pci.clear();
        host.network.neighbours.clear();
        host.network.routes.clear();
        for (number, name) in TWINS.iter().enumerate() {
            // The second host has a subnet for each, unless there is only one for all.
            let third = if index == 0 || prefix == 16 {
                0
            } else {
                number as u8
            };
            let [a, b] = network;
            let ip = [a, b, third, 1 + 2 * number as u8 + index as u8].into();
            host.netdev_mut(name).addresses = vec![Address {
                ip,
                prefix,
                label: None,
            }];
        }
    }
    hosts
}

/// The findings about subnets.
fn said(hosts: &[Host]) -> Vec<Finding> {
    let found = wrong(hosts).into_iter();
    found.filter(|one| one.id == "net.subnets").collect()
}

#[test]
fn interfaces_of_tcp_in_one_subnet_are_told_how_to_answer() {
    let mut hosts = hosts([10, 0], 24);
    let found = said(&hosts);
    let [one] = found.as_slice() else {
        panic!("expected one finding: {found:#?}");
    };
    assert_eq!(
        (one.status, &one.hosts[..]),
        (Status::Warn, &["spark-1".to_owned()][..])
    );
    assert!(TWINS.iter().all(|name| one.seen.contains(name)), "{one}");
    let command = one.command().unwrap();
    assert!(command.contains("enP2p1s0f0np0/arp_ignore=1"), "{one}");
    assert!(!command.contains("rp_filter"), "{one}");
    mend(&mut hosts);
    assert_eq!(said(&hosts), []);
}

/// The kernel drops packets from the second interface, although each answers for itself.
#[test]
fn a_strict_filter_is_relaxed() {
    let mut hosts = hosts([10, 0], 24);
    mend(&mut hosts);
    hosts[0].netdev_mut(TWINS[0]).rp_filter = Some(1);
    let found = said(&hosts);
    let command = found[0].command().unwrap();
    assert!(
        command.ends_with(" net/ipv4/conf/enp1s0f0np0/rp_filter=2"),
        "{command}"
    );
    mend(&mut hosts);
    assert_eq!(said(&hosts), []);
}

/// NVIDIA's set-up has all interfaces in the link-local subnet.
#[test]
fn of_link_local_addresses_only_those_on_one_network_are_told() {
    let mut hosts = hosts([169, 254], 16);
    let hear = |host: &mut Host, netdev: &str, mac: &str| {
        host.network.neighbours.push(Neighbour {
            ip: "169.254.0.9".parse().unwrap(),
            netdev: netdev.to_owned(),
            mac: Some(mac.to_owned()),
            state: NeighbourState::Known,
        });
    };
    for (number, name) in TWINS.iter().enumerate() {
        hear(&mut hosts[0], name, &format!("02:00:00:00:09:0{number}"));
    }
    assert_eq!(said(&hosts), []);
    hear(&mut hosts[0], TWINS[1], "02:00:00:00:09:00");
    let found = said(&hosts);
    assert_eq!(ids(&found), [(Status::Warn, "net.subnets")], "{found:#?}");
}

const DARK: &str = "enp1s0f1np1";

/// Gives a port without a link an address, which it had before the cables had theirs.
fn given(ip: &'static str, prefix: u8) -> impl Fn(&mut Host) {
    move |host| {
        give(host, DARK, "rocep1s0f1", (ip, prefix));
        host.network.routes.rotate_right(1);
    }
}

/// The kernel sends packets for the cable to the port without one.
#[test]
fn an_unplugged_port_in_the_subnet_of_a_cable_is_named() {
    let mut hosts = pair();
    given("10.0.0.9", 24)(&mut hosts[1]);
    let found = wrong(&hosts);
    let both = [
        (Status::Fail, "net.unplugged"),
        (Status::Warn, "pair.route"),
    ];
    assert_eq!(ids(&found), both, "{found:#?}");
    let one = &found[0];
    let seen =
        "enp1s0f1np1 has no link, and 10.0.0.9/24 in the subnet of enp1s0f0np0 (10.0.0.2/24)";
    assert_eq!(one.seen, seen);
    let fix = one.to_string();
    assert!(
        fix.contains("sudo ip addr del 10.0.0.9/24 dev enp1s0f1np1 "),
        "{fix}"
    );
    // Part of the subnet, with peers or without.
    planted(
        Status::Fail,
        "net.unplugged",
        TWINS[1],
        given("10.0.1.200", 28),
    );
}

#[test]
fn an_unplugged_port_whose_route_does_not_come_first_takes_nothing() {
    #[track_caller]
    fn harmless(ip: &'static str, prefix: u8, change: fn(&mut Host)) {
        let mut hosts = pair();
        given(ip, prefix)(&mut hosts[1]);
        change(&mut hosts[1]);
        let found = wrong(&hosts);
        assert!(
            found.iter().all(|one| one.id != "net.unplugged"),
            "{found:#?}"
        );
    }
    fn without_route(host: &mut Host) {
        host.network.routes.retain(|one| one.netdev != DARK);
    }
    harmless("10.0.9.9", 24, |_| ());
    // The cable's own route is narrower.
    harmless("10.0.9.9", 16, |_| ());
    // The kernel makes no route for an address alone.
    harmless("10.0.0.9", 32, without_route);
    // Somebody has taken the route away, or has given it a larger metric.
    harmless("10.0.0.9", 24, without_route);
    harmless("10.0.0.9", 24, |host| {
        host.network.routes.sort_by_key(|one| one.netdev == DARK);
    });
    // The kernel has no routes over interfaces that are switched off.
    harmless("10.0.0.9", 24, |host| host.netdev_mut(DARK).up = false);
}

#[test]
fn an_interface_without_a_link_is_named_where_there_is_no_rdma() {
    let mut hosts = pair();
    for host in &mut hosts {
        host.rdma.clear();
    }
    let name = functions(0)[0].1.clone();
    let dark = |hosts: &[Host]| {
        let found = wrong(hosts).into_iter();
        found.filter(|one| one.id == "nic.link").collect::<Vec<_>>()
    };
    assert_eq!(dark(&hosts), []);
    hosts[1].netdev_mut(&name).running = false;
    let found = dark(&hosts);
    assert_eq!(ids(&found), [(Status::Warn, "nic.link")]);
    assert!(found[0].to_string().contains(&name), "{}", found[0]);
    assert_eq!(found[0].command(), None);
    hosts[1].netdev_mut(&name).up = false;
    let command = format!("sudo ip link set {name} up");
    assert_eq!(dark(&hosts)[0].command(), Some(&*command));
}
