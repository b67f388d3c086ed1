//! NCCL's ABI, of version 2.32.3, on spark-ccl: a `libnccl.so.2` for unchanged programs.
//!
//! [`exports`] is the table of all functions, implemented or refused. Layouts, numbers and meanings
//! are as NCCL documents them. Names of functions, parameters and members are those of NVIDIA's
//! `nccl.h`, which is under the Apache License 2.0; nothing else of its text is here. The part in
//! common with the library's own C interface is in `crates/abi`.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod allocation;
mod banner;
mod collectives;
mod comm;
mod config;
mod connection;
mod ending;
pub mod exports;
mod factors;
mod fallback;
mod forward;
mod groups;
mod growing;
mod info;
mod making;
mod memory;
mod operations;
mod params;
mod properties;
mod refusal;
mod rendezvous;
mod shadow;
mod simulation;
pub mod status;
mod teams;
pub mod types;
