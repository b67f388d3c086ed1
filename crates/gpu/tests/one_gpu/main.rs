//! All ranks on one GPU: every kernel, type and reduction, messages, graphs, ranks that are late,
//! never come, or do not agree. Results are compared bit by bit. All waits of the GPU end after a
//! few seconds.
//!
//! The CTAs of all ranks must be on the GPU at the same time, and each rank's stream must have a
//! hardware queue of its own. So the tests run one at a time.
#![allow(clippy::unwrap_used, clippy::panic)]

mod failures;
mod graphs;
mod host_memory;
mod joining;
mod kernels;
mod messages;
mod mixed;
mod once;
#[path = "../oracle/mod.rs"]
mod oracle;
mod place;
mod post;
