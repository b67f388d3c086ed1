//! Tests of the choice of rails.

use std::net::IpAddr;
use std::slice::from_ref;

use proptest::prelude::*;

use super::*;
use crate::rdma::Roce;

/// A port with RoCE v2 addresses at the indices 1, 2 and so on, such as `10.0.0.1/24`.
fn port(device: &str, pci: &str, addresses: &[&str]) -> Port {
    let gid = |(index, text): (usize, &&str)| {
        let (address, prefix) = text.split_once('/').unwrap_or((text, ""));
        let address: IpAddr = address.parse().unwrap();
        Gid {
            index: index as u8 + 1,
            address: match address {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            },
            roce: Roce::V2,
            prefix: prefix.parse().ok(),
        }
    };
    Port {
        device: device.to_owned(),
        number: 1,
        pci: (!pci.is_empty()).then(|| pci.to_owned()),
        netdev: None,
        mtu: 4096,
        speed: None,
        gids: addresses.iter().enumerate().map(gid).collect(),
    }
}

/// The four devices of a DGX Spark: two cages with two devices each. Each device has one address.
fn spark(addresses: [&str; 4]) -> Vec<Port> {
    let [a, b, c, d] = addresses;
    vec![
        port("rocep1s0f0", "0000:01:00.0", &[a]),
        port("rocep1s0f1", "0000:01:00.1", &[b]),
        port("roceP2p1s0f0", "0002:01:00.0", &[c]),
        port("roceP2p1s0f1", "0002:01:00.1", &[d]),
    ]
}

fn found(own: &[Port], peer: &[Port]) -> Vec<Candidate> {
    candidates(own, peer, true).unwrap()
}

/// The rails, as indices of ports in both lists, if exactly the pairs with true `reach` answer.
fn rails(own: &[Port], peer: &[Port], reach: impl Fn(usize, usize) -> bool) -> Vec<(usize, usize)> {
    let found = found(own, peer);
    let answered: Vec<_> = found
        .iter()
        .map(|one| reach(one.rail.own.port, one.rail.peer.port))
        .collect();
    let rails = choose(&found, &answered).unwrap();
    rails
        .iter()
        .map(|rail| (rail.own.port, rail.peer.port))
        .collect()
}

#[test]
fn each_subnet_is_a_rail() {
    let own = spark(["10.0.0.1/24", "10.0.1.1/24", "10.0.2.1/24", "10.0.3.1/24"]);
    let peer = spark(["10.0.0.2/24", "10.0.1.2/24", "10.0.2.2/24", "10.0.3.2/24"]);
    assert_eq!(rails(&own, &peer, |_, _| true).len(), 4);
    let found = found(&own, &peer);
    assert!(found.len() == 4 && found.iter().all(|one| one.certain));
    assert_eq!(
        found[0].rail.to_string(),
        "rocep1s0f0:1 (10.0.0.1/24) to rocep1s0f0:1 (10.0.0.2/24)"
    );
}

#[test]
fn in_a_ring_each_neighbour_is_at_another_cage() {
    // The first cage of each rank is cabled to the second cage of the next.
    let rank = |left: u8, right: u8| {
        spark([
            &format!("10.0.{right}.1/24"),
            &format!("10.0.{left}.2/24"),
            &format!("10.1.{right}.1/24"),
            &format!("10.1.{left}.2/24"),
        ])
    };
    let ranks = [rank(2, 0), rank(0, 1), rank(1, 2)];
    for (own, peer) in [(0, 1), (1, 2), (2, 0)] {
        let rails = rails(&ranks[own], &ranks[peer], |_, _| true);
        assert_eq!(rails, [(0, 1), (2, 3)]);
    }
}

#[test]
fn where_all_are_link_local_probes_decide_and_twins_stay_in_step() {
    let own = spark([
        "169.254.1.1/16",
        "169.254.2.1/16",
        "169.254.3.1/16",
        "169.254.4.1/16",
    ]);
    let peer = spark([
        "169.254.5.1/16",
        "169.254.6.1/16",
        "169.254.7.1/16",
        "169.254.8.1/16",
    ]);
    let found = found(&own, &peer);
    assert!(found.len() == 16 && found.iter().all(|one| !one.certain));
    // One cable, from the first cage (devices 0 and 2) to the second (1 and 3).
    let one_cable = |own: usize, peer: usize| (own % 2, peer % 2) == (0, 1);
    assert_eq!(rails(&own, &peer, one_cable), [(0, 1), (2, 3)]);
    // Cables from each cage to the peer's other cage.
    let crossed = |own: usize, peer: usize| own % 2 != peer % 2;
    assert_eq!(
        rails(&own, &peer, crossed),
        [(0, 1), (2, 3), (1, 0), (3, 2)]
    );
    // Connected by a switch.
    assert_eq!(
        rails(&own, &peer, |_, _| true),
        [(0, 0), (2, 2), (1, 1), (3, 3)]
    );
}

