//! The algorithms, and which operation has which.

use std::fmt;
use std::str::FromStr;

use crate::listed::listed;
use crate::operation::Operation;

listed! {
    /// How an operation is done.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Algorithm {
        /// Blocks travel around the ring of all ranks: the fewest bytes per link.
        Ring,
        /// Each rank sends to every other: the latency of one message.
        Direct,
        /// Partners at distance 1, 2, 4, ... exchange whole vectors.
        RecursiveDoubling,
        /// Partners at distance 1, 2, 4, ... exchange halves of what is left, and back: the fewest
        /// bytes at logarithmic latency.
        HalvingDoubling,
        /// Within hosts, between hosts, within hosts: the fewest bytes between hosts, divided among
        /// the ranks of each host.
        Hierarchical,
        /// A binomial tree: logarithmic latency.
        Binomial,
        /// Two complementary binary trees, each for half of the data.
        DoubleTree,
        /// A pipelined chain from (or to) the root.
        Chain,
        /// Each rank exchanges with one partner at a time.
        Pairwise,
        /// The root serves the ranks one after another.
        Linear,
        /// Signals at distance 1, 2, 4, ...
        Dissemination,
        /// Ranks read and write each other's registered memory.
        OneSided,
    }
}

impl Algorithm {
    /// The algorithms of an operation; empty if it has no schedule.
    pub const fn of(operation: Operation) -> &'static [Self] {
        match operation {
            Operation::AllReduce => &[
                Self::Ring,
                Self::Direct,
                Self::RecursiveDoubling,
                Self::DoubleTree,
                Self::HalvingDoubling,
                Self::Hierarchical,
                Self::OneSided,
            ],
            Operation::AllGather => &[Self::Ring, Self::Pairwise, Self::Direct, Self::OneSided],
            Operation::ReduceScatter => &[Self::Ring, Self::Direct, Self::OneSided],
            Operation::Broadcast | Operation::Reduce => &[
                Self::Chain,
                Self::Binomial,
                Self::DoubleTree,
                Self::OneSided,
            ],
            Operation::Gather | Operation::Scatter => &[Self::Linear, Self::OneSided],
            Operation::AllToAll => &[Self::Pairwise, Self::Direct, Self::OneSided],
            // Ranks synchronize before they allocate.
            Operation::Barrier | Operation::Alloc => &[Self::Dissemination],
            Operation::AllToAllV | Operation::Send | Operation::Recv | Operation::SendRecv => &[],
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
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

/// The error for an unknown [`Algorithm`].
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

    /// Parses the output of `Display`; ignores case, `-` and `_`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = |name: &str| name.replace(['-', '_'], "").to_ascii_lowercase();
        Self::ALL
            .into_iter()
            .find(|known| plain(known.name()) == plain(text))
            .ok_or_else(|| UnknownAlgorithm(text.to_owned()))
    }
}
