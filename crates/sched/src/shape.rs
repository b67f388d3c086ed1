//! The inputs of a schedule: the sizes. Knows no steps: those follow from it.

use std::fmt;

use spark_ccl_types::{Algorithm, Operation, Side};

use crate::hosts::Hosts;
use crate::step::Rank;

/// The sizes of an operation, for one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The rank that the schedule is for.
    pub rank: Rank,
    /// Number of ranks.
    pub size: u32,
    /// The number of elements: of the vector (`all_reduce`, `broadcast`, `reduce`); of what each
    /// rank contributes (`all_gather`, `gather`) or receives (`reduce_scatter`, `scatter`); for
    /// each pair of ranks (`all_to_all`).
    pub count: u64,
    /// The root, if the operation has one.
    pub root: Rank,
    /// The most elements that may be unreceived on one link and channel, at least 1. A link must
    /// hold twice as many until its receiver takes any.
    pub chunk: u64,
    /// Which ranks share a host, for [`Algorithm::Hierarchical`]. `None` means unknown, and is
    /// treated as a single host.
    pub hosts: Option<Hosts>,
}

impl Shape {
    /// The length of a buffer of [`rank`](Self::rank) in an operation; 0 for a buffer that only the
    /// root has.
    pub const fn elements(&self, operation: Operation, side: Side) -> u64 {
        if operation.uses(side, self.rank == self.root) {
            operation.extent(side).elements(self.count, self.size)
        } else {
            0
        }
    }
}

/// Why there is no schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsupported {
    /// The requested operation.
    pub operation: Operation,
    /// The requested algorithm.
    pub algorithm: Algorithm,
    /// The problem.
    pub reason: &'static str,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no {} schedule for {}: {}",
            self.algorithm, self.operation, self.reason
        )
    }
}

impl std::error::Error for Unsupported {}
