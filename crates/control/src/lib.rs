//! Who is alive and what everyone is doing: faults, announcements, the monitor.
//!
//! A [`Monitor`] owns the control streams of one process to some of the others
//! ([`neighbours`]) and a thread that sleeps on them. Each communicator has a [`Watch`]: it
//! records the operations that are entered, tells the others what this rank waits for, and holds
//! the first [`Fault`] that this rank learns of, from wherever in the world it comes.
//!
//! What one rank learns, it passes on to all its neighbours once, so that news reaches everyone
//! that is alive in few hops and no single rank, not even rank 0, is needed for it. What it merely does, it tells a few
//! others; see `state/telling.rs`.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod fault;
mod flood;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod history;
mod link;
mod member_record;
mod monitor;
mod outbound;
mod pace;
mod repair;
mod roster;
mod state;
mod strays;
mod topology;
mod view;
mod watch;
mod wire;

pub use fault::{DEVICE, Fault, Late, Member, POINT_TO_POINT};
pub use monitor::{Adopter, Monitor};
pub use repair::{Dial, Redial, Unreached};
pub use topology::neighbours;
pub use watch::Watch;
