//! Keeps a forked child from disturbing its parent's handles, connections and shared memory.
//!
//! A child of `fork` has copies of all handles, but none of the threads behind them, and it shares
//! sockets and memory with its parent. Each handle therefore stores the [`Process`] that made it.
//! In a child, copies of handles return errors, and dropping them releases nothing ([`Owned`]).
//! Children do not keep descriptors whose closing tells peers that the process died ([`Unshared`]),
//! nor memory shared with other processes ([`UnsharedMemory`]). Statics are separate for each
//! process ([`PerProcess`]). [`peer_process`] asks the kernel which process is at the other end of
//! a socket, and [`peer_user`] which user. [`within`] gives a deadline to calls that have none,
//! [`lookup`] to the lookup of a host name.
//!
//! This crate depends on no other crate of the workspace.
//!
//! A handler registered with `pthread_atfork` recognises children. It costs nothing until there is
//! a fork; a check is one relaxed load. `vfork` and `posix_spawn` do not call the handler and need
//! not, because their children run another program. Children made by a direct `clone` system call
//! are not recognised.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod descriptors;
mod list;
mod owned;
mod peer;
mod per_process;
mod process;
mod ranges;
mod unshared;
mod unshared_memory;
mod within;

pub use owned::Owned;
pub use peer::{peer_process, peer_user};
pub use per_process::PerProcess;
pub use process::{Forked, Process};
pub use unshared::Unshared;
pub use unshared_memory::UnsharedMemory;
pub use within::{lookup, lookup_while, within, within_while};
