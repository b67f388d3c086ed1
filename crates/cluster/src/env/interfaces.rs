//! The network interfaces that join hosts.

use std::net::IpAddr;

use spark_ccl_topology::cluster::{Evidence, rank};
use spark_ccl_topology::netif::{is_link_local, same_subnet};
use spark_ccl_topology::{Cluster, Host, Netdev};

use super::setting::{Setting, both};

/// A subnet: an address, and the length of the prefix.
type Subnet = (IpAddr, u8);

/// A subnet that all hosts share.
struct Shared<'a> {
    subnet: Subnet,
    /// The interfaces in it, one of each host.
    netdevs: Vec<&'a Netdev>,
    /// The speed of its slowest interface, in Mbit/s.
    speed: u32,
}

/// The interfaces over which ranks meet: in the fastest subnet that all hosts share. Without RDMA,
/// data takes them, too: then all equally fast ones.
///
/// # Errors
/// The reason why no list of names fits all hosts.
pub(super) fn interfaces(cluster: &Cluster<'_>) -> Result<Vec<Setting>, String> {
    if cluster.hosts.len() < 2 {
        return Ok(Vec::new());
    }
    let mut shared = shared(cluster);
    let fastest = shared.iter().map(|one| one.speed).max();
    let fastest = fastest.ok_or("these hosts share no subnet that answers")?;
    shared.retain(|one| one.speed == fastest);
    if cluster.rails.iter().any(|rail| rail.rdma) {
        shared.truncate(1);
    } else {
        joins_all(cluster, &shared)?;
    }
    let netdevs = shared.iter().flat_map(|one| &one.netdevs);
    let mut names: Vec<&str> = netdevs.map(|one| one.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    fits_all(cluster, &shared, &names)?;
    let (a, subnet) = match shared.len() {
        1 => ("the fastest interface", "a subnet"),
        _ => ("the fastest interfaces", "subnets"),
    };
    let probe = format!("{a} in {subnet} that all hosts share: {}", list(&shared));
    let value = format!("={}", names.join(","));
    Ok(both(
        ["SPARK_CCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"],
        &value,
        &probe,
    ))
}

/// The subnets that all hosts share, and in which they answer each other, in the order of the first
/// host's interfaces.
fn shared<'a>(cluster: &Cluster<'a>) -> Vec<Shared<'a>> {
    let [first, others @ ..] = cluster.hosts else {
        return Vec::new();
    };
    let mut own: Vec<&Netdev> = first.network.netdevs.iter().collect();
    own.sort_by_key(|one| one.index);
    let in_all = own.into_iter().filter_map(|own| {
        let subnet = subnet(own)?;
        let same = others.iter().map(|host| in_subnet(host, subnet));
        let netdevs: Option<Vec<_>> = [Some(own)].into_iter().chain(same).collect();
        let netdevs = netdevs?;
        let ranks = cluster.hosts.iter().zip(&netdevs);
        let speed = ranks.map(|(host, one)| rank(host, one)).min()?;
        Some(Shared {
            subnet,
            netdevs,
            speed,
        })
    });
    let silent = cluster
        .rails
        .iter()
        .filter(|rail| rail.evidence == Evidence::Silent);
    let silent: Vec<IpAddr> = silent.map(|rail| rail.ends[0].gid.ip()).collect();
    let answers = |one: &Shared<'_>| {
        let (ip, prefix) = one.subnet;
        !silent.iter().any(|other| same_subnet(*other, ip, prefix))
    };
    in_all.filter(answers).collect()
}

/// Checks that no pair of hosts has another network for its data: the list would move the data to a
/// slower one.
fn joins_all(cluster: &Cluster<'_>, shared: &[Shared<'_>]) -> Result<(), String> {
    let rails = cluster.rails.iter();
    let mut answering = rails.filter(|rail| rail.evidence != Evidence::Silent);
    let Some(other) = answering.find(|rail| !is_in(shared, rail.ends[0].gid.ip())) else {
        return Ok(());
    };
    let [a, b] = other.hosts().map(|host| cluster.hosts[host].name.as_str());
    Err(format!(
        "all hosts share {}, and {} joins {a} and {b} alone; without the setting, each pair uses \
         the fastest network that it shares",
        list(shared),
        other.ends[0].netdev
    ))
}

