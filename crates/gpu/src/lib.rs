//! Collectives between the GPUs of a host, by kernels of this library.
//!
//! A kernel's warps push what they have into the scratch memory of the peers' GPUs, with flags in the
//! data, and wait for what the peers push: there are no barriers, no calls of the host, and buffers
//! may be anywhere. `kernels/` has the protocols; their headers also compile for a host, where
//! `tests/protocol.rs` runs them with threads.
//!
//! - [`Plan::new`] says which kernel an operation takes, and on how large a grid. It is a pure
//!   function of what all ranks know.
//! - [`Arena::in_process`] makes the scratch of ranks that are threads of one process, on one GPU or on
//!   several; [`Member::all_of`] gives each rank its part.
//! - [`Member::enqueue`] launches an operation in a stream, or captures it into a graph.
//! - [`Member::check`] says whether a wait has ended in vain, and for which peer.
//!
//! **Nothing hangs.** Kernels look at the clock, and at a word in the host's memory, once in many polls.
//! A wait ends when the settings' patience is over, or when [`Member::abort`] was called. The ranks'
//! scratch is no longer in step then: later operations do nothing but return the error.
//!
//! **Bits.** All ranks have the same. Ranks are combined in their order; floats of less than 32 bits
//! are computed in 32, and rounded once, at the end. A mean is the sum divided by the number of
//! ranks. NaN and zeros are as in `spark-ccl-compute`.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod arena;
mod call;
mod error;
mod kernels;
mod layout;
mod member;
mod plan;

pub use arena::{Arena, Settings};
pub use call::Call;
pub use error::Error;
pub use layout::MAX_RANKS;
pub use member::Member;
pub use plan::{Kernel, Limits, Plan};
