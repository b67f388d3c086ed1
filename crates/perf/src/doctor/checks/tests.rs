//! Hosts with a planted fault each: it is found, named, and nothing else is.

use std::sync::OnceLock;

use spark_ccl_topology::testing;
use spark_ccl_topology::{
    Address, Cluster, ConfFile, Host, Library, Limit, NeighbourState, PortState,
};

use super::{Subject, all};
use crate::doctor::finding::{Finding, Status};

/// What is wrong with these hosts.
fn wrong(hosts: &[Host]) -> Vec<Finding> {
    with_clocks(hosts, &vec![None; hosts.len()])
}

fn with_clocks(hosts: &[Host], clocks: &[Option<(f64, f64)>]) -> Vec<Finding> {
    let cluster = &Cluster::of(hosts);
    let found = all(&Subject { cluster, clocks });
    found
        .into_iter()
        .filter(|one| one.status > Status::Ok)
        .collect()
}

/// Two hosts in order. Their trees are written and read once.
fn pair() -> Vec<Host> {
    static PAIR: OnceLock<Vec<Host>> = OnceLock::new();
    PAIR.get_or_init(|| testing::hosts(&testing::pair()))
        .clone()
}

/// Plants a fault in a pair, whose second host is given; it is the only one that is found.
#[track_caller]
fn planted(status: Status, id: &str, fix: &str, plant: impl FnOnce(&mut Host)) -> Finding {
    let mut hosts = pair();
    plant(&mut hosts[1]);
    only(&wrong(&hosts), status, id, fix)
}

#[track_caller]
fn only(found: &[Finding], status: Status, id: &str, fix: &str) -> Finding {
    let [one] = found else {
        panic!("expected one finding: {found:#?}");
    };
    assert_eq!((one.status, one.id), (status, id), "{one}");
    assert!(
        one.fix.as_deref().is_some_and(|text| text.contains(fix)),
        "{one}"
    );
    one.clone()
}

#[test]
fn nothing_is_wrong_with_hosts_in_order() {
    let single = vec![testing::spark("spark-1", 1), testing::nvlink_server("h200")];
    for recorded in single {
        assert_eq!(wrong(&[recorded.host()]), []);
    }
    for several in [testing::pair(), testing::ring(), testing::switch()] {
        let hosts = testing::hosts(&several);
        assert_eq!(
            with_clocks(&hosts, &vec![Some((0.2, 0.1)); hosts.len()]),
            []
        );
    }
}

#[test]
fn what_is_in_order_is_told() {
    let hosts = pair();
    let found = all(&Subject {
        cluster: &Cluster::of(&hosts),
        clocks: &[None, None],
    });
    let lines: Vec<_> = found.iter().map(ToString::to_string).collect();
    let has = |line: &str| assert!(lines.iter().any(|one| one == line), "{line}\n{lines:#?}");
    has(
        "ok    spark-1 - spark-2  pair.rails: RDMA from 10.0.0.1 to 10.0.0.2 and 10.0.1.1 to 10.0.1.2; expect 23.7 GB/s",
    );
    has(
        "ok    spark-2  net.address: rocep1s0f0:1 uses 10.0.0.2/24, index 3: IPv4 and RoCE v2 come first",
    );
    has("ok    spark-1 - spark-2  cluster.shape: a pair; cables: 1");
}

#[test]
fn mtus_of_two_ends_differ() {
    let mut hosts = pair();
    hosts[1].netdev_mut("enP2p1s0f0np0").mtu = 1500;
    let found = wrong(&hosts);
    let ids: Vec<_> = found.iter().map(|one| (one.status, one.id)).collect();
    assert_eq!(ids, [(Status::Warn, "net.mtu"), (Status::Fail, "pair.mtu")]);
    let fix = "on spark-2: sudo ip link set enP2p1s0f0np0 mtu 9000";
    assert_eq!(found[1].fix.as_deref(), Some(fix));
}

#[test]
fn an_address_is_missing() {
    let mut hosts = pair();
    clear_addresses(&mut hosts[1], "enP2p1s0f0np0", "roceP2p1s0f0");
    let found = wrong(&hosts);
    let ids: Vec<_> = found.iter().map(|one| (one.status, one.id)).collect();
    assert_eq!(
        ids,
        [(Status::Fail, "net.address"), (Status::Fail, "net.subnet")]
    );
    let fix = "sudo ip addr add 10.0.1.2/24 dev enP2p1s0f0np0";
    assert_eq!(found[0].fix.as_deref(), Some(fix), "{}", found[0]);
}

#[test]
fn a_subnet_is_wrong() {
    let mut hosts = pair();
    clear_addresses(&mut hosts[1], "enP2p1s0f0np0", "roceP2p1s0f0");
    give(&mut hosts[1], "enP2p1s0f0np0", "roceP2p1s0f0", "10.0.9.2");
    let found = wrong(&hosts);
    let ids: Vec<_> = found
        .iter()
        .map(|one| (one.id, one.hosts.concat()))
        .collect();
    let expected = [("net.subnet", "spark-1"), ("net.subnet", "spark-2")];
    assert_eq!(ids, expected.map(|(id, host)| (id, host.to_owned())));
    let fix = "sudo ip addr del 10.0.9.2/24 dev enP2p1s0f0np0 && sudo ip addr add 10.0.1.2/24 dev enP2p1s0f0np0";
    assert_eq!(found[1].fix.as_deref(), Some(fix));
}

