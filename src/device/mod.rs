//! Collectives of device memory: NCCL behind the communicator.
//!
//! A communicator with [`Backend::Nccl`](crate::Backend::Nccl) has an [`Engine`] beside the one for host
//! memory, with a communicator of NCCL's that was made over the links of the ranks. Calls are enqueued in
//! streams, in which they run later; a thread of its own looks whether they do, and ends them when a rank
//! has died, or when they take too long.

mod attach;
mod block;
mod buffer;
mod calls;
mod communicator;
mod connection_key;
mod engine;
mod enqueue;
mod error;
mod gpu;
mod group;
mod guard;
mod helper_thread;
mod mark;
mod meeting;
mod memory;
mod operands;
mod order;
mod pause;
mod registration;
mod registration_table;
mod site;
mod waiting;

pub(crate) use attach::{attach, library};
pub(crate) use engine::Engine;
pub(crate) use site::Site;

pub use buffer::{DevicePart, DeviceRecv, DeviceSend, DeviceSlice};
pub use group::Group;
pub use memory::DeviceMemory;
pub use operands::DeviceOperands;
pub use registration_table::Registration;
