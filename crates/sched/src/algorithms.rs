//! The algorithms, one module per family. Each has a small `Copy` plan of one rank, from which it
//! computes the rank's steps; plans need at least two ranks and one element. Knows ranks and sizes;
//! knows neither memory nor links.

mod direct;
mod dissemination;
mod doubling;
mod halving;
mod hierarchical;
mod linear;
mod one_sided;
mod pairwise;
mod ring;
mod tree;

pub(crate) use direct::Direct;
pub(crate) use dissemination::Dissemination;
pub(crate) use doubling::Doubling;
pub(crate) use halving::Halving;
pub(crate) use hierarchical::Hierarchical;
pub(crate) use linear::Linear;
pub(crate) use one_sided::OneSided;
pub(crate) use pairwise::Pairwise;
pub use pairwise::{AllToAllV, all_to_all_v};
pub(crate) use ring::Ring;
pub(crate) use tree::{Node, Topology, Tree};
