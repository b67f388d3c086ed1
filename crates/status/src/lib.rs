//! The formats in which tools read about running communicators, as pure functions of plain data.
//! They are NCCL's RAS protocol ([`ras`]), records of the last operations in the form of PyTorch's
//! flight recorder ([`record`]), and the formats of NCCL's inspector ([`inspector`]).
//!
//! Nothing here opens a file or a socket, or knows what a communicator is. `src/observe` of the
//! library collects the data.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod clock;
mod entry;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod inspector;
mod names;
mod pickle;
pub mod ras;
pub mod record;

pub use entry::{Entry, Peer};
