//! Pairs the ports of two ranks that reach each other into rails.
//!
//! Both ranks have both lists of ports. [`candidates`] finds, by their addresses, the pairs that
//! may be on one network. The ranks probe these, and [`choose`] makes rails of the pairs that
//! answered. Both are pure functions with the same result on both ranks, so the ranks agree without
//! further messages.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::{Gid, Port};
use crate::netif::same_subnet;

/// Two ports that may reach each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its two ends.
    pub rail: Rail,
    /// Whether the addresses prove the connection: the subnet is known, and no other port of either
    /// rank is on it. Otherwise only a probe can tell.
    pub certain: bool,
}

/// A path from a port of this rank to a port of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rail {
    /// This rank's end.
    pub own: RailEnd,
    /// The peer's end.
    pub peer: RailEnd,
}

/// An end of a rail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RailEnd {
    /// The port's index in its rank's list.
    pub port: usize,
    /// The name of its device and its number, as written in settings.
    pub name: String,
    /// The address that it uses.
    pub gid: Gid,
}

/// Why no port reaches a peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoRail {
    /// This rank has no port.
    #[error("this rank has no RDMA port to use")]
    NoOwnPort,
    /// The peer has no port.
    #[error("the peer has no RDMA port to use")]
    NoPeerPort,
    /// No address of one rank is on a network with an address of the other.
    #[error("no RDMA port here ({own}) has a subnet in common with one of the peer ({peer})")]
    Apart {
        /// This rank's ports.
        own: String,
        /// The peer's.
        peer: String,
    },
    /// None of the pairs that were tried answers.
    #[error(
        "none of these RDMA ports answers: {tried}; are the cables plugged in, and do the ports \
         have the same MTU?"
    )]
    Unreachable {
        /// The pairs that were tried.
        tried: String,
    },
}

/// The pairs of ports that may reach each other, best first. Both ranks get the same pairs in the
/// same order, if each passes its own list as [`encode`](super::encode) left it. One of them alone
/// is `first`, for example the lower rank.
///
/// # Errors
/// When there are none.
pub fn candidates(own: &[Port], peer: &[Port], first: bool) -> Result<Vec<Candidate>, NoRail> {
    if own.is_empty() {
        return Err(NoRail::NoOwnPort);
    }
    if peer.is_empty() {
        return Err(NoRail::NoPeerPort);
    }
    let pairs = if first {
        pairs(own, peer)
    } else {
        pairs(peer, own)
    };
    if pairs.is_empty() {
        return Err(NoRail::Apart {
            own: list(own),
            peer: list(peer),
        });
    }
    let counts = [0, 1].map(|side| counts(pairs.iter().map(|pair| pair[side].port)));
    let candidate = |pair: &[RailEnd; 2]| {
        let is_alone = |side: usize| counts[side].get(&pair[side].port) == Some(&1);
        let alone = is_alone(0) && is_alone(1);
        let [here, there] = pair.clone();
        let (own, peer) = if first { (here, there) } else { (there, here) };
        Candidate {
            certain: alone && pair.iter().all(|end| end.gid.names_a_network()),
            rail: Rail { own, peer },
        }
    };
    Ok(pairs.iter().map(candidate).collect())
}

/// The number of times that each port is named.
fn counts(ports: impl Iterator<Item = usize>) -> BTreeMap<usize, usize> {
    let mut counts = BTreeMap::new();
    for port in ports {
        *counts.entry(port).or_default() += 1;
    }
    counts
}

/// The rails to use: the best of the candidates that answered, each port at most once.
///
/// A port reaches exactly the ports on its own network, so no choice here costs another pair its
/// rail.
///
/// # Errors
/// When nothing answered.
pub fn choose(candidates: &[Candidate], answered: &[bool]) -> Result<Vec<Rail>, NoRail> {
    let mut rails: Vec<Rail> = Vec::new();
    for (Candidate { rail, .. }, _) in candidates
        .iter()
        .zip(answered)
        .filter(|(_, answered)| **answered)
    {
        let is_taken =
            |other: &Rail| other.own.port == rail.own.port || other.peer.port == rail.peer.port;
        if !rails.iter().any(is_taken) {
            rails.push(rail.clone());
        }
    }
    if rails.is_empty() {
        let tried: Vec<_> = candidates.iter().map(|one| one.rail.to_string()).collect();
        let tried = tried.join(", ");
        return Err(NoRail::Unreachable { tried });
    }
    Ok(rails)
}

