//! The verbs on a real device, which may be a software one. Without a device the tests are skipped.
//!
//! The two ends of a connection are in this process: on the first port that works and one on its
//! network, or twice on the same.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod addresses;
mod devices;
mod ends;
mod events;
mod faults;
mod kernel;
mod memlock;
mod network;
mod ownership;
mod regions;
mod transfers;
mod waiting;
