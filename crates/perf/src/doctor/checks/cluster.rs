//! What all hosts must have in common.

use std::collections::BTreeSet;

use spark_ccl_topology::Host;
use spark_ccl_topology::cluster::Shape;

use super::Subject;
use crate::doctor::finding::{Finding, Problem};

/// How far clocks may differ, in seconds.
const SECONDS: f64 = 1.0;

pub(super) fn checks(subject: &Subject<'_>) -> Vec<Finding> {
    let hosts = subject.cluster.hosts;
    if hosts.len() < 2 {
        return Vec::new();
    }
    let mut found = vec![shape(subject)];
    found.push(same(hosts, "cluster.driver", "drivers", |host| {
        host.software.driver.clone()
    }));
    found.push(same(hosts, "cluster.nccl", "NCCL", |host| {
        let versions = host
            .software
            .nccl
            .iter()
            .filter_map(|one| one.version.clone());
        versions.max()
    }));
    found.push(same(hosts, "cluster.kernel", "kernels", |host| {
        Some(host.system.kernel.clone())
    }));
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
        Shape::Apart => Finding::fail(
            ID,
            &names,
            Problem {
                seen,
                wanted: "a way between any two hosts".to_owned(),
                why: "no collective can be done".to_owned(),
                fix: "plug in the cables, then give both ends of each addresses in one subnet"
                    .to_owned(),
            },
        ),
        Shape::Chain => Finding::warn(
            ID,
            &names,
            Problem {
                seen,
                wanted: "a ring".to_owned(),
                why:
                    "data between the ends of the chain cross all other hosts, at half of the speed"
                        .to_owned(),
                fix: "plug in a cable between the first and the last host".to_owned(),
            },
        ),
        Shape::Single | Shape::Pair | Shape::Ring | Shape::Switch | Shape::Mixed => {
            Finding::ok(ID, &names, seen)
        }
    }
}

/// Whether all hosts say the same. Those that say nothing do not count.
fn same(
    hosts: &[Host],
    id: &'static str,
    what: &str,
    of: impl Fn(&Host) -> Option<String>,
) -> Finding {
    let said: Vec<_> = hosts
        .iter()
        .filter_map(|host| Some((&host.name, of(host)?)))
        .collect();
    let values: BTreeSet<_> = said.iter().map(|(_, value)| value.clone()).collect();
    let names = names(hosts);
    match values.len() {
        0 => Finding::ok(id, &names, "none"),
        1 => Finding::ok(id, &names, format!("all have {}", said[0].1)),
        _ => {
            let list: Vec<_> = said
                .iter()
                .map(|(name, value)| format!("{name}: {value}"))
                .collect();
            Finding::warn(
                id,
                &names,
                Problem {
                    seen: list.join(", "),
                    wanted: format!("the same {what} on all hosts"),
                    why: "ranks with different versions fail when they meet, or are slower on one host".to_owned(),
                    fix: "on each host: sudo apt-get update && sudo apt-get full-upgrade && sudo reboot".to_owned(),
                },
            )
        }
    }
}

fn clock(host: &Host, (ahead, exact): (f64, f64)) -> Finding {
    const ID: &str = "cluster.clock";
    let name = [host.name.as_str()];
    let seen = format!("{ahead:+.1} s, by {exact:.1} s exact");
    if ahead.abs() <= SECONDS + exact {
        return Finding::ok(ID, &name, seen);
    }
    Finding::warn(
        ID,
        &name,
        Problem {
            seen,
            wanted: format!("at most {SECONDS} s from this machine's clock"),
            why: "logs of several hosts cannot be compared, and what expires is refused".to_owned(),
            fix: "sudo timedatectl set-ntp true".to_owned(),
        },
    )
}

fn names(hosts: &[Host]) -> Vec<&str> {
    hosts.iter().map(|host| host.name.as_str()).collect()
}
