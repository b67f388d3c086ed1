//! Collectives of device memory.
//!
//! A communicator with a backend for GPUs has an [`Engine`](crate::engine::Engine) beside the one
//! for host memory. All engines of devices share this folder's files: the order of their uses of
//! memory in streams, and groups. Each has a folder of its own; outside of it, only `choice.rs`,
//! `cuda.rs`, errors and texts name it.

mod admission;
mod agreement;
mod allocation;
mod calls;
mod choice;
mod communicator;
mod group;
mod guard;
mod kernels;
pub(crate) mod nccl;
mod notes;
mod operands;
mod order;
mod parts;
mod rank;
mod untyped;
mod waiting;
mod watched_engine;

pub(crate) use choice::attach;
pub use group::Group;
pub use operands::DeviceOperands;
pub use untyped::DeviceCall;
