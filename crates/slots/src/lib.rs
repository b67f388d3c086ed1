//! Slots: how a GPU exchanges data with the GPU of another host.
//!
//! For each directed pair of ranks there is an outbox at the sender and an inbox at the receiver,
//! of the same [`Shape`]: lanes, each with a row of slots. A kernel fills a slot of its outbox,
//! with a [`Record`] that describes it, and publishes it. A [`Carrier`] moves it into the peer's
//! inbox and sets its flag. The peer's kernel polls the flag, compares the record, reduces straight
//! out of the slot, and releases it. A [`Proxy`] posts and completes, and gives credits back.
//!
//! Numbers of slots, and all counters, are totals that never restart. So a graph that is launched
//! again continues where the last launch has ended, and the host does nothing for it.
//!
//! - An outbox slot is free once all of its writes have completed ([`Counter::Sent`]), and not
//!   because the peer has received it.
//! - An inbox slot is free once it was consumed ([`Counter::Credit`]). Credits are totals; the
//!   sender keeps the largest.
//!
//! `kernels/` has the GPU's part; it also compiles for a host, where tests run it by threads, also
//! with a carrier that moves slots late and in another order. This crate knows links by their
//! traits; it knows no CUDA and no engine.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod arguments;
mod carrier;
#[cfg(all(test, not(loom)))]
mod conformance;
mod copying;
mod counters;
#[cfg(all(test, not(loom)))]
mod delayed;
mod error;
mod layout;
#[cfg(not(all(test, loom)))]
mod linked;
mod memory;
#[cfg(all(test, loom))]
mod model;
mod packets;
#[cfg(not(all(test, loom)))]
mod parts;
mod plan;
#[cfg(all(test, not(loom)))]
mod played;
#[cfg(not(all(test, loom)))]
mod proxy;
mod route;
mod schedule;
mod slot;
#[cfg(all(test, not(loom)))]
mod written;

pub use arguments::{
    Boxes, Exchanging, FLOWS, Flow, MESSAGES, Mailing, Message, Passed, SlotMember,
};
pub use carrier::Carrier;
pub use copying::Copying;
pub use error::Error;
pub use layout::{MAX_DEPTH, Shape};
#[cfg(not(all(test, loom)))]
pub use linked::{Heard, Linked};
pub use memory::{Memory, PostBox};
pub use plan::{Kernel, Plan};
#[cfg(not(all(test, loom)))]
pub use proxy::{Progress, Proxy};
pub use route::Route;
pub use schedule::Form;
pub use slot::{Counter, Placement, Record, Slot};

/// The kernels, as `crates/cuda/kernels/build.sh` compiles them.
pub const IMAGES: &[u8] = include_bytes!("../kernels/slots.images");

/// The sources that must be the same on all ranks: kernels, plans, places in a box, and the
/// messages of links.
pub const ALIKE: [&[u8]; 10] = [
    include_bytes!("../kernels/manifest.json"),
    include_bytes!("plan.rs"),
    include_bytes!("schedule.rs"),
    include_bytes!("route.rs"),
    include_bytes!("layout.rs"),
    include_bytes!("memory.rs"),
    include_bytes!("parts.rs"),
    include_bytes!("linked/incoming.rs"),
    include_bytes!("linked/outgoing.rs"),
    include_bytes!("linked/tag.rs"),
];
