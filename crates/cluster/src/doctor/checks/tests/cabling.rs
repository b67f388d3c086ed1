//! Cables: missing, crossed, in a ring; what they carry.

use super::*;

#[test]
fn a_cable_is_missing() {
    let mut hosts = ring();
    cut(&mut hosts[0], 0);
    cut(&mut hosts[1], 1);
    assert_eq!(ids(&wrong(&hosts)), [(Status::Warn, "cluster.shape")]);
    let mut hosts = pair();
    for host in &mut hosts {
        cut(host, 0);
    }
    // TCP goes on over the local network: nothing fails.
    let found = wrong(&hosts);
    let expected = ["nic.link", "nic.link", "cluster.shape"].map(|id| (Status::Warn, id));
    assert_eq!(ids(&found), expected);
    assert!(found.iter().all(|one| one.command().is_none()));
    // A host alone needs no cable.
    assert_eq!(wrong(&hosts[..1]), []);
}

/// Lets the first host of a pair hear one interface of the second one in place of another.
fn hear(hosts: &mut [Host], exchanged: &[(&str, &str)]) {
    let macs: Vec<_> = exchanged
        .iter()
        .map(|(own, other)| (*own, hosts[1].netdev(other).unwrap().mac.clone()))
        .collect();
    for neighbour in &mut hosts[0].network.neighbours {
        let mac = macs.iter().find(|(own, _)| *own == neighbour.netdev);
        if let Some((_, mac)) = mac {
            neighbour.mac.clone_from(mac);
        }
    }
    hosts[1].network.neighbours.clear();
}

#[test]
fn twins_that_answer_for_each_other_are_not_crossed() {
    let mut hosts = pair();
    let twins = [
        ("enp1s0f0np0", "enP2p1s0f0np0"),
        ("enP2p1s0f0np0", "enp1s0f0np0"),
    ];
    hear(&mut hosts, &twins);
    let found = wrong(&hosts);
    assert!(
        found.iter().all(|one| one.id != "cable.crossed"),
        "{found:#?}"
    );
    let mut hosts = pair();
    hear(&mut hosts, &twins[..1]);
    let found = wrong(&hosts);
    assert!(
        found.iter().all(|one| one.id != "cable.crossed"),
        "{found:#?}"
    );
}

#[test]
fn a_cable_is_in_the_wrong_cage() {
    // The addresses are those of the second host's p0, but its cable is in p1: that cage has a
    // link, and p0 has none.
    let mut hosts = pair();
    hear(
        &mut hosts,
        &[
            ("enp1s0f0np0", "enp1s0f1np1"),
            ("enP2p1s0f0np0", "enP2p1s0f1np1"),
        ],
    );
    cut(&mut hosts[1], 0);
    for (device, netdev) in functions(1) {
        let port = hosts[1].port_mut(&device);
        (port.state, port.rate) = (PortState::Active, Some(200_000));
        let netdev = hosts[1].netdev_mut(&netdev);
        (netdev.running, netdev.mtu) = (true, 9000);
    }
    let found = wrong(&hosts);
    let crossed: Vec<_> = found
        .iter()
        .filter(|one| one.id == "cable.crossed")
        .collect();
    assert_eq!(crossed.len(), 1, "{found:#?}");
    let seen = "the cable of p0 leads to p1 of spark-2, and its addresses are those of p0";
    assert_eq!(crossed[0].seen, seen);
    assert!(
        found.iter().all(|one| one.command().is_none()),
        "{found:#?}"
    );
    // At a switch, each cage hears from all.
    let mut hosts = testing::hosts(&testing::switch());
    let mac = hosts[1].netdev("enp1s0f1np1").unwrap().mac.clone();
    hosts[0].network.neighbours[0].mac = mac;
    assert!(wrong(&hosts).iter().all(|one| one.id != "cable.crossed"));
}

