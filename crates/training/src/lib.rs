//! Data-parallel training over [`spark_ccl`], for any framework.
//!
//! [`Buckets`] sums or averages the gradients of all ranks while the backward pass still runs. It
//! knows tensors by their number in a [`Model`], and gradients as slices of [`Number`]s, so it
//! needs to know nothing of the framework. [`DataParallel`] adds the rest of a step: parameters
//! that are alike on all ranks, an [`Optimizer`] whose state each rank has a share of (ZeRO-1), and
//! [`Checkpoints`]. A [`Sampler`] deals out the samples.
//!
//! Every rank makes the same calls in the same order. A rank that does something else (another
//! model, another step) causes an error on all ranks, which names it and the tensor.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod agreement;
mod buckets;
mod checkpoint;
mod contents;
mod data_parallel;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod model;
mod optimizer;
mod parameters;
mod plan;
mod sampler;
mod shares;
mod timeline;
mod values;
mod world;

pub use buckets::{Absent, Buckets, Options, Reduce, Sharing, StepReport};
pub use checkpoint::Checkpoints;
pub use data_parallel::{DataParallel, Memory};
pub use error::{Culprit, Error};
pub use model::{Model, TensorInfo};
pub use optimizer::{AdamW, Optimizer, Sgd};
pub use parameters::{HostTensor, Parameters, Problem, broadcast, compare};
pub use plan::{Bucket, Part, Plan, Readiness};
pub use sampler::{Batch, LastBatch, Sampler};
pub use timeline::StepTimes;
pub use values::{Number, Values};

/// The programs of the documents, compiled and run by the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/training.md")]
mod guide {}

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}
