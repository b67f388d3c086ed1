//! The control plane: tracks which ranks are alive and what each is doing, and spreads faults.
//!
//! A [`Monitor`] owns one rank's control streams to its [`neighbours`], and a thread that polls
//! them; ranks of one process share a board instead. Each communicator has a [`Watch`]. It records
//! the operations that this rank enters, announces what the rank waits for, and holds the first
//! [`Fault`] that reaches this rank from anywhere in the world.
//!
//! Faults and departures are flooded: each rank forwards each of them once to all its neighbours.
//! They reach every live rank in few hops, whichever rank fails, rank 0 included. Progress is not
//! flooded: each rank announces it to a few others (`state/notices.rs`). A rank that wants to know
//! how far the others are asks them (`state/inquiry.rs`).

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod agreement;
mod board;
mod comparison;
mod device_calls;
mod fault;
mod flood;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod history;
mod leave;
mod ledger;
mod member_record;
mod member_table;
mod monitor;
mod neighbour;
mod outbound;
mod pace;
mod proposal;
mod record;
mod repair;
mod service;
mod standing;
mod state;
mod strays;
mod topology;
mod view;
mod watch;
mod wire;

pub use agreement::{Agreement, Outcome, Rule, Sight, Step};
pub use device_calls::{DeviceCalls, DevicePart, Messages};
pub use fault::{DEVICE_MARK, FINALIZE, Fault, Late, Member, POINT_TO_POINT_MARK};
pub use leave::{Leave, MOST_CALLS};
pub use monitor::{Adopter, Monitor};
pub use proposal::{Bound, Proposal};
pub use repair::{Dial, NextHop, Redial, Unreached};
pub use standing::{Answer, KINDS, Presence, Standing, Wait};
pub use topology::neighbours;
pub use watch::Watch;
