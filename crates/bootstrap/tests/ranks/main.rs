//! Ranks that meet, or fail to: as threads, and as processes.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;
mod failures;
mod link_streams;
mod processes;
mod strangers;
mod tampering;
mod worlds;
