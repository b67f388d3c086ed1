//! Ranks that watch each other: as threads, and as processes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[macro_use]
#[path = "../common/mod.rs"]
mod common;
mod calls;
mod faults;
mod processes;
mod repair;
mod tampering;
mod worlds;
