//! The vocabulary of the library: what all other crates mean by an element type, an operation, a reduction.
//!
//! - [`DType`] names the type of elements at run time, [`Element`] is its typed view.
//! - [`Operation`] names what ranks can do together; one table says all that follows from the name.
//! - [`ReduceOp`] names a reduction as users do, [`RedOp`] adds the type, [`Reduction`] is what an engine makes of it.
//! - [`Signature`] is what all ranks must agree on in one call.
#![forbid(unsafe_code)]
// Conversions of small floats reach the instructions of a vector width only by inlining.
#![allow(clippy::inline_always)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod buffers;
mod dtype;
mod element;
mod float8;
mod operation;
mod redop;
mod reduction;
mod scale;
mod signature;
pub mod small_float;

pub use buffers::{Extent, InPlaceRule, Side};
pub use dtype::{DType, UnknownDType};
pub use element::Element;
pub use float8::{F8E4M3, F8E5M2};
pub use half::{bf16, f16};
pub use operation::Operation;
pub use redop::{Combine, RedOp, ReduceOp, UnknownReduceOp};
pub use reduction::Reduction;
pub use scale::Scale;
pub use signature::{Signature, describe};
