//! Links between two ranks (shared memory, TCP, RDMA), and memory that ranks of one host share.
//!
//! A link carries *messages*: a tag and up to [`Geometry::slot_bytes`] of payload. Messages keep
//! their order. The sender fills a slot in the link's memory, and the receiver reads one there, so
//! data can be reduced and forwarded without another copy. No call blocks: "not yet" is `None` or
//! `false`.
//!
//! This crate knows nothing of collective operations or their algorithms.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

#[cfg(test)]
pub mod conformance;
#[cfg(test)]
pub mod fake;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod link;
pub mod memory;
pub mod rdma;
pub mod shm;
pub mod tcp;
mod upkeep;
mod wait;

pub use link::{
    Arrival, Borrowing, Direct, FAR_STORES_LEAST, Geometry, LEND_MOST, Lending, Lends, LinkError,
    LinkRx, LinkTx, PUT_PARTS, PutPart, Rails, Sending, SilentRail,
};
pub use spark_ccl_topology::netif;
pub use wait::{Bell, Wait};
