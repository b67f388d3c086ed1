//! Tests of the verbs on a real device, which may be a software device. Without a device they are
//! skipped.
//!
//! Both ends of a connection are in this process: on the first active port and another one on its
//! network, or both on the same port.

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
