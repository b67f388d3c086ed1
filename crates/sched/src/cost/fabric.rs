//! How ranks are connected.

use super::LinkCost;
use crate::hosts::Hosts;
use crate::rounds::{after, before};
use crate::step::Rank;

/// How ranks are connected. Every rank sends through one port and receives through another (or
/// through those of its host). Messages that pass a port at the same time share its bandwidth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fabric {
    /// A switch that is never the bottleneck.
    Switch(LinkCost),
    /// Cables between neighbouring ranks, and between the last and the first. Ranks forward
    /// messages for others the shorter way around, through their own ports.
    Cables(LinkCost),
    /// Hosts of `per_host` consecutive ranks, with a switch between the hosts.
    Hosts {
        /// The ranks of each host, at least 1; the last host may have fewer.
        per_host: u32,
        /// The network cards of each host, at least 1: the rank at position `i` of a host uses card
        /// `i % cards`.
        cards: u32,
        /// The links between ranks of a host; every rank has ports of its own.
        inside: LinkCost,
        /// The links between hosts; the ports are those of the cards.
        across: LinkCost,
    },
}

/// One hop of a route: out of one port and into another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hop {
    pub(super) out: usize,
    pub(super) into: usize,
}

/// The ports of a rank: out and in, within its host and to other hosts.
pub(super) const PORTS: usize = 4;

impl Fabric {
    /// Each rank's view of the hosts, among `ranks` ranks. If every rank is a host of its own,
    /// consecutive ranks are grouped as if they were a host. The group size is the largest divisor
    /// up to the square root of the number of ranks: two short rings instead of a long one.
    pub fn hosts(&self, ranks: u32) -> Vec<Hosts> {
        let per_host = self.per_host(ranks);
        let host_of: Vec<_> = (0..ranks).map(|rank| rank / per_host).collect();
        Hosts::of_all(&host_of)
    }

    /// The cost of each hop of a message from one rank to another.
    pub fn link(&self, from: Rank, to: Rank) -> &LinkCost {
        match self {
            Self::Switch(link) | Self::Cables(link) => link,
            Self::Hosts {
                per_host,
                inside,
                across,
                ..
            } => {
                if from / per_host == to / per_host {
                    inside
                } else {
                    across
                }
            }
        }
    }

    /// The slowest link among `ranks` ranks.
    pub(super) fn outer(&self, ranks: u32) -> &LinkCost {
        self.link(0, ranks.max(1) - 1)
    }

    /// The number of ranks that count as a host, among `ranks` ranks.
    pub(super) fn per_host(&self, ranks: u32) -> u32 {
        match self {
            Self::Hosts { per_host, .. } => *per_host,
            Self::Switch(_) | Self::Cables(_) => {
                let root = ranks.isqrt().max(1);
                let divides = |part: &u32| ranks.is_multiple_of(*part);
                (1..=root).rev().find(divides).unwrap_or(1)
            }
        }
    }

    /// The route of a message among `ranks` ranks.
    pub(super) fn route(&self, from: Rank, to: Rank, ranks: u32) -> impl Iterator<Item = Hop> {
        let ahead = before(to, from, ranks);
        let is_forward = ahead <= ranks - ahead;
        let (hops, kind) = match self {
            Self::Cables(_) => (ahead.min(ranks - ahead), 0),
            Self::Hosts { per_host, .. } if from / per_host != to / per_host => (1, 2),
            Self::Switch(_) | Self::Hosts { .. } => (1, 0),
        };
        let owner = move |stop: u32| match *self {
            Self::Cables(_) if is_forward => after(from, stop, ranks),
            Self::Cables(_) => before(from, stop, ranks),
            Self::Hosts {
                per_host, cards, ..
            } if kind > 0 => {
                let rank = if stop == 0 { from } else { to };
                rank - rank % per_host + rank % per_host % cards
            }
            Self::Switch(_) | Self::Hosts { .. } if stop == 0 => from,
            Self::Switch(_) | Self::Hosts { .. } => to,
        };
        (0..hops).map(move |hop| Hop {
            out: owner(hop) as usize * PORTS + kind,
            into: owner(hop + 1) as usize * PORTS + kind + 1,
        })
    }
}
