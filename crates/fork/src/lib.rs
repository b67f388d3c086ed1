//! What a forked child must leave alone.
//!
//! A child of `fork` has copies of all handles, but none of the threads behind them, and it shares sockets and
//! memory with its parent. So each handle knows its [`Process`]; a child's copies refuse to work, and take nothing
//! down ([`Owned`]). Descriptors whose end tells others that a process died are not left to children ([`Unshared`]), nor
//! is memory that other processes share ([`UnsharedMemory`]).
//! What all of a process share, each process has for itself ([`PerProcess`]). Who is at the other end of a socket, the
//! kernel knows ([`peer_process`]).
//!
//! A child is recognised by a handler of `pthread_atfork`, which costs nothing until there is a fork, and then one
//! relaxed load per question. `vfork` and `posix_spawn` do not call it, and need not: what comes of them runs
//! another program. Who calls `clone` of the kernel directly is not recognised.

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

pub use owned::Owned;
pub use peer::peer_process;
pub use per_process::PerProcess;
pub use process::{Forked, Process};
pub use unshared::Unshared;
pub use unshared_memory::UnsharedMemory;
