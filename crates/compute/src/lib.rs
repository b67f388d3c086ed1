//! Reduction kernels, and the trait behind which reductions run.
//!
//! Buffers reach this crate as raw bytes with a [`DType`](spark_ccl_types::DType).
//! [`Cpu`] runs a [`Job`] at once, with the widest vectors the machine has.
//!
//! **Bits.** The result of a job depends on its operands and their order alone: not on the
//! machine's vector width, the alignment, or which operand is updated in place. To make that true
//! for NaN as well, every NaN that a job computes is the type's canonical one (a plain copy keeps
//! its bits). `Max` takes +0 over -0, `Min` takes -0 over +0.

// Kernels reach the instructions of a vector width only by inlining into a function that has them.
#![allow(clippy::inline_always)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod cpu;
#[cfg(any(test, feature = "testing"))]
mod delayed;
mod divide;
mod job;

pub use cpu::Cpu;
#[cfg(any(test, feature = "testing"))]
pub use delayed::Delayed;
pub use divide::divide;
pub use job::{Compute, Job, Operand, Started, Ticket};
