//! NCCL, safely: collectives between NVIDIA's GPUs.
//!
//! libnccl is opened at run time ([`Library::open`]), so that a program runs where there is none, and
//! builds without CUDA. Versions from 2.18 on work; what an older one lacks is
//! [`Error::Unsupported`], which names the version that has it.
//!
//! ```no_run
//! use spark_ccl_nccl::{Communicator, DType, DeviceSlice, Error, Library, RedOp, Stream};
//!
//! /// Sums a million floats of each of two GPUs, in place.
//! fn sum(buffers: [*mut std::ffi::c_void; 2]) -> Result<(), Error> {
//!     let library = Library::open(None)?;
//!     let comms = Communicator::init_all(library, &[0, 1])?;
//!     library.group(|| {
//!         for (comm, start) in comms.iter().zip(buffers) {
//!             let device = comm.device()?;
//!             // SAFETY: nothing else uses the buffers until the streams have come to their ends.
//!             let buffer = unsafe { DeviceSlice::from_raw(start, 1 << 20, DType::F32, device) };
//!             comm.all_reduce(buffer, buffer, RedOp::Sum, Stream::null(device))?;
//!         }
//!         Ok::<_, Error>(())
//!     })?;
//!     // Here the streams are waited for, while `async_error` is asked now and then.
//!     Communicator::finalize_all(comms)
//! }
//! ```
//!
//! Lengths, element types, devices, roots and peers are checked before NCCL is called. Device memory
//! and streams enter by their addresses; whoever makes a [`DeviceSlice`] or a [`Stream`] of one promises
//! that it lasts, since no borrow can follow a stream. Nothing depends on what is dropped, or when: a
//! group keeps its communicators, and what is not deregistered goes with its communicator.
//!
//! # Why cudarc, and only its types
//!
//! cudarc is what programs have their device memory from. It adds one crate and 3 to 5 s to a clean
//! build. Its loader is not used: it looks for `libnccl.so`, which few systems have, takes no path, and
//! panics where something is missing. Its enumerations are not used for what a library returns: one of
//! a later version may return another value.
//!
//! cudarc's features exclude each other: with two versions of CUDA, or of NCCL, it does not build. So
//! none is named here for CUDA: it takes the program's choice, or the build machine's, or its newest,
//! which makes no difference to NCCL's types. These are of NCCL 2.30; a program must not ask cudarc for
//! others. Where it asks for `dynamic-linking`, it is linked with libnccl as well.

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
    Communicator, MemoryStats, Patience, PreMulSum, Progress, RedOp, Registration, ShrinkMode,
    Window, WindowKind,
};
pub use config::{Config, CtaPolicy};
pub use error::{CallError, Code, Error, Refusal};
pub use library::Library;
pub use memory::{Allocation, DeviceSlice, Stream};
pub use spark_ccl_types::{DType, Element};
pub use unique_id::UniqueId;
pub use version::Version;
