//! What a schedule is made from: the collective, the algorithm and the sizes.

use std::fmt;
use std::str::FromStr;

use crate::hosts::Hosts;
use crate::step::Rank;

/// A collective operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Collective {
    /// Every rank gets the reduction of all vectors.
    AllReduce,
    /// Every rank gets the blocks of all ranks.
    AllGather,
    /// Every rank gets its block of the reduction of all vectors.
    ReduceScatter,
    /// Every rank gets the root's vector.
    Broadcast,
    /// The root gets the reduction of all vectors.
    Reduce,
    /// The root gets the blocks of all ranks.
    Gather,
    /// Every rank gets its block of the root's vector.
    Scatter,
    /// Every rank gets one block of every rank.
    AllToAll,
    /// Nobody leaves before everybody has entered.
    Barrier,
}

impl Collective {
    /// All collectives.
    pub const ALL: [Self; 9] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Broadcast,
        Self::Reduce,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
        Self::Barrier,
    ];

    /// The algorithms that [`schedule`](crate::schedule) knows for this collective.
    pub const fn algorithms(self) -> &'static [Algorithm] {
        use Algorithm::{
            Binomial, Chain, Direct, Dissemination, DoubleTree, HalvingDoubling, Hierarchical,
            Linear, OneSided, Pairwise, RecursiveDoubling, Ring,
        };
        match self {
            Self::AllReduce => &[
                Ring,
                Direct,
                RecursiveDoubling,
                DoubleTree,
                HalvingDoubling,
                Hierarchical,
                OneSided,
            ],
            Self::AllGather => &[Ring, Pairwise, Direct, OneSided],
            Self::ReduceScatter => &[Ring, Direct, OneSided],
            Self::Broadcast | Self::Reduce => &[Chain, Binomial, DoubleTree, OneSided],
            Self::Gather | Self::Scatter => &[Linear, OneSided],
            Self::AllToAll => &[Pairwise, OneSided],
            Self::Barrier => &[Dissemination],
        }
    }

    /// Whether one rank plays a special part.
    pub const fn is_rooted(self) -> bool {
        matches!(
            self,
            Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter
        )
    }

    /// Whether elements of different ranks are combined.
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }

    /// Elements of [`Buf::Input`](crate::Buf::Input) that `shape.rank` passes in.
    ///
    /// Where only the root passes something in, it is 0 for the others.
    pub const fn input_len(self, shape: &Shape) -> u64 {
        let is_root = shape.rank == shape.root;
        match self {
            Self::AllReduce | Self::AllGather | Self::Reduce | Self::Gather => shape.count,
            Self::ReduceScatter | Self::AllToAll => shape.count.saturating_mul(shape.size as u64),
            Self::Broadcast if is_root => shape.count,
            Self::Scatter if is_root => shape.count.saturating_mul(shape.size as u64),
            Self::Broadcast | Self::Scatter | Self::Barrier => 0,
        }
    }

    /// Elements of [`Buf::Output`](crate::Buf::Output) that `shape.rank` gets back.
    ///
    /// Where only the root gets something, it is 0 for the others.
    pub const fn output_len(self, shape: &Shape) -> u64 {
        let is_root = shape.rank == shape.root;
        match self {
            Self::AllReduce | Self::ReduceScatter | Self::Broadcast | Self::Scatter => shape.count,
            Self::AllGather | Self::AllToAll => shape.count.saturating_mul(shape.size as u64),
            Self::Reduce if is_root => shape.count,
            Self::Gather if is_root => shape.count.saturating_mul(shape.size as u64),
            Self::Reduce | Self::Gather | Self::Barrier => 0,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "all_to_all",
            Self::Barrier => "barrier",
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A way to do a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// Blocks travel around the ring of all ranks; the least bytes per link.
    Ring,
    /// Everyone sends to everyone; one message of latency.
    Direct,
    /// Partners at distance 1, 2, 4, ... exchange whole vectors.
    RecursiveDoubling,
    /// Partners at distance 1, 2, 4, ... exchange halves of what is left, and back; the least
    /// bytes at logarithmic latency.
    HalvingDoubling,
    /// Within hosts, between hosts, within hosts: the least bytes between hosts, shared out among
    /// the ranks of each.
    Hierarchical,
    /// A binomial tree; logarithmic latency.
    Binomial,
    /// Two complementary binary trees, each for half of the data.
    DoubleTree,
    /// A pipelined chain from (or to) the root.
    Chain,
    /// Everyone exchanges with one partner at a time.
    Pairwise,
    /// The root serves the ranks one after another.
    Linear,
    /// Signals at distance 1, 2, 4, ...
    Dissemination,
    /// Ranks read and write each other's registered memory.
    OneSided,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 12] = [
        Self::Ring,
        Self::Direct,
        Self::RecursiveDoubling,
        Self::HalvingDoubling,
        Self::Hierarchical,
        Self::Binomial,
        Self::DoubleTree,
        Self::Chain,
        Self::Pairwise,
        Self::Linear,
        Self::Dissemination,
        Self::OneSided,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Direct => "direct",
            Self::RecursiveDoubling => "recursive-doubling",
            Self::HalvingDoubling => "halving-doubling",
            Self::Hierarchical => "hierarchical",
            Self::Binomial => "binomial",
            Self::DoubleTree => "double-tree",
            Self::Chain => "chain",
            Self::Pairwise => "pairwise",
            Self::Linear => "linear",
            Self::Dissemination => "dissemination",
            Self::OneSided => "one-sided",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no [`Algorithm`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownAlgorithm(String);

impl fmt::Display for UnknownAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown algorithm `{}`; known are", self.0)?;
        for (i, known) in Algorithm::ALL.iter().enumerate() {
            write!(f, "{}{known}", if i == 0 { " " } else { ", " })?;
        }
        Ok(())
    }
}

impl std::error::Error for UnknownAlgorithm {}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    /// Reads what `Display` writes; case, `-` and `_` do not matter.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = |name: &str| name.replace(['-', '_'], "").to_ascii_lowercase();
        Self::ALL
            .into_iter()
            .find(|known| plain(known.name()) == plain(text))
            .ok_or_else(|| UnknownAlgorithm(text.to_owned()))
    }
}

/// The sizes of a collective, as one rank sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Whose schedule it is.
    pub rank: Rank,
    /// Number of ranks.
    pub size: u32,
    /// Elements: of the vector (`all_reduce`, `broadcast`, `reduce`); that each rank contributes
    /// (`all_gather`, `gather`) or receives (`reduce_scatter`, `scatter`); per pair of ranks
    /// (`all_to_all`).
    pub count: u64,
    /// The root, where there is one.
    pub root: Rank,
    /// The most elements that may be left unreceived on one link and channel, at least 1. A link
    /// must take twice as much without its receiver's help.
    pub chunk: u64,
    /// Who shares a host, for [`Algorithm::Hierarchical`]. `None`: not known, so all are taken to
    /// share one.
    pub hosts: Option<Hosts>,
}

/// Why there is no schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsupported {
    /// The collective asked for.
    pub collective: Collective,
    /// The algorithm asked for.
    pub algorithm: Algorithm,
    /// What is wrong.
    pub reason: &'static str,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no {} schedule for {}: {}",
            self.algorithm, self.collective, self.reason
        )
    }
}

impl std::error::Error for Unsupported {}
