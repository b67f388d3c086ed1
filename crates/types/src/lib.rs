//! The library's shared types: element types, operations, reductions, and signatures. Depends on no
//! other crate of the library.
//!
//! - [`DType`] is an element type at run time, [`Element`] the trait of the corresponding Rust
//!   types.
//! - [`Operation`] is what ranks can do together. One table has all its properties.
//! - [`Algorithm`] is a way to do an operation.
//! - [`RedOp`] is a reduction without a factor, [`Reducer`] one of a type that may have a factor,
//!   [`ReduceOp`] either by its name, and [`Reduction`] what engines execute.
//! - [`Signature`] is what all ranks must agree on in one call.
#![forbid(unsafe_code)]
// Conversions of small floats must be inlined to be vectorised with the caller's target features.
#![allow(clippy::inline_always)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod algorithm;
mod buffers;
mod dtype;
mod element;
mod float8;
mod listed;
mod operation;
mod overlap;
mod redop;
mod reduction;
mod scale;
mod signature;
pub mod small_float;

pub use algorithm::{Algorithm, UnknownAlgorithm};
pub use buffers::{Extent, InPlaceRule, Side};
pub use dtype::{DType, UnknownDType};
pub use element::Element;
pub use float8::{F8E4M3, F8E5M2};
pub use half::{bf16, f16};
pub use operation::Operation;
pub use overlap::overwritten;
pub use redop::{Combine, RedOp, ReduceOp, Reducer, UnknownReduceOp};
pub use reduction::Reduction;
pub use scale::Scale;
pub use signature::{Signature, describe, describe_message, name_of};
