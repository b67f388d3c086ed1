//! Checks what all hosts must share.

use std::collections::BTreeSet;

use spark_ccl_topology::cluster::Shape;
use spark_ccl_topology::{Host, Library, PortState};

use super::Subject;
use super::software::number;
use crate::finding::{Finding, Fix, Problem};

/// The most by which clocks may differ, in seconds.
const SECONDS: f64 = 1.0;

pub(super) fn checks(subject: &Subject<'_>) -> Vec<Finding> {
    let hosts = subject.cluster.hosts;
    if hosts.len() < 2 {
        return Vec::new();
    }
    let mut found = vec![shape(subject)];
    let ranks = "ranks with different versions fail when they meet, or are slower on one host";
    found.push(same(hosts, ("cluster.driver", ranks), |host| {
        host.software.driver.clone()
    }));
    let is_one_kind = hosts
        .iter()
        .all(|host| host.system.arch == hosts[0].system.arch);
    found.push(same(hosts, ("cluster.nccl", ranks), |host| {
        let libraries = host.software.nccl.iter();
        let key = |one: &&Library| one.version.as_deref().and_then(number);
        // Builds of one version may be for different versions of CUDA, and then differ in size.
        let newest = libraries.max_by_key(key)?;
        let version = newest.version.as_deref().unwrap_or("unknown version");
        let bytes = if is_one_kind {
            format!(", {} bytes", newest.bytes)
        } else {
            String::new()
        };
        Some(format!("{version}{bytes}"))
    }));
    found.push(same(
        hosts,
        (
            "cluster.toolkit",
            "programs built on one host may not run on another",
        ),
        |host| {
            let versions = host.software.toolkits.iter();
            let versions: BTreeSet<_> = versions.filter_map(|one| one.version.as_deref()).collect();
            (!versions.is_empty()).then(|| versions.into_iter().collect::<Vec<_>>().join(", "))
        },
    ));
    found.push(same(
        hosts,
        ("cluster.kernel", "drivers and speed may differ, too"),
        |host| Some(host.system.kernel.clone()),
    ));
    let clocks = hosts.iter().zip(subject.clocks);
    found.extend(clocks.filter_map(|(host, ahead)| Some(clock(host, (*ahead)?))));
    found
}

fn shape(subject: &Subject<'_>) -> Finding {
    const ID: &str = "cluster.shape";
    let cluster = subject.cluster;
    let names = names(cluster.hosts);
    let seen = format!("{}; cables: {}", cluster.shape, cluster.cables.len());
    match cluster.shape {
        Shape::Apart if cluster.hosts.iter().any(has_other_links) => Finding::unknown(
            ID,
            &names,
            "ports of InfiniBand or EFA, which are not examined".to_owned(),
            "spark-perf rdma_bw, and the tools of that network",
        ),
        Shape::Apart => {
            let why =
                "collectives between these hosts go by TCP over another network, if there is one";
            let look = "the findings above about links and addresses; spark-perf netplan plans the addresses of all cables";
            let problem = Problem::new(seen, "a rail between any two hosts", why, Fix::look(look));
            Finding::warn(ID, &names, problem)
        }
        Shape::Chain => {
            let why =
                "data between the ends of the chain cross all other hosts, at half of the speed";
            let look =
                "whether a cable between the first and the last host is missing or has no link";
            Finding::warn(
                ID,
                &names,
                Problem::new(seen, "a ring", why, Fix::look(look)),
            )
        }
        Shape::Single | Shape::Pair | Shape::Ring | Shape::Switch | Shape::Mixed => {
            Finding::ok(ID, &names, seen)
        }
    }
}

fn has_other_links(host: &Host) -> bool {
    host.ports()
        .any(|(_, port)| !port.ethernet && port.state == PortState::Active)
}

/// Whether all hosts say the same.
fn same(
    hosts: &[Host],
    (id, why): (&'static str, &str),
    of: impl Fn(&Host) -> Option<String>,
) -> Finding {
    let said: Vec<_> = hosts.iter().map(|host| (&host.name, of(host))).collect();
    let values: BTreeSet<_> = said.iter().map(|(_, value)| value.clone()).collect();
    let names = names(hosts);
    let list: Vec<_> = said
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.as_deref().unwrap_or("none found")))
        .collect();
    match (values.len(), values.first().cloned().flatten()) {
        (1, Some(value)) => Finding::ok(id, &names, format!("all have {value}")),
        (1, None) => Finding::ok(id, &names, "none found on any host"),
        // A library that is not found may still be there, as in a container.
        (2, None) => Finding::unknown(id, &names, list.join(", "), "what the jobs use"),
        _ => {
            let look = "which version is meant, and bring the other hosts to it when no job runs";
            let problem = Problem::new(
                list.join(", "),
                "the same on all hosts",
                why,
                Fix::look(look),
            );
            Finding::warn(id, &names, problem)
        }
    }
}

fn clock(host: &Host, (ahead, exact): (f64, f64)) -> Finding {
    const ID: &str = "cluster.clock";
    let name = [host.name.as_str()];
    let side = if ahead < 0.0 { "behind" } else { "ahead of" };
    let seen = format!(
        "{:.1} s {side} this machine's clock (+-{exact:.1})",
        ahead.abs()
    );
    let look = "timedatectl on both: whether the clocks are synchronized";
    if ahead.abs() <= SECONDS + exact {
        return if exact > SECONDS {
            Finding::unknown(ID, &name, seen, look)
        } else {
            Finding::ok(ID, &name, seen)
        };
    }
    let problem = Problem::new(
        seen,
        format!("at most {SECONDS} s"),
        "logs of several hosts cannot be compared, and what expires is refused",
        Fix::look(look),
    );
    Finding::warn(ID, &name, problem)
}

fn names(hosts: &[Host]) -> Vec<&str> {
    hosts.iter().map(|host| host.name.as_str()).collect()
}
