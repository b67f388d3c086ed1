//! RDMA verbs: devices, memory regions, queue pairs, completions.
//!
//! libibverbs is opened at run time ([`Library::open`]), so that a program runs where there is none,
//! and builds without its headers. From there it goes from object to object; each keeps what it
//! needs, so that all are destroyed in a right order, whatever is dropped first or never:
//!
//! ```text
//! Library -> Device -> Context -> ProtectionDomain -> QueuePair<Reset>, MemoryRegion, Registered, Exposed
//!                              -> CompletionChannel -> CompletionQueue
//! QueuePair<Reset> -> <Init> -> <Rtr> -> <Rts> -> Batch, Requests
//! ```
//!
//! Requests are posted in one of two ways. A [`Batch`] takes memory by its address: that is unsafe,
//! costs nothing but the call, and is what links are built on. [`Requests`] own their buffers
//! until they have ended: that is safe. Memory that peers write is [`Exposed`], which is copied from,
//! never borrowed.
//!
//! Errors name the call, what it was about, the attribute that was likely wrong, and what to do.
//!
//! # Why not the crate `ibverbs`
//!
//! Its version 0.9.2 is linked with libibverbs, so a program with it does not start without it. To
//! build it takes cmake and libclang, and 66 s of processor time on two cores, as it configures
//! rdma-core for its bindings. And it has sends and receives only: no writes, reads, atomics,
//! dma-bufs, event channels, or GIDs of other ports than the first. Here the types are made by bindgen
//! once and checked in; `bindings.sh` makes them, and compares them with the headers of Debian 12.
//! `tests/interop` has the two talk to each other.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod access;
mod address;
mod barrier;
mod batch;
mod buffer;
mod channel;
mod completion;
mod context;
mod device;
mod domain;
mod error;
mod event;
mod exposed;
mod gid;
mod hints;
mod library;
mod limits;
mod pair;
mod port;
mod post;
mod queue;
pub mod raw;
mod receives;
mod region;
mod requests;
mod sysfs;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use access::Access;
pub use address::{Piece, Remote};
pub use barrier::device_fence;
pub use batch::{Batch, Request};
pub use buffer::{Buffer, Refused, Registered};
pub use channel::CompletionChannel;
pub use completion::{Completion, CompletionError, Failure, Opcode, Status};
pub use context::Context;
pub use device::Device;
pub use domain::ProtectionDomain;
pub use error::{CallError, Error};
pub use event::AsyncEvent;
pub use exposed::Exposed;
pub use gid::{Gid, GidClass, GidEntry, GidKind};
pub use library::Library;
pub use limits::{Atomics, Limits};
pub use pair::{
    AddressError, AddressVector, CanReceive, Failed, Init, PairOptions, PairState, Peer, QueuePair,
    ReceiveOptions, Reset, Rtr, Rts, SendOptions,
};
pub use port::{LinkLayer, Mtu, Port, PortState};
pub use post::PostError;
pub use queue::{CompletionQueue, PollRoom, Polled};
pub use receives::ReceiveBatch;
pub use region::MemoryRegion;
pub use requests::{Ended, Requests, Ticket};
