//! MTUs, addresses, subnets.

use spark_ccl_topology::{Neighbour, NeighbourState, testing};

use super::apply::mend;
use super::*;

const NETDEV: &str = "enP2p1s0f0np0";
const DEVICE: &str = "roceP2p1s0f0";

/// The commands that are printed.
fn commands(found: &[Finding]) -> Vec<(String, String)> {
    let fixes = found.iter().filter_map(|one| one.fix.clone());
    fixes
        .filter_map(|fix| Some((fix.place?, fix.command?)))
        .collect()
}

fn is(place: &str, command: &str) -> (String, String) {
    (place.to_owned(), command.to_owned())
}

#[test]
fn mtus_of_two_ends_differ() {
    let mut hosts = pair();
    hosts[1].netdev_mut(NETDEV).mtu = 1500;
    let found = wrong(&hosts);
    assert_eq!(
        ids(&found),
        [(Status::Warn, "net.mtu"), (Status::Fail, "pair.mtu")]
    );
    let fix = is("spark-2", "sudo ip link set enP2p1s0f0np0 mtu 9000");
    assert_eq!(commands(&found), [fix.clone(), fix]);
    assert_eq!(mend(&mut hosts), []);
    // With short packets nothing is known of the bandwidth.
    hosts[1].netdev_mut(NETDEV).mtu = 1500;
    let all = findings(&hosts, &[None, None]);
    let rails = all.iter().find(|one| one.id == "pair.rails").unwrap();
    assert!(!rails.seen.contains("expect"), "{rails}");
}

#[test]
fn all_mtus_are_low() {
    let mut hosts = pair();
    for (host, mtu) in [(0, 1500), (1, 2000)] {
        for (_, netdev) in functions(0) {
            hosts[host].netdev_mut(&netdev).mtu = mtu;
        }
    }
    // Neither end is given more than the other one has.
    let found = wrong(&hosts);
    let mut pairs = found.iter().filter(|one| one.id == "pair.mtu");
    assert_eq!(pairs.clone().count(), 2, "{found:#?}");
    assert!(pairs.all(|one| one.command().is_none()), "{found:#?}");
    assert_eq!(mend(&mut hosts), []);
    // What is at the other end is not known: nothing is to be run.
    let mut alone = testing::spark("spark-1", 1).host();
    alone.netdev_mut(NETDEV).mtu = 1500;
    let found = wrong(&[alone]);
    assert_eq!(ids(&found), [(Status::Warn, "net.mtu")]);
    assert_eq!(commands(&found), []);
    // Nor what a switch takes.
    let mut hosts = testing::hosts(&testing::switch());
    hosts[1].netdev_mut(NETDEV).mtu = 1500;
    assert_eq!(commands(&wrong(&hosts)), []);
}

#[test]
fn a_network_without_proof_of_a_cable_keeps_its_mtus() {
    let mut hosts = pair();
    for host in &mut hosts {
        host.rdma.clear();
        host.pci.clear();
    }
    hosts[1].netdev_mut(NETDEV).mtu = 1500;
    let found = wrong(&hosts);
    assert_eq!(ids(&found), [(Status::Fail, "pair.mtu")]);
    assert_eq!(commands(&found), []);
    assert!(found[0].to_string().contains("which MTU"), "{}", found[0]);
}

#[test]
fn mtus_of_ends_that_nobody_has_heard_are_not_compared() {
    let mut hosts = pair();
    for host in &mut hosts {
        host.network.neighbours.clear();
    }
    hosts[1].netdev_mut(NETDEV).mtu = 4200;
    assert_eq!(wrong(&hosts), []);
}

#[test]
fn an_address_is_missing() {
    let mut hosts = pair();
    clear_addresses(&mut hosts[1], NETDEV, DEVICE);
    let found = wrong(&hosts);
    assert_eq!(ids(&found), [(Status::Fail, "net.address")]);
    let fix = is("spark-2", "sudo ip addr add 10.0.1.2/24 dev enP2p1s0f0np0");
    assert_eq!(commands(&found), [fix]);
    assert_eq!(mend(&mut hosts), []);
}

#[test]
fn both_addresses_are_missing_and_each_gets_its_own() {
    let mut hosts = pair();
    for (device, netdev) in functions(0) {
        clear_addresses(&mut hosts[1], &netdev, &device);
    }
    let fixes = [
        is("spark-2", "sudo ip addr add 10.0.0.2/24 dev enp1s0f0np0"),
        is("spark-2", "sudo ip addr add 10.0.1.2/24 dev enP2p1s0f0np0"),
    ];
    assert_eq!(commands(&wrong(&hosts)), fixes);
    assert_eq!(mend(&mut hosts), []);
}

