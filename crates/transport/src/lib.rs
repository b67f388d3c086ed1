//! Links between two ranks, and memory that ranks of one host share.
//!
//! A link carries *messages*: a tag and up to [`Geometry::slot_bytes`] of payload, in order on each
//! *channel*, with no order between channels. A sender fills a slot that the link lends, a receiver
//! reads a slot that the link lends, so that data is reduced and forwarded straight out of and into
//! the link's own memory. Every call answers at once: "not yet" is `None` or `false`.

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
pub mod netif;
pub mod rdma;
pub mod shm;
pub mod tcp;
mod wait;

pub use link::{
    Arrival, Borrowing, Direct, Geometry, LEND_MOST, Lending, Lends, LinkError, LinkRx, LinkTx,
    Rails,
};
pub use wait::{Bell, Wait};