#[test]
fn equal_subnets_are_probed_too() {
    let own = spark(["10.0.0.1/16", "10.0.1.1/16", "10.1.0.1/16", "10.2.0.1/16"]);
    let peer = [
        port("mlx5_0", "0000:c1:00.0", &["10.0.0.9/16"]),
        port("mlx5_1", "0000:c1:00.1", &["10.1.0.9/16"]),
    ];
    let found = found(&own, &peer);
    let seen: Vec<_> = found
        .iter()
        .map(|one| (one.rail.own.port, one.rail.peer.port, one.certain))
        .collect();
    assert_eq!(seen, [(0, 0, false), (1, 0, false), (2, 1, true)]);
}

#[test]
fn the_best_address_that_both_have_decides() {
    let local = "fe80::1/64";
    let one = |addresses: &[&str]| [port("a", "", addresses)];
    let gids = |own: &[&str], peer: &[&str]| {
        let found = candidates(&one(own), &one(peer), true).ok()?;
        Some((
            found[0].rail.own.gid.index,
            found[0].rail.peer.gid.index,
            found[0].certain,
        ))
    };
    assert_eq!(
        gids(&[local, "10.0.0.1/24"], &["10.0.0.2/24", local]),
        Some((2, 1, true))
    );
    // The peer has another address of the same class in the subnet.
    assert_eq!(
        gids(&["10.0.0.1/24"], &["169.254.0.1/16", "10.0.0.2/24"]),
        Some((1, 2, true))
    );
    // A pair that IPv4 addresses rule out is not allowed by link-local ones.
    assert_eq!(gids(&[local, "10.0.0.1/24"], &[local, "10.0.1.1/24"]), None);
    // Unless both sides have IPv4 addresses, only link-local ones remain.
    assert_eq!(gids(&[local, "10.0.0.1/24"], &[local]), Some((1, 1, false)));
    assert_eq!(
        gids(&[local, "fd00::1/64"], &["fd00::2/64", local]),
        Some((2, 1, true))
    );
    // Each address must be in the other's subnet. If neither prefix is known, a probe decides.
    assert_eq!(gids(&["10.0.0.1/16"], &["10.0.1.1/24"]), None);
    assert_eq!(gids(&["10.0.0.1"], &["10.0.1.1/24"]), None);
    assert_eq!(gids(&["10.0.0.1"], &["10.0.1.1"]), Some((1, 1, false)));
}

#[test]
fn v1_is_for_ports_that_have_nothing_else() {
    let mut own = port("a", "", &["10.0.0.1/24", "10.0.0.1/24"]);
    own.gids[0].roce = Roce::V1;
    let mut peer = port("b", "", &["10.0.0.2/24"]);
    let index = |own: &Port, peer: &Port| {
        let found = candidates(from_ref(own), from_ref(peer), true).ok()?;
        Some(found[0].rail.own.gid.index)
    };
    assert_eq!(index(&own, &peer), Some(2));
    peer.gids[0].roce = Roce::V1;
    assert_eq!(index(&own, &peer), Some(1));
    own.gids.remove(0);
    assert_eq!(index(&own, &peer), None);
}

#[test]
fn no_rail_has_a_reason() {
    let own = [port("a", "", &["10.0.0.1/24"])];
    let peer = [port("b", "", &["10.0.1.1/24"])];
    let reason = |own: &[Port], peer: &[Port]| candidates(own, peer, true).unwrap_err();
    assert_eq!(reason(&[], &peer), NoRail::NoOwnPort);
    assert_eq!(reason(&own, &[]), NoRail::NoPeerPort);
    assert_eq!(
        reason(&own, &peer).to_string(),
        "no RDMA port here (a:1 (10.0.0.1/24)) has a subnet in common with one of the peer (b:1 \
         (10.0.1.1/24))"
    );
    let found = found(&own, &[port("b", "", &["10.0.0.2/24"])]);
    let error = choose(&found, &[false]).unwrap_err().to_string();
    assert!(
        error.contains("a:1 (10.0.0.1/24) to b:1 (10.0.0.2/24)"),
        "{error}"
    );
}

