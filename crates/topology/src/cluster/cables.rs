//! Groups rails into cables: rails with the same cage at both ends share a cable.

use std::collections::BTreeMap;

use super::rails::HostRail;
use crate::Host;
use crate::cages::cages;

/// A cable, or a way through a switch, between cages of two hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cable {
    /// Its ends, the host with the lower index first.
    pub ends: [CableEnd; 2],
    /// The indices of the rails that it carries.
    pub rails: Vec<usize>,
}

/// An end of a cable.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CableEnd {
    /// The index of the host.
    pub host: usize,
    /// The identities of the card in the host, and of the cage on the card; `None` for an interface
    /// without an RDMA device.
    pub cage: Option<(String, String)>,
    /// The end's name: that of the cage, such as `p0`, or of the interface.
    pub name: String,
}

impl Cable {
    /// The end at this host, then the other end; `None` if the cable does not end at the host.
    pub fn seen_from(&self, host: usize) -> Option<[&CableEnd; 2]> {
        let [a, b] = &self.ends;
        if a.host == host {
            Some([a, b])
        } else {
            (b.host == host).then_some([b, a])
        }
    }
}

/// The cables that carry the rails of these indices.
pub(super) fn cables(
    hosts: &[Host],
    rails: &[HostRail],
    indices: impl IntoIterator<Item = usize>,
) -> Vec<Cable> {
    let mut found: BTreeMap<[CableEnd; 2], Vec<usize>> = BTreeMap::new();
    for index in indices {
        let ends = [0, 1].map(|side| {
            let end = &rails[index].ends[side];
            end_of(&hosts[end.host], end.host, &end.netdev)
        });
        found.entry(ends).or_default().push(index);
    }
    let cables = found.into_iter();
    cables.map(|(ends, rails)| Cable { ends, rails }).collect()
}

/// The end of the cable at an interface.
fn end_of(host: &Host, index: usize, netdev: &str) -> CableEnd {
    let cages = cages(host);
    let cage = cages.iter().find(|cage| {
        let mut ends = cage.ends.iter();
        ends.any(|end| end.port.netdev.as_deref() == Some(netdev))
    });
    CableEnd {
        host: index,
        cage: cage.map(|cage| (cage.card.clone(), cage.name.clone())),
        name: cage.map_or_else(|| netdev.to_owned(), |cage| cage.name.clone()),
    }
}