#[test]
fn a_twin_is_down() {
    let mut hosts = pair();
    hosts[1].port_mut("roceP2p1s0f0").state = PortState::Down;
    hosts[1].netdev_mut("enP2p1s0f0np0").running = false;
    let found = wrong(&hosts);
    let link = found.iter().find(|one| one.id == "nic.link").unwrap();
    assert_eq!(link.status, Status::Fail);
    assert_eq!(
        link.fix.as_deref(),
        Some("sudo ip link set enP2p1s0f0np0 up")
    );
}

#[test]
fn a_cable_is_missing() {
    let mut hosts = testing::hosts(&testing::ring());
    for device in ["rocep1s0f0", "roceP2p1s0f0"] {
        hosts[0].port_mut(device).state = PortState::Down;
    }
    for device in ["rocep1s0f1", "roceP2p1s0f1"] {
        hosts[1].port_mut(device).state = PortState::Down;
    }
    only(
        &wrong(&hosts),
        Status::Warn,
        "cluster.shape",
        "plug in a cable",
    );
    let mut hosts = pair();
    for device in ["rocep1s0f0", "roceP2p1s0f0"] {
        hosts[0].port_mut(device).state = PortState::Down;
        hosts[1].port_mut(device).state = PortState::Down;
    }
    let ids: Vec<_> = wrong(&hosts).iter().map(|one| one.id).collect();
    assert_eq!(ids, ["nic.link", "nic.link", "cluster.shape"]);
}

#[test]
fn a_cable_is_crossed() {
    // The addresses are those of a cable between the cages p0, but the second host's cable is in p1.
    let mut hosts = pair();
    for (device, netdev, other) in [
        ("rocep1s0f0", "enp1s0f0np0", "enp1s0f1np1"),
        ("roceP2p1s0f0", "enP2p1s0f0np0", "enP2p1s0f1np1"),
    ] {
        let mac = hosts[1].netdev(other).unwrap().mac.clone();
        assert_eq!(hosts[1].port_mut(device).state, PortState::Active);
        for neighbour in &mut hosts[0].network.neighbours {
            if neighbour.netdev == netdev {
                neighbour.mac.clone_from(&mac);
            }
        }
    }
    hosts[1].network.neighbours.clear();
    let found = wrong(&hosts);
    let ids: Vec<_> = found.iter().map(|one| one.id).collect();
    assert_eq!(ids, ["cable.crossed", "cable.crossed"]);
    let seen =
        "enp1s0f0np0 is joined to enp1s0f1np1, and has an address of the subnet of enp1s0f0np0";
    assert_eq!(found[0].seen, seen);
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
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(
        found
            .iter()
            .all(|one| (one.status, one.id) == (Status::Fail, "pair.reach"))
    );
    let fix = found[0].fix.as_deref().unwrap();
    assert!(
        fix.starts_with("on spark-1: ping -c 3 -I enp1s0f0np0 10.0.0.2"),
        "{fix}"
    );
}

#[test]
fn a_ring_has_a_cable_between_equal_cages() {
    // The ring of the second kind: its last cable joins p0 to p0, since one host's cages are exchanged.
    let mut hosts = testing::hosts(&testing::ring());
    for netdev in &mut hosts[2].network.netdevs {
        let exchanged = match netdev.port_name.as_deref() {
            Some("p0") => "p1",
            Some(_) => "p0",
            None => continue,
        };
        netdev.port_name = Some(exchanged.to_owned());
    }
    let found = wrong(&hosts);
    let ids: Vec<_> = found.iter().map(|one| (one.status, one.id)).collect();
    assert_eq!(ids, [(Status::Fail, "cable.parity"); 2]);
    assert_eq!(found[0].hosts, ["spark-1", "spark-3"]);
}

#[test]
fn limits_are_low() {
    let fix = "/etc/security/limits.d";
    planted(Status::Fail, "limits.memlock", fix, |host| {
        host.limits.memlock = Limit::Most(8 << 20);
    });
    planted(Status::Warn, "limits.memlock", fix, |host| {
        host.limits.memlock = Limit::Most(4 << 30);
    });
    planted(
        Status::Fail,
        "limits.memlock",
        "--ulimit memlock=-1",
        |host| {
            host.limits.memlock = Limit::Most(8 << 20);
            host.system.container = Some("docker".to_owned());
        },
    );
    planted(Status::Warn, "limits.files", "ulimit -n", |host| {
        host.limits.files = Limit::Most(256);
    });
    planted(Status::Warn, "limits.buffers", "sysctl", |host| {
        host.limits.send_buffer = Some(65536);
    });
}

