//! CUDA's driver, loaded at run time: whether it is there, which devices it has, kernels that are
//! compiled for several GPUs, and the few operations that cudarc lacks.
//!
//! cudarc panics if libcuda, or one of its functions, is missing. [`open`] checks first, and
//! reports what is missing; nothing calls cudarc before it has succeeded. Functions that an old
//! driver may lack are a [`Feature`], which is checked where it is used. This crate knows nothing
//! about ranks, collectives or NCCL.
//!
//! cudarc's types are those of one version of CUDA, and it does not build with two. The feature
//! `cuda-version`, a default, selects 12.4. A program that selects another version in cudarc turns
//! it off. The driver may be of any version.
//!
//! ```no_run
//! for device in spark_ccl_cuda::devices()? {
//!     println!("{} {} {}", device.ordinal, device.bus_id, device.name);
//! }
//! # Ok::<(), spark_ccl_cuda::Error>(())
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod asked;
mod borrowed;
mod buffer;
mod copy;
mod current;
mod dependent;
mod device;
mod dma_buf;
mod driver;
mod error;
mod event;
mod function;
mod host_block;
mod ids;
mod images;
mod location;
mod mapping;
mod memory;
mod pack;
mod peers;
mod pointer;
mod pool;
mod rdma;
mod recorded;
mod set_aside;
mod stream;

pub use asked::{OneCall, one_call};
pub use borrowed::{CallStream, CaptureStreams, borrow_stream};
pub use buffer::{Buffer, Observed, Observer};
pub use copy::copy;
pub use cudarc;
pub use current::{KeptContext, current_device, keep_context, make_current};
pub use dependent::DependentLaunch;
pub use device::{
    Device, Traits, adopt, bus_id, context, count, devices, generation, multiprocessors, name,
    traits,
};
pub use dma_buf::DmaBuf;
pub use driver::{Feature, driver_version, open, require};
pub use error::{Error, checked};
pub use event::{elapsed_ms, record};
pub use function::Function;
pub use host_block::HostBlock;
pub use ids::stream_id;
pub use images::{Images, Kernels};
pub use memory::{DeviceBlock, PinnedWords};
pub use peers::{Reach, reach_between, reach_of};
pub use pointer::{bytes_from, device_of, is_device_only};
pub use pool::share_default_pool;
pub use rdma::{RdmaTraits, rdma_traits};
pub use recorded::{EventPool, RecordedEvent};
pub use set_aside::{
    MemoryKind, check_set_aside, devices_with_memory_set_aside, free_set_aside, has_set_aside,
    set_aside_bytes,
};
pub use stream::{
    OwnStream, Relaxed, capture_of, counted_stream, is_capturing, is_idle, is_of_the_thread,
    relaxed,
};
