//! Collectives between the GPUs of a host, by kernels of this library.
//!
//! A kernel's warps push their data into the scratch memory of the peers' GPUs, with flags in the
//! data, and wait for the data of the peers. There are no barriers and no calls of the host, and
//! buffers may be anywhere. `kernels/` has the protocols; their headers also compile for a host,
//! where `tests/host.rs` runs them with threads.
//!
//! - [`Plan::new`] says which kernel an operation takes, and on how large a grid. It is a pure
//!   function of what all ranks know.
//! - [`Scratch::new`] allocates a rank's memory, and [`Scratch::export`] gives a descriptor of it.
//!   The caller passes that to a peer: a process or a thread, on the same GPU or on another one.
//! - [`Member::join`] maps the peers' scratch, and loads the kernels. Ranks share nothing else.
//! - GPUs of a host that do not reach each other's memory have their scratch in memory of the host:
//!   [`Scratch::in_host`], [`Member::join_in_host`].
//! - [`Member::enqueue`] launches an operation in a stream, or captures it into a graph.
//! - [`Member::pass`] passes [messages](Message) between pairs, in which other ranks take no part.
//! - [`Member::check`] says whether an operation has failed, and names the peer.
//! - [`Stage`] is for ranks that share no memory: kernels pass their data to the host, and take
//!   results from it.
//! - [`Slots`] are also for ranks that share no memory: kernels fill slots, the host carries these
//!   to the other ranks, and kernels reduce there.
//!
//! **Ranks agree.** In each operation, ranks compare [`Call::words`], which they have signed. If a
//! peer has made a different call, a rank fails, and names both calls. So does the receiver of a
//! message of another type or length.
//!
//! **Nothing hangs.** Kernels look at the clock, and at the host's memory, once in many polls. A
//! wait ends when the [patience](Member::set_patience) is over, or when [`Member::abort`] was
//! called. The rank's scratch is no longer in step then: later operations only return the error.
//!
//! **Bits.** Results have the same bits on all ranks. Ranks are combined in their order; floats of
//! less than 32 bits are computed in 32, and rounded once, at the end. For a mean, floats are
//! multiplied by 1/ranks, in the bits that they are computed in, before they are added; integers
//! are divided at the end. Before a sum with factors, each rank's elements are multiplied by its
//! own, and rounded. NaN and zeros are as in `spark-ccl-compute`.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod call;
mod channels;
mod error;
mod flows;
mod kept;
mod kernels;
mod launch;
mod layout;
mod loaded;
mod mailbox;
mod member;
mod message;
mod plan;
mod revision;
mod scratch;
mod slot_kernels;
mod slots;
mod staged;
mod sums;
#[cfg(test)]
mod trace;
mod turns;

pub use call::Call;
pub use error::Error;
pub use layout::MAX_RANKS;
pub use member::{Member, Settings};
pub use message::{Message, MessageDirection};
pub use plan::{Kernel, Limits, Plan, Wire};
pub use revision::REVISION;
pub use scratch::Scratch;
pub use slots::{Calls, Slots};
pub use staged::{Buffers, Cut, Lane, Rung, Stage};
