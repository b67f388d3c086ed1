//! What crossed which interface, by the kernel's counters.

use std::collections::BTreeSet;

use serde::Serialize;
use spark_ccl_topology::{Cluster, Host};

use crate::doctor::{Finding, Fix, Problem};

/// What ssh and the ranks' meetings may send over other interfaces, in bytes, beside a small part of the data.
const SMALL: f64 = 8e6;
const PART: f64 = 0.02;
/// `port_xmit_data` counts words of four bytes.
const WORD: u64 = 4;

/// The bytes that an interface or an RDMA port has sent and received.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Traffic {
    pub(super) host: String,
    /// An interface, or an RDMA port.
    pub(super) name: String,
    pub(super) rail: bool,
    pub(super) sent: u64,
    pub(super) received: u64,
}

/// What was counted between two readings; the loopback interface counts as none.
pub(super) fn between(before: &Cluster<'_>, after: &[Host]) -> Vec<Traffic> {
    let mut found = Vec::new();
    for (index, (old, new)) in before.hosts.iter().zip(after).enumerate() {
        let ends = before.rails.iter().flat_map(|rail| &rail.ends);
        let ends = ends.filter(|end| end.host == index);
        let rails: BTreeSet<_> = ends.map(|end| (&end.device, &end.netdev)).collect();
        for netdev in new.network.netdevs.iter().filter(|one| !one.loopback) {
            let counted = old
                .netdev(&netdev.name)
                .and_then(|it| it.traffic)
                .zip(netdev.traffic);
            let Some((then, now)) = counted else { continue };
            found.push(Traffic {
                host: new.name.clone(),
                name: netdev.name.clone(),
                rail: rails.iter().any(|(_, name)| **name == netdev.name),
                sent: now.sent.saturating_sub(then.sent),
                received: now.received.saturating_sub(then.received),
            });
        }
        for ((device, then), (_, now)) in old.ports().zip(new.ports()) {
            let grown = |name: &str| now.counter(name).saturating_sub(then.counter(name)) * WORD;
            found.push(Traffic {
                host: new.name.clone(),
                name: format!("{}:{}", device.name, now.number),
                rail: rails.iter().any(|(name, _)| **name == device.name),
                sent: grown("port_xmit_data"),
                received: grown("port_rcv_data"),
            });
        }
    }
    found
}

/// Whether the rails of each host have sent what the collectives must have moved, and other interfaces nothing of it.
pub(super) fn judge(traffic: &[Traffic], moved: f64) -> Vec<Finding> {
    let hosts: Vec<&str> = traffic.iter().fold(Vec::new(), |mut hosts, one| {
        if !hosts.contains(&one.host.as_str()) {
            hosts.push(&one.host);
        }
        hosts
    });
    hosts
        .into_iter()
        .map(|host| of(traffic, host, moved))
        .collect()
}

fn of(traffic: &[Traffic], host: &str, moved: f64) -> Finding {
    const ID: &str = "check.traffic";
    let own = || traffic.iter().filter(|one| one.host == host);
    let rails: u64 = own().filter(|one| one.rail).map(|one| one.sent).sum();
    let most = SMALL + PART * moved;
    let is_stray = |one: &&Traffic| !one.rail && one.sent.max(one.received) as f64 > most;
    let names = |all: &[&Traffic]| {
        let each: Vec<_> = all
            .iter()
            .map(|one| format!("{} {}", one.name, bytes(one.sent as f64)))
            .collect();
        each.join(", ")
    };
    let stray: Vec<_> = own().filter(is_stray).collect();
    let carried: Vec<_> = own().filter(|one| one.rail).collect();
    if !stray.is_empty() || (rails as f64) < 0.9 * moved {
        let elsewhere = if stray.is_empty() {
            "nothing".to_owned()
        } else {
            names(&stray)
        };
        let problem = Problem::new(
            format!(
                "sent over the rails: {}; over other interfaces: {elsewhere}; the collectives moved {}",
                names(&carried),
                bytes(moved)
            ),
            "all of it over the rails",
            "the data takes a slower way than the one that was built for it, and disturbs others there",
            Fix::look(
                "spark-perf env, and what NCCL_SOCKET_IFNAME, SPARK_CCL_SOCKET_IFNAME and NCCL_IB_DISABLE are set to",
            ),
        );
        return Finding::fail(ID, &[host], problem);
    }
    let seen = format!(
        "the collectives' {} crossed the rails ({}), and no other interface",
        bytes(moved),
        names(&carried)
    );
    Finding::ok(ID, &[host], seen)
}

/// A number of bytes for people.
pub(super) fn bytes(count: f64) -> String {
    match count {
        count if count >= 1e9 => format!("{:.1} GB", count / 1e9),
        count if count >= 1e6 => format!("{:.1} MB", count / 1e6),
        count => format!("{:.0} kB", count / 1e3),
    }
}