#[test]
fn no_address_is_made_up() {
    // Nobody has an address.
    let mut hosts = pair();
    for host in &mut hosts {
        for (device, netdev) in functions(0) {
            clear_addresses(host, &netdev, &device);
        }
    }
    let found = wrong(&hosts);
    assert_eq!(commands(&found), []);
    let missing = found.iter().filter(|one| one.id == "net.address");
    assert_eq!(missing.clone().count(), 4);
    assert!(
        missing
            .clone()
            .all(|one| one.to_string().contains("netplan"))
    );
    // A host alone.
    let found = wrong(&hosts[..1]);
    assert_eq!(ids(&found), [(Status::Warn, "net.address"); 2]);
    assert_eq!(commands(&found), []);
    // A host that is not named is in the same network: it may have any address.
    let mut hosts = pair();
    hosts[0].network.neighbours.push(Neighbour {
        ip: "10.0.1.77".parse().unwrap(),
        netdev: "enP2p1s0f0np0".to_owned(),
        mac: Some("02:00:00:00:00:77".to_owned()),
        state: NeighbourState::Known,
    });
    clear_addresses(&mut hosts[1], NETDEV, DEVICE);
    assert_eq!(commands(&wrong(&hosts)), []);
    // Nothing proves where the cable leads.
    let mut hosts = pair();
    for host in &mut hosts {
        host.network.neighbours.clear();
    }
    clear_addresses(&mut hosts[1], NETDEV, DEVICE);
    assert_eq!(commands(&wrong(&hosts)), []);
}

#[test]
fn a_ring_without_the_addresses_of_a_host() {
    let mut hosts = ring();
    for (device, netdev) in [0, 1].into_iter().flat_map(functions) {
        clear_addresses(&mut hosts[1], &netdev, &device);
    }
    let fixes = commands(&wrong(&hosts));
    assert_eq!(fixes.len(), 4, "{fixes:?}");
    assert_eq!(mend(&mut hosts), []);
    assert_eq!(Cluster::of(&hosts).rails.len(), 6);
}

#[test]
fn small_subnets_have_few_addresses() {
    for (prefix, own, other) in [
        (31, "10.9.0.6", "10.9.0.7/31"),
        (30, "10.9.0.6", "10.9.0.5/30"),
    ] {
        let mut hosts = pair();
        for host in &mut hosts {
            clear_addresses(host, NETDEV, DEVICE);
        }
        give(&mut hosts[0], NETDEV, DEVICE, (own, prefix));
        let fix = format!("sudo ip addr add {other} dev {NETDEV}");
        assert_eq!(commands(&wrong(&hosts)), [is("spark-2", &fix)]);
        assert_eq!(mend(&mut hosts), []);
    }
    // There is no other address.
    let mut hosts = pair();
    for host in &mut hosts {
        clear_addresses(host, NETDEV, DEVICE);
    }
    give(&mut hosts[0], NETDEV, DEVICE, ("10.9.0.6", 32));
    assert_eq!(commands(&wrong(&hosts)), []);
}

#[test]
fn a_subnet_is_wrong_and_the_first_host_keeps_its_own() {
    let mut hosts = pair();
    clear_addresses(&mut hosts[1], NETDEV, DEVICE);
    give(&mut hosts[1], NETDEV, DEVICE, ("10.0.9.2", 24));
    let found = wrong(&hosts);
    assert_eq!(ids(&found), [(Status::Fail, "net.subnet")]);
    assert_eq!(found[0].hosts, ["spark-1", "spark-2"]);
    let fix = is("spark-2", "sudo ip addr add 10.0.1.2/24 dev enP2p1s0f0np0");
    assert_eq!(commands(&found), [fix]);
    assert_eq!(mend(&mut hosts), []);
}

#[test]
fn an_unknown_cable_changes_nothing() {
    // Two hosts of a ring: each has a cable to the third one, which is not named.
    let hosts = ring();
    let found = wrong(&hosts[..2]);
    assert_eq!(ids(&found), [(Status::Unknown, "net.subnet"); 4]);
    assert_eq!(commands(&found), []);
}

#[test]
fn a_router_reaches_the_other_host() {
    let mut hosts = pair();
    for (index, host) in hosts.iter_mut().enumerate() {
        for (twin, (device, netdev)) in functions(0).into_iter().enumerate() {
            clear_addresses(host, &netdev, &device);
            let own = format!("10.{}.{}.2", index + 1, twin + 1);
            give(host, &netdev, &device, (&own, 24));
            let other = format!("10.{}.{}.0", 2 - index, twin + 1);
            host.network.routes.push(Route {
                destination: Some(network(other.parse().unwrap(), 24)),
                prefix: 24,
                gateway: Some(format!("10.{}.{}.1", index + 1, twin + 1).parse().unwrap()),
                netdev,
            });
        }
        host.network.neighbours.clear();
    }
    let found = wrong(&hosts);
    assert!(found.iter().all(|one| one.id != "net.subnet"), "{found:#?}");
    assert_eq!(commands(&found), []);
}