/// Checks that none of these names is an interface of another network on some host: all hosts get
/// all names.
fn fits_all(cluster: &Cluster<'_>, shared: &[Shared<'_>], names: &[&str]) -> Result<(), String> {
    let is_elsewhere = |netdev: &&Netdev| {
        let mut addresses = netdev.addresses.iter().filter(|one| !is_link_local(one.ip));
        names.contains(&netdev.name.as_str())
            && netdev.running
            && addresses.any(|one| one.ip.is_ipv4() && !is_in(shared, one.ip))
    };
    for host in cluster.hosts {
        if let Some(netdev) = host.network.netdevs.iter().find(is_elsewhere) {
            return Err(format!(
                "the hosts share {}, by {}; on {}, {} is in another network",
                list(shared),
                names.join(" and "),
                host.name,
                netdev.name
            ));
        }
    }
    Ok(())
}

fn is_in(shared: &[Shared<'_>], ip: IpAddr) -> bool {
    let mut subnets = shared.iter().map(|one| one.subnet);
    subnets.any(|(own, prefix)| same_subnet(own, ip, prefix))
}

fn list(shared: &[Shared<'_>]) -> String {
    let subnets = shared.iter().map(|one| one.subnet);
    let texts: Vec<_> = subnets
        .map(|(ip, prefix)| format!("{ip}/{prefix}"))
        .collect();
    texts.join(", ")
}

/// The first address of an interface that leads to others, and its prefix.
fn subnet(netdev: &Netdev) -> Option<Subnet> {
    let leads = netdev.running && !netdev.loopback;
    let address = netdev
        .addresses
        .iter()
        .find(|one| one.ip.is_ipv4())
        .filter(|_| leads)?;
    Some((address.ip, address.prefix))
}

/// The interface of a host in a subnet in which it has an address of its own.
fn in_subnet(host: &Host, (ip, prefix): Subnet) -> Option<&Netdev> {
    let mut netdevs = host.network.netdevs.iter();
    netdevs.find(|netdev| {
        let own = subnet(netdev);
        // Container networks use the same addresses on every host.
        own.is_some_and(|(own, _)| own != ip && same_subnet(own, ip, prefix))
    })
}

#[cfg(test)]
mod tests {
    use spark_ccl_topology::NeighbourState;
    use spark_ccl_topology::testing;

    use super::*;

    /// The names for these hosts, or why there are none.
    fn names(hosts: &[Host]) -> Result<String, String> {
        let settings = interfaces(&Cluster::of(hosts))?;
        let [own, nccl] = &settings[..] else {
            return Ok(String::new());
        };
        assert_eq!(own.value, nccl.value);
        Ok(own.value.clone())
    }

    fn without_rdma(recorded: &[testing::Recorded]) -> Vec<Host> {
        let mut hosts = testing::hosts(recorded);
        for host in &mut hosts {
            host.rdma.clear();
        }
        hosts
    }

    #[test]
    fn a_name_that_is_in_another_network_on_some_host_is_not_set() {
        let mut hosts = testing::hosts(&testing::pair());
        for host in &mut hosts {
            let netdevs = &mut host.network.netdevs;
            netdevs.retain(|one| ["lo", "enp1s0f0np0", "enp1s0f1np1"].contains(&&*one.name));
        }
        // The second host's p1 is in the subnet of the first host's p0, and its p0 in another one.
        let shared = hosts[1].netdev_mut("enp1s0f0np0").addresses.clone();
        let mut other = shared.clone();
        other[0].ip = "10.9.9.2".parse().unwrap();
        hosts[1].netdev_mut("enp1s0f0np0").addresses = other;
        let second = hosts[1].netdev_mut("enp1s0f1np1");
        (second.addresses, second.running) = (shared, true);
        let why = names(&hosts).unwrap_err();
        assert!(
            why.contains("on spark-2, enp1s0f0np0 is in another network"),
            "{why}"
        );
        hosts[1].netdev_mut("enp1s0f0np0").running = false;
        assert_eq!(names(&hosts).unwrap(), "=enp1s0f0np0,enp1s0f1np1");
    }

    #[test]
    fn without_rdma_all_rails_are_named_and_no_slower_network() {
        let mut hosts = without_rdma(&testing::pair());
        assert_eq!(names(&hosts).unwrap(), "=enP2p1s0f0np0,enp1s0f0np0");
        for host in &mut hosts {
            host.netdev_mut("enP2p1s0f0np0").running = false;
        }
        assert_eq!(names(&hosts).unwrap(), "=enp1s0f0np0");
        // The only cable does not answer.
        for neighbour in &mut hosts[0].network.neighbours {
            neighbour.mac = None;
            neighbour.state = NeighbourState::Failed;
        }
        hosts[1].network.neighbours.clear();
        assert_eq!(names(&hosts).unwrap(), "=enP7s7");
    }

    /// The network that all share would take the data from the cables.
    #[test]
    fn without_rdma_a_ring_is_left_to_the_library() {
        let why = names(&without_rdma(&testing::ring())).unwrap_err();
        assert!(why.contains("joins spark-1 and spark-2 alone"), "{why}");
    }
}