/// Ports on few networks, with and without the optional fields.
pub(in crate::rdma) fn any_ports() -> impl Strategy<Value = Vec<Port>> {
    let gid = (
        any::<u8>(),
        0_u8..3,
        0_u8..3,
        1_u8..4,
        any::<bool>(),
        prop::option::of(0_u8..=32),
    );
    let gid = gid.prop_map(|(index, family, network, host, v1, prefix)| {
        let text = match family {
            0 => format!("::ffff:10.0.{network}.{host}"),
            1 => format!("::ffff:169.254.{network}.{host}"),
            _ => format!("fe80::{network}:{host}"),
        };
        Gid {
            index,
            address: text.parse().unwrap(),
            roce: if v1 { Roce::V1 } else { Roce::V2 },
            prefix,
        }
    });
    let port = (
        "[ab]{1,2}",
        1_u8..3,
        prop::option::of("000[02]:01:00.[01]|virtual"),
        prop::option::of("eth[0-9]"),
        prop::option::of(1_u32..1000),
        prop::collection::vec(gid, 0..4),
    );
    let port = port.prop_map(|(device, number, pci, netdev, speed, gids)| Port {
        device,
        number,
        pci,
        netdev,
        mtu: 1024,
        speed,
        gids,
    });
    prop::collection::vec(port, 0..5)
}

fn turned(rail: &Rail) -> Rail {
    Rail {
        own: rail.peer.clone(),
        peer: rail.own.clone(),
    }
}

proptest! {
    #[test]
    fn both_ranks_find_the_same(own in any_ports(), peer in any_ports(), answers: [bool; 25]) {
        let here = candidates(&own, &peer, true);
        let there = candidates(&peer, &own, false);
        prop_assert_eq!(here.is_ok(), there.is_ok());
        let (Ok(here), Ok(there)) = (here, there) else { return Ok(()) };
        let also_there: Vec<_> = here
            .iter()
            .map(|one| Candidate { rail: turned(&one.rail), certain: one.certain })
            .collect();
        prop_assert_eq!(&also_there, &there);
        let answers = &answers[..here.len()];
        let chosen = [choose(&here, answers), choose(&there, answers)];
        prop_assert!(chosen.iter().all(|one| one.is_ok() == answers.contains(&true)));
        if let [Ok(here), Ok(there)] = chosen {
            prop_assert_eq!(here.iter().map(turned).collect::<Vec<_>>(), there);
        }
    }

    #[test]
    fn rails_share_no_port_and_leave_none_free_that_answered(
        own in any_ports(),
        peer in any_ports(),
        answers: [bool; 25],
    ) {
        let Ok(found) = candidates(&own, &peer, true) else { return Ok(()) };
        let Ok(rails) = choose(&found, &answers[..found.len()]) else { return Ok(()) };
        for end in [|rail: &Rail| rail.own.port, |rail: &Rail| rail.peer.port] {
            let mut ports: Vec<_> = rails.iter().map(end).collect();
            ports.sort_unstable();
            ports.dedup();
            prop_assert_eq!(ports.len(), rails.len());
        }
        for (one, _) in found.iter().zip(answers).filter(|(_, answered)| *answered) {
            let is_used = rails.iter().any(|rail| {
                rail.own.port == one.rail.own.port || rail.peer.port == one.rail.peer.port
            });
            prop_assert!(is_used);
        }
    }

    #[test]
    fn a_certain_candidate_is_the_only_one_of_its_ports(own in any_ports(), peer in any_ports()) {
        let Ok(found) = candidates(&own, &peer, true) else { return Ok(()) };
        for one in found.iter().filter(|one| one.certain) {
            let related = found.iter().filter(|other| {
                other.rail.own.port == one.rail.own.port || other.rail.peer.port == one.rail.peer.port
            });
            prop_assert_eq!(related.count(), 1);
            prop_assert!(!one.rail.own.gid.is_link_local());
        }
    }
}
