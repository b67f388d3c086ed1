//! RDMA verbs: devices, memory regions, queue pairs, completions.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

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
pub mod pair;
mod port;
mod queue;
pub mod raw;
mod region;
mod requests;
mod sysfs;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use barrier::device_fence;
pub use batch::{Batch, PostError, ReceiveBatch, Request};
pub use buffer::{Buffer, Refused, Registered};
pub use channel::CompletionChannel;
pub use completion::{Completion, CompletionError, Opcode, Status};
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
    AddressError, AddressVector, Failed, Init, PairOptions, PairState, Peer, QueuePair,
    ReceiveOptions, Reset, Rtr, Rts, SendOptions,
};
pub use port::{LinkLayer, Mtu, Port, PortState};
pub use queue::{CompletionQueue, PollRoom, Polled};
pub use region::{Access, MemoryRegion, Piece, Remote};
pub use requests::{Ended, Requests, Ticket};