#[test]
fn software_is_bad() {
    let mut hosts = pair();
    for host in &mut hosts {
        host.nccl_mut().version = Some("2.28.9".to_owned());
    }
    let found = wrong(&hosts);
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(
        found
            .iter()
            .all(|one| (one.status, one.id) == (Status::Fail, "nccl.version"))
    );
    for host in &mut hosts {
        host.nccl_mut().version = Some("2.29.3".to_owned());
    }
    assert_eq!(wrong(&hosts), []);
    planted(
        Status::Warn,
        "nccl.version",
        "SPARK_CCL_NCCL_LIBRARY",
        |host| {
            host.software.nccl.push(Library {
                path: "/usr/local/nccl/lib/libnccl.so.2.27.3".to_owned(),
                version: Some("2.27.3".to_owned()),
                bytes: 1,
            });
        },
    );
    planted(
        Status::Warn,
        "nccl.conf",
        "sudo mv /etc/nccl.conf",
        |host| {
            host.software.conf.push(ConfFile {
                path: "/etc/nccl.conf".to_owned(),
                settings: vec![("NCCL_IB_GID_INDEX".to_owned(), "3".to_owned())],
            });
        },
    );
    planted(Status::Fail, "gpu.driver", "reboot", |host| {
        host.software.cuda_problem = Some("cuInit: system not yet initialized".to_owned());
    });
}

#[test]
fn versions_differ() {
    planted(Status::Warn, "cluster.driver", "on each host", |host| {
        host.software.driver = Some("580.82.09".to_owned());
    });
    planted(Status::Warn, "cluster.nccl", "on each host", |host| {
        host.nccl_mut().version = Some("2.27.7".to_owned());
    });
}

#[test]
fn the_machine_is_in_trouble() {
    planted(Status::Fail, "host.memory", "drop_caches", |host| {
        host.memory.available = 2 << 30;
    });
    planted(Status::Warn, "host.memory", "drop_caches", |host| {
        host.memory.available = 4 << 30;
    });
    planted(Status::Fail, "host.kernel", "kho=off", |host| {
        host.memory.cma = Some((0, 4096));
    });
    planted(Status::Warn, "host.governor", "performance", |host| {
        host.cpus[0].governor = Some("powersave".to_owned());
    });
    let mut hosts = pair();
    for host in &mut hosts {
        host.system.kernel = "7.0.0-1019-nvidia".to_owned();
    }
    hosts[0].system.boot.push("kho=off".to_owned());
    only(&wrong(&hosts), Status::Fail, "host.kernel", "kho=off");
}

#[test]
fn a_network_card_is_in_trouble() {
    planted(Status::Warn, "nic.pcie", "fwupdmgr", |host| {
        let function = host
            .pci
            .iter_mut()
            .find(|one| one.address == "0002:01:00.0");
        function.unwrap().link.as_mut().unwrap().width = 2;
    });
    planted(Status::Warn, "nic.errors", "rdma_bw", |host| {
        let counters = &mut host.port_mut("rocep1s0f0").counters;
        counters.insert("out_of_sequence".to_owned(), 7);
    });
    planted(Status::Warn, "nic.link", "replace", |host| {
        host.port_mut("rocep1s0f0").rate = Some(100_000);
    });
    let mut host = testing::spark("spark-1", 1).host();
    host.rdma.clear();
    only(
        &wrong(&[host]),
        Status::Fail,
        "nic.driver",
        "modprobe mlx5_ib",
    );
}

#[test]
fn a_clock_is_off() {
    let hosts = pair();
    let found = with_clocks(&hosts, &[Some((0.0, 0.0)), Some((-40.0, 0.3))]);
    let one = only(&found, Status::Warn, "cluster.clock", "set-ntp");
    assert_eq!(one.hosts, ["spark-2"]);
}

#[test]
fn twins_share_a_subnet() {
    let mut host = testing::spark("spark-1", 1).host();
    clear_addresses(&mut host, "enP2p1s0f0np0", "roceP2p1s0f0");
    give(&mut host, "enP2p1s0f0np0", "roceP2p1s0f0", "10.0.0.101");
    only(
        &wrong(&[host]),
        Status::Warn,
        "net.subnets",
        "sudo ip addr add 10.0.1.101/24",
    );
}

fn clear_addresses(host: &mut Host, netdev: &str, device: &str) {
    host.netdev_mut(netdev).addresses.clear();
    host.port_mut(device).gids.retain(|gid| gid.ip().is_ipv6());
}

fn give(host: &mut Host, netdev: &str, device: &str, ip: &str) {
    let ip: std::net::IpAddr = ip.parse().unwrap();
    host.netdev_mut(netdev).addresses.push(Address {
        ip,
        prefix: 24,
        label: None,
    });
    let std::net::IpAddr::V4(v4) = ip else {
        panic!("{ip}");
    };
    host.port_mut(device)
        .gids
        .push(spark_ccl_topology::rdma::Gid {
            index: 5,
            address: v4.to_ipv6_mapped(),
            roce: spark_ccl_topology::rdma::Roce::V2,
            prefix: Some(24),
        });
}
