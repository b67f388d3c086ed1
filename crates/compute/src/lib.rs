//! Element types, reduction kernels, and the trait behind which reductions run.
//!
//! Buffers reach this crate as raw bytes with a [`DType`]; the typed view is [`Element`].

mod dtype;
mod job;

pub use dtype::DType;
pub use job::{Compute, Job, Operand, ReduceOp, Scale, Started, Ticket};
