//! Lists the interfaces that the operating system reports.

use std::path::Path;

use super::{Interface, NetifError, is_internal};
use crate::model::Netdev;
use crate::read::{Tree, netdevs, speed};

/// Every IP address of every interface that is up and has a carrier, in the system's order. If none
/// of them leads to other hosts, also those of interfaces that are up and may get a carrier.
///
/// # Errors
/// When the operating system refuses.
pub fn list() -> Result<Vec<Interface>, NetifError> {
    let all = netdevs().map_err(|error| NetifError::List(error.to_string()))?;
    let tree = Tree::new(Path::new("/"));
    Ok(usable(all)
        .flat_map(|mut netdev| {
            netdev.speed = speed(&tree, &netdev.name);
            let rdma = tree.has(&format!("sys/class/net/{}/device/infiniband", netdev.name));
            Interface::of(&netdev, rdma)
        })
        .collect())
}

/// Every IP address of every interface, up or not, in the system's order, without speeds and RDMA
/// devices.
///
/// # Errors
/// When the operating system refuses.
pub fn all() -> Result<Vec<Interface>, NetifError> {
    let all = netdevs().map_err(|error| NetifError::List(error.to_string()))?;
    let addresses = all.iter().flat_map(|one| Interface::of(one, false));
    Ok(addresses.collect())
}

/// A cable takes seconds to get a carrier. A rank that starts meanwhile must name the address that
/// others will soon reach: given loopback's alone, they would try in vain until the timeout.
fn usable(all: Vec<Netdev>) -> impl Iterator<Item = Netdev> {
    let leads_out = |netdev: &Netdev| {
        !netdev.loopback && !is_internal(&netdev.name) && !netdev.addresses.is_empty()
    };
    let is_alone = !all.iter().any(|netdev| netdev.running && leads_out(netdev));
    all.into_iter()
        .filter(move |netdev| netdev.running || (is_alone && netdev.up && leads_out(netdev)))
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::model::Address;

    fn netdev(name: &str, up: bool, running: bool) -> Netdev {
        let address = Address {
            ip: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
            prefix: 24,
            label: None,
        };
        Netdev {
            name: name.to_owned(),
            index: 1,
            up,
            running,
            loopback: name == "lo",
            mtu: 1500,
            addresses: vec![address],
            ..Netdev::default()
        }
    }

    fn names(all: Vec<Netdev>) -> Vec<String> {
        usable(all).map(|netdev| netdev.name).collect()
    }

    #[test]
    fn without_a_carrier_an_interface_counts_only_where_none_has_one() {
        let lo = netdev("lo", true, true);
        let docker = netdev("docker0", true, true);
        let bridge = netdev("br-1", true, false);
        let off = netdev("eth1", false, false);
        let waiting = netdev("eth0", true, false);
        let alone = vec![lo.clone(), docker, bridge, off, waiting.clone()];
        assert_eq!(names(alone), ["lo", "docker0", "eth0"]);
        let lan = netdev("lan", true, true);
        assert_eq!(names(vec![lo.clone(), waiting.clone(), lan]), ["lo", "lan"]);
        // A carrier without an address leads nowhere.
        let mut bare = netdev("bare", true, true);
        bare.addresses.clear();
        assert_eq!(names(vec![lo, waiting, bare]), ["lo", "eth0", "bare"]);
    }
}
