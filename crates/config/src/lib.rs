//! The library's only reader of the environment: typed settings, each with its origin.
//!
//! [`Env`] is a snapshot of all variables and their origins: the process environment, NCCL's
//! configuration files, and code. [`Settings`] has the checked values, and lists of the variables
//! that were used, that have no effect, and that look wrong.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod algorithm;
mod choice;
mod env;
mod error;
mod file;
pub mod files;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod gpu;
mod helpers;
mod log;
mod nccl;
mod nearest;
mod observe;
mod parse;
mod pattern;
mod rdma;
mod reader;
mod secret;
mod settings;
mod tuning;
mod tuning_file;
mod variables;

pub use algorithm::{AlgorithmChoice, ParseAlgorithmsError};
pub use choice::{Backend, Family, GpuProtocol, HostPort, InterfaceChoice, Net, Path, SingleCopy};
pub use env::{Env, Origin, Value};
pub use error::Error;
pub use gpu::{Gpu, MOST_CTAS};
pub use log::Log;
pub use nccl::Nccl;
pub use observe::{Inspector, InspectorFormat, Observe, Record};
pub use pattern::Pattern;
pub use rdma::{GidIndex, Hcas, Rdma};
pub use reader::Used;
pub use secret::Secret;
pub use settings::Settings;
pub use tuning::{
    GpuLayout, GpuWire, KernelEntry, KernelStep, Layout, Links, Tuning, TuningEntry, TuningError,
    TuningStep,
};
pub use variables::{VARIABLES, Variable, shown};
