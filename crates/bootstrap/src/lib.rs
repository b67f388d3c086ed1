//! How ranks find, authenticate and connect to each other.
//!
//! Every rank connects to a rendezvous ([`UniqueId::create`], or rank 0 at a known address), where
//! both sides prove that they hold the same secret. Once all ranks have joined and agree, each gets
//! a [`Session`], which has the table of all ranks and opens authenticated streams to them.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use spark_ccl_bootstrap::{StreamKind, Options, StreamId, Session, UniqueId, Via};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = Options::default();
//! let id = UniqueId::create(&options)?;
//! let stream_id = StreamId { context: 0, kind: StreamKind::Control, number: 0 };
//! let deadline = Instant::now() + Duration::from_secs(60);
//! std::thread::scope(|scope| {
//!     let other = scope.spawn(|| {
//!         let session = Session::join(&id, 1, 2, &options)?;
//!         session.accept(0, stream_id, deadline)?;
//!         session.seal(Ok(()), deadline)
//!     });
//!     let session = Session::join(&id, 0, 2, &options)?;
//!     session.connect(1, stream_id, Via::Unix, deadline)?;
//!     session.seal(Ok(()), deadline)?;
//!     other.join().map_err(|_| "rank 1 panicked")??;
//!     Ok(())
//! })
//! # }
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod address;
mod cancel;
mod connect;
mod connector;
mod dial;
mod error;
mod frame;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod handshake;
mod handshake_chain;
mod hello;
mod hello_check;
mod host;
mod incoming;
mod init_result;
mod join;
mod keys;
mod link_streams;
mod listening;
mod local;
mod member;
mod negotiation;
mod net;
mod network;
mod options;
mod owner;
mod reachability;
mod relay;
mod reminder;
mod rendezvous;
mod root;
mod routes;
mod sealed_frame;
mod search;
mod secret;
mod server;
mod session;
mod session_thread;
mod stop;
mod stream_id;
mod stream_table;
mod unique_id;
mod wire;
mod wiring;

pub use address::Address;
pub use cancel::{Cancel, OnCancel};
pub use connect::Unreached;
pub use error::Error;
pub use hello::{Endpoint, MAX_NOTE, MAX_RANKS, PeerInfo};
pub use host::HostId;
pub use link_streams::{Delivery, StreamEnd, StreamHandler};
pub use negotiation::{Negotiation, NegotiationTurn};
pub use options::Options;
pub use root::Root;
pub use secret::Secret;
pub use session::Session;
pub use stream_id::{StreamId, StreamKind, Via};
pub use unique_id::UniqueId;
pub use wiring::Wiring;