#[test]
fn a_cable_in_the_wrong_cage_is_suspected_before_anything_was_heard() {
    // The second host's p0 has addresses and no link, its p1 a link and no addresses.
    let mut hosts = pair();
    for host in &mut hosts {
        host.network.neighbours.clear();
    }
    cut(&mut hosts[1], 0);
    for (device, netdev) in functions(1) {
        let port = hosts[1].port_mut(&device);
        (port.state, port.rate) = (PortState::Active, Some(200_000));
        let netdev = hosts[1].netdev_mut(&netdev);
        (netdev.running, netdev.mtu) = (true, 9000);
    }
    let found = wrong(&hosts);
    let mut addresses = found.iter().filter(|one| one.id == "net.address");
    assert_eq!(addresses.clone().count(), 2, "{found:#?}");
    let text = "whether the cable should be in p0, which has addresses and no link";
    assert!(
        addresses.all(|one| one.hosts == ["spark-2"] && one.to_string().contains(text)),
        "{found:#?}"
    );
    assert!(found.iter().all(|one| one.command().is_none()));
}

#[test]
fn a_cage_that_answers_for_another_at_a_switch_is_not_crossed() {
    // Both cages of the second host are at the switch, and p1 has answered for the address of p0.
    let mut hosts = pair();
    hear(
        &mut hosts,
        &[
            ("enp1s0f0np0", "enp1s0f1np1"),
            ("enP2p1s0f0np0", "enP2p1s0f1np1"),
        ],
    );
    let found = wrong(&hosts);
    assert!(
        found.iter().all(|one| one.id != "cable.crossed"),
        "{found:#?}"
    );
}

#[test]
fn a_ring_has_cables_between_equal_cages() {
    // One host's cages are exchanged, so that both of its cables join equal ones.
    let mut hosts = ring();
    for netdev in &mut hosts[2].network.netdevs {
        let exchanged = match netdev.port_name.as_deref() {
            Some("p0") => "p1",
            Some(_) => "p0",
            None => continue,
        };
        netdev.port_name = Some(exchanged.to_owned());
    }
    let found = wrong(&hosts);
    assert_eq!(ids(&found), [(Status::Fail, "cable.parity")]);
    assert_eq!(found[0].hosts, ["spark-3"]);
    assert!(
        found[0]
            .to_string()
            .contains("exchange the two cables at spark-3"),
        "{}",
        found[0]
    );
}

#[test]
fn functions_of_a_card_share_its_pcie_link() {
    // A second cable between the same hosts uses the other functions of the same two PCIe links.
    let mut hosts = pair();
    for (index, host) in hosts.iter_mut().enumerate() {
        for (twin, (device, netdev)) in functions(1).into_iter().enumerate() {
            let port = host.port_mut(&device);
            (port.state, port.rate) = (PortState::Active, Some(200_000));
            let one = host.netdev_mut(&netdev);
            (one.running, one.mtu) = (true, 9000);
            let ip = format!("10.0.{}.{}", twin + 2, index + 1);
            give(host, &netdev, &device, (&ip, 24));
        }
    }
    let found = findings(&hosts, &[None, None]);
    let rails = found.iter().find(|one| one.id == "pair.rails").unwrap();
    assert!(rails.seen.contains("expect 28.0 GB/s"), "{rails}");
}

#[test]
fn what_shows_a_rail_is_told() {
    let mut hosts = pair();
    for host in &mut hosts {
        host.network.neighbours.clear();
    }
    let seen = |hosts: &[Host]| {
        let found = findings(hosts, &[None, None]);
        let rails = found
            .into_iter()
            .find(|one| one.id == "pair.rails")
            .unwrap();
        (rails.status, rails.seen)
    };
    let (status, text) = seen(&hosts);
    assert_eq!(status, Status::Ok);
    assert!(text.contains("10.0.0.1 to 10.0.0.2 (one subnet)"), "{text}");
    // All in one subnet: only a probe can tell.
    for (index, host) in hosts.iter_mut().enumerate() {
        for (twin, (device, netdev)) in functions(0).into_iter().enumerate() {
            clear_addresses(host, &netdev, &device);
            let ip = format!("169.254.{twin}.{}", index + 1);
            give(host, &netdev, &device, (&ip, 16));
        }
    }
    let (status, text) = seen(&hosts);
    assert_eq!(status, Status::Unknown);
    assert!(text.contains("perhaps"), "{text}");
}
