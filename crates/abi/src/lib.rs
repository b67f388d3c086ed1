//! The common part of spark-ccl's libraries for C. It has handles of their objects ([`handles`]),
//! checked [`arguments`], and a guard that turns failures and panics into result codes
//! ([`failure`]). Calls are assembled ([`draft`]), and run later ([`started`], [`enqueued`]) or in
//! [`groups`].
//!
//! Each library has functions, structures and result codes of its own. A group belongs to a thread
//! and to the library that this is linked into.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod arguments;
mod comm;
mod copies;
pub mod draft;
pub mod enqueued;
pub mod failure;
pub mod groups;
pub mod handles;
pub mod started;

pub use comm::{Comm, Planned};
pub use spark_ccl_fork::Process;