#[test]
fn an_interface_with_the_way_out_is_left_alone() {
    let mut hosts = pair();
    for host in &mut hosts {
        host.rdma.clear();
        host.pci.clear();
        host.network
            .netdevs
            .retain(|one| one.loopback || one.name == "enP7s7");
        host.network.routes.push(Route {
            destination: None,
            prefix: 0,
            gateway: Some("192.168.1.1".parse().unwrap()),
            netdev: "enP7s7".to_owned(),
        });
        host.network.neighbours.clear();
    }
    // Each host is in a network of its own, and a router joins them.
    hosts[1]
        .network
        .routes
        .retain(|route| route.gateway.is_some());
    hosts[1].netdev_mut("enP7s7").addresses[0].ip = "192.168.7.102".parse().unwrap();
    let found = wrong(&hosts);
    assert_eq!(commands(&found), []);
    assert!(
        found.iter().all(|one| one.status < Status::Fail),
        "{found:#?}"
    );
    assert!(found.iter().all(|one| one.id != "net.subnet"), "{found:#?}");
}

#[test]
fn a_twin_is_down() {
    let mut hosts = pair();
    hosts[1].port_mut(DEVICE).state = PortState::Down;
    let netdev = hosts[1].netdev_mut(NETDEV);
    (netdev.up, netdev.running) = (false, false);
    let found = wrong(&hosts);
    // The other end's address is as it should be.
    assert_eq!(ids(&found), [(Status::Fail, "nic.link")]);
    let fix = is("spark-2", "sudo ip link set enP2p1s0f0np0 up");
    assert_eq!(commands(&found), [fix]);
    assert_eq!(mend(&mut hosts), []);
    // One that was switched on has another reason.
    hosts[1].port_mut(DEVICE).state = PortState::Down;
    let found = wrong(&hosts);
    assert_eq!(
        (ids(&found), commands(&found)),
        (vec![(Status::Fail, "nic.link")], Vec::new())
    );
}

#[test]
fn the_lan_is_in_a_cables_subnet() {
    let mut hosts = ring();
    let lan = |host: &mut Host, ip: &str| {
        host.netdev_mut("enP7s7").addresses[0].ip = ip.parse().unwrap();
    };
    let cable = ipv4_of(&hosts[0], "enp1s0f0np0");
    let shared = cable.rsplit_once('.').unwrap().0.to_owned();
    for (index, host) in hosts.iter_mut().enumerate() {
        lan(host, &format!("{shared}.{}", 200 + index));
    }
    let found = wrong(&hosts);
    let found: Vec<_> = found.iter().filter(|one| one.id == "net.overlap").collect();
    // The third host has no cable in that subnet.
    assert_eq!(found.len(), 2, "{found:#?}");
    for one in found {
        let text = one.to_string();
        assert!(
            one.status == Status::Fail && text.contains("enP7s7"),
            "{text}"
        );
        assert!(
            text.contains("enp1s0f0np0") || text.contains("enp1s0f1np1"),
            "{text}"
        );
    }
}

fn ipv4_of(host: &Host, netdev: &str) -> String {
    let netdevs = host.network.netdevs.iter();
    let found = netdevs.clone().find(|one| one.name == netdev).unwrap();
    let mut addresses = found.addresses.iter();
    addresses
        .find(|one| one.ip.is_ipv4())
        .unwrap()
        .ip
        .to_string()
}

#[test]
fn an_address_is_given_twice() {
    let mut hosts = pair();
    clear_addresses(&mut hosts[1], NETDEV, DEVICE);
    give(&mut hosts[1], NETDEV, DEVICE, ("10.0.1.1", 24));
    let found = wrong(&hosts);
    let one = found.iter().find(|one| one.id == "net.duplicate").unwrap();
    assert_eq!(one.hosts, ["spark-1", "spark-2"]);
    assert_eq!(
        one.seen,
        "enP2p1s0f0np0 of spark-1 and enP2p1s0f0np0 of spark-2 have the address 10.0.1.1"
    );
    assert_eq!(commands(&found), []);
}

#[test]
fn twins_share_a_subnet() {
    let mut host = testing::spark("spark-1", 1).host();
    clear_addresses(&mut host, NETDEV, DEVICE);
    give(&mut host, NETDEV, DEVICE, ("10.0.0.101", 24));
    let mut hosts = [host];
    let found = wrong(&hosts);
    assert_eq!(ids(&found), [(Status::Warn, "net.subnets")]);
    assert!(
        found[0].command().unwrap().contains("/arp_ignore=1"),
        "{}",
        found[0]
    );
    assert_eq!(mend(&mut hosts), []);
}

