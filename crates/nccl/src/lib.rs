//! Safe bindings to NCCL: collectives between NVIDIA GPUs.
//!
//! libnccl is loaded at run time ([`Library::open`]): a program builds without CUDA, and runs on
//! machines without NCCL. Versions from 2.18 on are supported. Calls that an older version lacks
//! fail with [`Error::Unsupported`], which names the version that has them.
//!
//! ```no_run
//! use spark_ccl_nccl::{Communicator, DType, DeviceSlice, Error, Library, RedOp, Stream};
//!
//! /// Sums a million floats of each of two GPUs, in place.
//! fn sum(buffers: [*mut std::ffi::c_void; 2]) -> Result<(), Error> {
//!     let library = Library::open()?;
//!     let comms = Communicator::init_all(library, &[0, 1])?;
//!     library.group(|| {
//!         for (comm, start) in comms.iter().zip(buffers) {
//!             let device = comm.device()?;
//!             // SAFETY: nothing else uses the buffers until both streams have drained.
//!             let buffer = unsafe { DeviceSlice::from_raw(start, 1 << 20, DType::F32, device) };
//!             comm.all_reduce(buffer, buffer, RedOp::Sum, Stream::null(device))?;
//!         }
//!         Ok::<_, Error>(())
//!     })?;
//!     // Wait for the streams here, and poll `async_error` meanwhile.
//!     Communicator::finalize_all(comms)
//! }
//! ```
//!
//! Lengths, element types, devices, roots and peers are checked before NCCL is called. Device
//! memory and streams are passed by address. No borrow can follow a stream, so the caller that
//! creates a [`DeviceSlice`] or a [`Stream`] promises that the memory or the stream lives long
//! enough. Soundness does not depend on what is dropped, or when: a group keeps its communicators
//! alive, and what is still registered ends with its communicator.
//!
//! # Why cudarc, and only its types
//!
//! Programs commonly allocate their device memory with cudarc. It adds one crate and 3 to 5 s to a
//! clean build. Its loader is not used: it looks for `libnccl.so`, which few systems have, takes no
//! path, and panics if something is missing. Its enumerations are not used for values that a
//! library returns, because a later version may return a value that they lack.
//!
//! cudarc's features exclude each other: it does not build with two versions of CUDA, or of NCCL.
//! The feature `cuda-version`, a default, selects CUDA 12.4; a program that selects another one in
//! cudarc turns it off. NCCL's types are the same in all. They are those of NCCL 2.30, and a
//! program must not select another version of NCCL in cudarc. If a program enables cudarc's
//! `dynamic-linking`, the program is linked with libnccl as well.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod argument;
mod communicator;
mod config;
mod error;
mod library;
mod memory;
mod raw;
mod unique_id;
mod version;

pub use argument::ArgumentError;
pub use communicator::{
    CallTimeout, Communicator, MemoryStats, PreMulSum, Progress, RedOp, Registration, ShrinkMode,
    Window, WindowKind,
};
pub use config::{Config, CtaPolicy};
pub use error::{CallError, Code, Error, Refusal};
pub use library::Library;
pub use memory::{Allocation, DeviceSlice, Stream};
pub use spark_ccl_types::{DType, Element};
pub use unique_id::UniqueId;
pub use version::Version;