/// The pairs of two ranks' ports that may reach each other, best first.
fn pairs(first: &[Port], second: &[Port]) -> Vec<[RailEnd; 2]> {
    let mut found = Vec::new();
    let there = in_order(second);
    for (row, (a, twin)) in in_order(first).into_iter().enumerate() {
        for (column, &(b, other_twin)) in there.iter().enumerate() {
            if let Some(gids) = common_network(&first[a], &second[b]) {
                let (kind, link_local, _) = gids[0].preference();
                // Twins share a cable. Pairing first with first, and second with second, gives one
                // rail each.
                let key = (kind, link_local, twin != other_twin, row, column);
                let ends = [
                    RailEnd::new(first, a, gids[0]),
                    RailEnd::new(second, b, gids[1]),
                ];
                found.push((key, ends));
            }
        }
    }
    found.sort_by_key(|&(key, _)| key);
    found.into_iter().map(|(_, ends)| ends).collect()
}

/// A rank's ports by cage, each with its index among those of its cage.
///
/// One cage appears as several PCI devices in separate domains: `0000:01:00.0` and `0002:01:00.0`
/// are twins.
fn in_order(ports: &[Port]) -> Vec<(usize, usize)> {
    let cage = |port: usize| {
        let (domain, function) = ports[port].pci.as_deref()?.split_once(':')?;
        let domain = u32::from_str_radix(domain, 16).ok()?;
        Some(((function, ports[port].number), domain))
    };
    let mut order: Vec<_> = (0..ports.len()).collect();
    order.sort_by_key(|&port| (cage(port), &ports[port].device, ports[port].number));
    let twin = |(place, &port): (usize, &usize)| {
        let same = |other: &&usize| {
            let cages = [cage(port), cage(**other)].map(|cage| cage.map(|(cage, _)| cage));
            cages[0].is_some() && cages[0] == cages[1]
        };
        (port, order[..place].iter().filter(same).count())
    };
    order.iter().enumerate().map(twin).collect()
}

/// The best addresses of two ports on one network. Only the best kind that both have counts. Every
/// port has a link-local IPv6 address, which would only say "perhaps" even if the IPv4 addresses
/// show that the two ports are on different networks.
fn common_network(a: &Port, b: &Port) -> Option<[Gid; 2]> {
    let kinds = |port: &Port| port.gids.iter().map(Gid::kind).collect::<BTreeSet<_>>();
    let best = *kinds(a).intersection(&kinds(b)).next()?;
    let of_best = |port: &Port| {
        let gids = port.gids.iter().copied();
        gids.filter(|gid| gid.kind() == best).collect::<Vec<_>>()
    };
    let there = of_best(b);
    let pairs = of_best(a)
        .into_iter()
        .flat_map(|x| there.iter().map(move |y| [x, *y]));
    pairs
        .filter(|[x, y]| may_reach(x, y))
        .min_by_key(|[x, y]| (x.preference(), y.preference()))
}

/// Whether two addresses are in one subnet, or may be because neither prefix length is known.
fn may_reach(a: &Gid, b: &Gid) -> bool {
    // The longer prefix counts: the addresses must be in one subnet for both ends.
    let prefix = a.prefix.max(b.prefix);
    prefix.is_none_or(|prefix| same_subnet(a.ip(), b.ip(), prefix))
}

fn list(ports: &[Port]) -> String {
    let texts: Vec<_> = ports.iter().map(Port::to_string).collect();
    texts.join(", ")
}

impl Gid {
    /// Whether its subnet identifies a network.
    fn names_a_network(&self) -> bool {
        self.prefix.is_some() && !self.is_link_local()
    }
}

impl RailEnd {
    fn new(ports: &[Port], port: usize, gid: Gid) -> Self {
        let Port { device, number, .. } = &ports[port];
        let name = format!("{device}:{number}");
        Self { port, name, gid }
    }
}

impl fmt::Display for RailEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.gid)
    }
}

impl fmt::Display for Rail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.own, self.peer)
    }
}

#[cfg(test)]
pub(super) mod tests;
