//! The RDMA devices that join hosts.

use std::collections::BTreeSet;

use spark_ccl_topology::cages::CageEnd;
use spark_ccl_topology::cluster::Evidence;
use spark_ccl_topology::{Cluster, Host, cages};

use super::setting::{Setting, both};

/// The devices of the rails between the hosts, unless all are used anyway.
///
/// # Errors
/// The reason why no list of names fits all hosts.
pub(super) fn devices(cluster: &Cluster<'_>) -> Result<Vec<Setting>, String> {
    let lists: Vec<_> = (0..cluster.hosts.len())
        .map(|host| joining(cluster, host))
        .collect();
    let all: BTreeSet<&str> = lists.iter().flatten().copied().collect();
    let mut hosts = cluster.hosts.iter().zip(&lists);
    let are_all_used = hosts.all(|(host, list)| host.ports().count() == list.len());
    if all.is_empty() || are_all_used {
        return Ok(Vec::new());
    }
    for (host, list) in cluster.hosts.iter().zip(&lists) {
        let is_extra = |name: &&str| all.contains(name) && !list.contains(name);
        if let Some(extra) = cabled(host).into_iter().find(is_extra) {
            return Err(format!(
                "{extra} joins other hosts, but on {} it leads to none of these",
                host.name
            ));
        }
    }
    let names: Vec<_> = cluster
        .hosts
        .iter()
        .map(|host| host.name.as_str())
        .collect();
    let rates = rates(&cluster.hosts[0], &lists[0]);
    let probe = match names[..] {
        [one] => format!("the ports with a link, on {one}: {rates}"),
        _ => format!("the ports that join {}: {rates}", names.join(", ")),
    };
    let all: Vec<_> = all.into_iter().collect();
    let value = format!("={}", all.join(","));
    Ok(both(["SPARK_CCL_IB_HCA", "NCCL_IB_HCA"], &value, &probe))
}

/// The devices of a host's rails to the others. Of a host alone, the devices with a link.
fn joining<'a>(cluster: &'a Cluster<'_>, host: usize) -> BTreeSet<&'a str> {
    if cluster.hosts.len() == 1 {
        return cabled(&cluster.hosts[host]);
    }
    let rails = cluster.rails.iter();
    let rails = rails.filter(|rail| rail.rdma && rail.evidence != Evidence::Silent);
    let ends = rails.flat_map(|rail| &rail.ends);
    ends.filter(|end| end.host == host)
        .map(|end| end.device.as_str())
        .collect()
}

fn cabled(host: &Host) -> BTreeSet<&str> {
    let ends = cages(host).into_iter().flat_map(|cage| cage.ends);
    ends.filter(CageEnd::is_active)
        .map(|end| end.device.name.as_str())
        .collect()
}

/// The cages of these devices, with their speeds.
fn rates(host: &Host, devices: &BTreeSet<&str>) -> String {
    let cages = cages(host);
    let joining = cages.iter().filter(|cage| {
        let mut ends = cage.ends.iter();
        ends.any(|end| devices.contains(end.device.name.as_str()))
    });
    let rates: Vec<_> = joining
        .filter_map(|cage| Some(format!("{} {} Gbit/s", cage.name, cage.gbits()?)))
        .collect();
    rates.join(", ")
}
