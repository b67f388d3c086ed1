//! Collectives of device memory.
//!
//! A communicator with a backend for GPUs has a [`StreamEngine`] beside the engine for host memory.
//! All such engines share what is here: buffers, the order of their uses in streams, groups. Each
//! engine has a folder of its own; outside of it, only `opening.rs`, `cuda.rs`, errors and texts
//! name it.

mod admission;
mod agreement;
mod allocation;
mod block;
mod buffer;
mod calls;
pub(crate) mod choice;
mod communicator;
mod engine;
mod error;
mod gate;
mod gpu;
mod group;
mod guard;
mod guarded;
mod helper_thread;
pub(crate) mod kernels;
mod memory;
pub(crate) mod nccl;
mod notes;
mod operands;
mod order;
mod parts;
mod pause;
mod rank;
mod set_aside;
mod site;
mod untyped;
mod view;
mod view_mut;
mod waiting;

pub use buffer::{DevicePart, DeviceRecv, DeviceSend, DeviceSlice};
pub use engine::Registration;
pub(crate) use engine::StreamEngine;
pub use group::Group;
pub use memory::DeviceMemory;
pub use operands::DeviceOperands;
pub(crate) use site::Site;
pub use untyped::DeviceCall;
pub use view::DeviceView;
pub use view_mut::DeviceViewMut;
