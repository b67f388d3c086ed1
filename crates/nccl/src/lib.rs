//! NCCL, safely.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod argument;
mod error;
mod library;
mod memory;
mod raw;
mod version;

pub use argument::ArgumentError;
pub use error::{CallError, Code, Error, Refusal};
pub use library::Library;
pub use memory::{Allocation, DeviceSlice, Stream};
pub use version::Version;
