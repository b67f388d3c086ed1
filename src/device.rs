//! Collectives of device memory.
//!
//! A communicator with a backend for GPUs has a [`StreamEngine`] beside the engine for host memory.
//! All such engines share what is here: buffers, the order of their uses in streams, groups. Each
//! engine has a folder of its own; outside of it, only `opening.rs`, `cuda.rs`, errors and texts
//! name it.

mod admission;
mod agreement;
mod allocation;
mod calls;
pub(crate) mod choice;
mod communicator;
mod engine;
mod group;
mod guard;
mod guarded;
pub(crate) mod kernels;
pub(crate) mod nccl;
mod notes;
mod operands;
mod order;
mod parts;
mod rank;
mod untyped;
mod waiting;

pub use engine::Registration;
pub(crate) use engine::StreamEngine;
pub use group::Group;
pub use operands::DeviceOperands;
pub use untyped::DeviceCall;