#[test]
fn addresses_that_are_no_good_are_told_apart() {
    let said = |change: &dyn Fn(&mut Host)| {
        let mut host = testing::spark("spark-1", 1).host();
        change(&mut host);
        let found = wrong(&[host]);
        assert_eq!(ids(&found), [(Status::Warn, "net.address")], "{found:#?}");
        found[0].seen.clone()
    };
    let text = said(&|host| clear_addresses(host, NETDEV, DEVICE));
    assert!(text.contains("no address but a link-local one"), "{text}");
    let text = said(&|host| host.port_mut(DEVICE).gids.clear());
    assert!(text.contains("its GID table is empty"), "{text}");
    let text = said(&|host| {
        host.port_mut(DEVICE).netdev = None;
        host.port_mut(DEVICE).gids.clear();
    });
    assert!(text.contains("has no network interface here"), "{text}");
}

#[test]
fn ports_of_other_networks_are_not_judged() {
    let mut hosts = pair();
    for host in &mut hosts {
        for port in host.rdma.iter_mut().flat_map(|device| &mut device.ports) {
            port.ethernet = false;
            port.netdev = None;
            port.gids.clear();
        }
    }
    let found = wrong(&hosts);
    assert_eq!(
        ids(&found),
        [(Status::Unknown, "cluster.shape")],
        "{found:#?}"
    );
}

#[test]
fn a_device_of_software_has_no_cable() {
    let mut host = testing::spark("spark-1", 1).host();
    host.rdma.truncate(1);
    let device = &mut host.rdma[0];
    "rxe0".clone_into(&mut device.name);
    (device.pci, device.card) = (None, None);
    device.ports[0].state = PortState::Active;
    device.ports[0].netdev = Some("enP7s7".to_owned());
    assert_eq!(wrong(&[host]), []);
}

#[test]
fn a_neighbour_does_not_answer() {
    let mut hosts = pair();
    for host in &mut hosts {
        for neighbour in &mut host.network.neighbours {
            neighbour.mac = None;
            neighbour.state = NeighbourState::Failed;
        }
    }
    let found = wrong(&hosts);
    assert_eq!(ids(&found), [(Status::Fail, "pair.reach"); 2]);
    let text = found[0].to_string();
    assert!(
        text.contains("look: on spark-1: ping -c 3 -I enp1s0f0np0 10.0.0.2"),
        "{text}"
    );
}

#[test]
fn a_route_leads_past_the_cable() {
    let detour = |destination: &str, prefix: u8, netdev: &str| {
        let route = Route {
            destination: Some(destination.parse().unwrap()),
            prefix,
            gateway: None,
            netdev: netdev.to_owned(),
        };
        move |host: &mut Host| host.network.routes.push(route)
    };
    let one = planted(
        Status::Warn,
        "pair.route",
        "ip route get 10.0.1.1",
        detour("10.0.1.0", 25, "enP7s7"),
    );
    assert_eq!(
        one.seen,
        "10.0.1.1 is reached over enP7s7, by the route to 10.0.1.0/25"
    );
    assert_eq!(one.hosts, ["spark-2"]);
    // Of routes as wide, the kernel takes the first that it lists.
    let mut hosts = pair();
    detour("10.0.1.0", 24, "enP7s7")(&mut hosts[1]);
    let last = hosts[1].network.routes.pop().unwrap();
    hosts[1].network.routes.insert(0, last);
    let found = wrong(&hosts);
    assert_eq!(ids(&found), [(Status::Warn, "pair.route")]);
    // A wider route, one as wide that comes later, and one that leads over the cable.
    let mut hosts = pair();
    detour("10.0.0.0", 16, "enP7s7")(&mut hosts[1]);
    detour("10.0.1.0", 24, "enP7s7")(&mut hosts[1]);
    detour("10.0.1.1", 32, NETDEV)(&mut hosts[1]);
    assert_eq!(wrong(&hosts), []);
}

#[test]
fn a_route_is_gone() {
    let gone = |host: &mut Host| host.network.routes.retain(|route| route.netdev != NETDEV);
    let fix = "sudo ip route add 10.0.1.0/24 dev enP2p1s0f0np0 src 10.0.1.2";
    let one = planted(Status::Fail, "pair.route", fix, gone);
    let seen = "enP2p1s0f0np0 has 10.0.1.2/24, and no route to that subnet; 10.0.1.1 is ";
    assert_eq!(one.seen, format!("{seen}not reached"));
    // The way out of the network leads there, too, as it does everywhere.
    let one = planted(Status::Warn, "pair.route", fix, |host| {
        gone(host);
        host.network.routes.push(Route {
            destination: None,
            prefix: 0,
            gateway: Some("192.168.1.1".parse().unwrap()),
            netdev: "enP7s7".to_owned(),
        });
    });
    assert_eq!(one.seen, format!("{seen}reached by way of 192.168.1.1"));
}
