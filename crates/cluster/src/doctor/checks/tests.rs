//! Hosts with a planted fault each: it is found and named, nothing else is, and the printed command
//! puts it right.

mod apply;
mod cabling;
mod machines;
mod network;
mod subnets;

use std::sync::OnceLock;

use apply::mend;
use spark_ccl_topology::netif::network;
use spark_ccl_topology::rdma::{Gid, Roce};
use spark_ccl_topology::testing;
use spark_ccl_topology::{Address, Cluster, Host, PortState, Route};

use super::{Subject, all};
use crate::finding::{Finding, Status};

/// All findings about these hosts.
fn findings(hosts: &[Host], clocks: &[Option<(f64, f64)>]) -> Vec<Finding> {
    let cluster = &Cluster::of(hosts);
    all(&Subject {
        cluster,
        clocks,
        pinned: &[],
    })
}

/// The findings that are not in order.
fn wrong(hosts: &[Host]) -> Vec<Finding> {
    with_clocks(hosts, &vec![None; hosts.len()])
}

fn with_clocks(hosts: &[Host], clocks: &[Option<(f64, f64)>]) -> Vec<Finding> {
    let found = findings(hosts, clocks).into_iter();
    found.filter(|one| one.status > Status::Ok).collect()
}

/// Two hosts in order. Their trees are written and read once.
fn pair() -> Vec<Host> {
    static PAIR: OnceLock<Vec<Host>> = OnceLock::new();
    PAIR.get_or_init(|| testing::hosts(&testing::pair()))
        .clone()
}

fn ring() -> Vec<Host> {
    static RING: OnceLock<Vec<Host>> = OnceLock::new();
    RING.get_or_init(|| testing::hosts(&testing::ring()))
        .clone()
}

/// The status and name of each finding.
fn ids(found: &[Finding]) -> Vec<(Status, &'static str)> {
    found.iter().map(|one| (one.status, one.id)).collect()
}

/// Plants a fault in the second host of a pair. It is the only one that is found, and its commands
/// put it right; where it has none, it says what to look at.
#[track_caller]
fn planted(status: Status, id: &str, text: &str, plant: impl FnOnce(&mut Host)) -> Finding {
    let mut hosts = pair();
    plant(&mut hosts[1]);
    let found = wrong(&hosts);
    let [one] = found.as_slice() else {
        panic!("expected one finding: {found:#?}");
    };
    assert_eq!((one.status, one.id), (status, id), "{one}");
    assert!(one.to_string().contains(text), "{one}");
    if one.command().is_some() {
        assert_eq!(one.fix.as_ref().unwrap().place.as_deref(), Some("spark-2"));
        assert_eq!(mend(&mut hosts), []);
    } else {
        assert!(one.fix.as_ref().unwrap().look.is_some(), "{one}");
    }
    one.clone()
}

/// Takes all addresses but the link-local ones from an interface and its device.
fn clear_addresses(host: &mut Host, netdev: &str, device: &str) {
    host.netdev_mut(netdev).addresses.clear();
    host.port_mut(device).gids.retain(|gid| gid.ip().is_ipv6());
    host.network.routes.retain(|route| route.netdev != netdev);
}

/// Gives an interface and its device an address.
fn give(host: &mut Host, netdev: &str, device: &str, (ip, prefix): (&str, u8)) {
    let ip: std::net::IpAddr = ip.parse().unwrap();
    let std::net::IpAddr::V4(v4) = ip else {
        panic!("{ip}");
    };
    let addresses = &mut host.netdev_mut(netdev).addresses;
    addresses.push(Address {
        ip,
        prefix,
        label: None,
    });
    host.network.routes.push(Route {
        destination: Some(network(ip, prefix)),
        prefix,
        gateway: None,
        netdev: netdev.to_owned(),
    });
    let gids = &mut host.port_mut(device).gids;
    gids.push(Gid {
        index: gids.len() as u8 + 1,
        address: v4.to_ipv6_mapped(),
        roce: Roce::V2,
        prefix: Some(prefix),
    });
}

/// Switches both functions of a cage off.
fn cut(host: &mut Host, cage: usize) {
    for (device, netdev) in functions(cage) {
        host.port_mut(&device).state = PortState::Down;
        host.netdev_mut(&netdev).running = false;
    }
}

/// The devices and interfaces of a cage.
fn functions(cage: usize) -> [(String, String); 2] {
    ["", "P2"].map(|twin| {
        let device = format!("roce{twin}p1s0f{cage}");
        (device, format!("en{twin}p1s0f{cage}np{cage}"))
    })
}

#[test]
fn nothing_is_wrong_with_hosts_in_order() {
    let single = vec![testing::spark("spark-1", 1), testing::nvlink_server("h200")];
    for recorded in single {
        // A cable to a host that is not known is not judged.
        assert_eq!(wrong(&[recorded.host()]), []);
    }
    for several in [testing::pair(), testing::ring(), testing::switch()] {
        let hosts = testing::hosts(&several);
        let clocks = vec![Some((0.2, 0.1)); hosts.len()];
        assert_eq!(with_clocks(&hosts, &clocks), []);
    }
}

#[test]
fn what_is_in_order_is_told() {
    let found = findings(&pair(), &[None, None]);
    let lines: Vec<_> = found.iter().map(ToString::to_string).collect();
    let has = |line: &str| assert!(lines.iter().any(|one| one == line), "{line}\n{lines:#?}");
    has(
        "ok       spark-1 - spark-2  pair.rails: RDMA from 10.0.0.1 to 10.0.0.2 (heard from) and \
         10.0.1.1 to 10.0.1.2 (heard from); expect 23.7 GB/s of: spark-perf launch -H \
         spark-1,spark-2 -- spark-perf rdma_bw",
    );
    has(
        "ok       spark-2  net.address: rocep1s0f0:1 uses 10.0.0.2/24, index 3: IPv4 and RoCE v2 \
         come first",
    );
    has("ok       spark-1 - spark-2  cluster.shape: a pair; cables: 1");
    has("ok       spark-1  nic.errors: p0: no error since the driver was loaded");
}
