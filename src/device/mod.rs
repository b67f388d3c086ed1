//! Collectives of device memory.
//!
//! A communicator with a backend for GPUs has a [`StreamEngine`] beside the engine for host memory. What is here holds
//! for any such engine of CUDA's devices: buffers, the order of their uses in streams, groups. Engines are in folders of
//! their own; outside of them, only `opening.rs`, errors and texts name them.

mod block;
mod buffer;
mod communicator;
mod engine;
mod error;
mod gpu;
mod group;
mod memory;
pub(crate) mod nccl;
mod operands;
mod order;
mod pause;
mod site;
mod view;
mod view_mut;

pub(crate) use engine::StreamEngine;
pub(crate) use site::Site;

pub use buffer::{DevicePart, DeviceRecv, DeviceSend, DeviceSlice};
pub use engine::Registration;
pub use group::Group;
pub use memory::DeviceMemory;
pub use operands::DeviceOperands;
pub use view::DeviceView;
pub use view_mut::DeviceViewMut;
