//! Reduction kernels, and the trait through which they run.
//!
//! Buffers are passed to this crate as raw bytes with a [`DType`](spark_ccl_types::DType). [`Cpu`]
//! runs a [`Job`] immediately, with the widest vectors that the machine has.
//!
//! **Bits.** The result of a job depends only on its operands and their order. The machine's vector
//! width, alignment, the operand that is updated in place, and the calling thread's rounding mode
//! and treatment of denormals do not change it. This includes NaN: every NaN that a job computes is
//! the type's canonical one (a plain copy keeps its bits). `Max` takes +0 over -0, `Min` takes -0
//! over +0.

// Kernels can use the instructions of a vector width only in functions that are inlined into one
// compiled for it.
#![allow(clippy::inline_always)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod cpu;
#[cfg(any(test, feature = "testing"))]
mod delayed;
mod divide;
mod divided;
mod helpers;
mod job;
mod mode;

pub use cpu::{Cpu, copies_slowly};
#[cfg(any(test, feature = "testing"))]
pub use delayed::Delayed;
pub use divide::divide;
pub use divided::Divided;
pub use helpers::Helpers;
pub use job::{Compute, Job, Operand, Started, Streaming, Ticket};
