//! Data-parallel training over [`spark_ccl`], for any framework.
//!
//! [`Buckets`] sums or averages the gradients of all ranks while the backward pass still runs. It
//! knows tensors by their number in a [`Model`], and gradients as slices of [`Number`]s, so it
//! needs to know nothing of the framework.
//!
//! Every rank makes the same calls in the same order. A rank that does something else (another
//! model, another step) causes an error on all ranks, which names it and the tensor.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod agreement;
mod buckets;
mod error;
mod model;
mod parameters;
mod plan;
mod sampler;
mod timeline;
mod values;
mod world;

pub use buckets::{Absent, Buckets, Options, Reduce, Sharing, StepReport};
pub use error::{Culprit, Error};
pub use model::{Model, TensorInfo};
pub use parameters::{HostTensor, Parameters, Problem, broadcast, compare};
pub use plan::{Bucket, Part, Plan, Readiness};
pub use sampler::{Batch, LastBatch, Sampler};
pub use timeline::StepTimes;
pub use values::{Number, Values};
