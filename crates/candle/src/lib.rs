//! Models in [candle](candle_core) that are divided among the ranks of a
//! [`Communicator`](spark_ccl::Communicator).
//!
//! A [`Group`] is a communicator for tensors. Its calls are part of candle's graph, so `backward`
//! makes the calls that their gradients need. [`ColumnParallel`], [`RowParallel`], [`Embedding`]
//! and [`Attention`] are layers of which each rank has a part, and [`llama`] is a model of them;
//! [`Form`] says whether their inputs are whole or divided along the sequence. [`Hook`] hands
//! gradients over as backward makes them. [`Files`] reads only a rank's part of safetensors, and
//! [`variables`] has a `VarMap`'s variables in an order that is the same on all ranks. [`mistral`]
//! is what mistral.rs needs.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use spark_ccl_candle::Group;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let ranks = spark_ccl::Communicator::local(2)?.into_iter();
//! # let ranks: Vec<_> = ranks.map(|comm| std::thread::spawn(move || {
//! let group = Group::new(comm);
//! let own = Tensor::new(&[group.rank() as f32, 1.0], &Device::Cpu)?;
//! let sum = group.all_reduce(&own, "example")?;
//! assert_eq!(sum.to_vec1::<f32>()?, [1.0, 2.0]);
//! # candle_core::Result::Ok(())
//! # })).collect();
//! # for rank in ranks { rank.join().map_err(|_| "a rank panicked")??; }
//! # Ok(())
//! # }
//! ```
//!
//! Ranks make the same calls in the same order, also in backward. Ranks that build the same graph
//! also go through it in the same order. Calls have the names of tensors, so a difference is an
//! error that names them.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod attention;
mod copy;
#[cfg(feature = "cuda")]
mod device;
mod error;
mod files;
mod group;
mod hook;
mod host;
mod joining;
mod layers;
pub mod llama;
mod messages;
pub mod mistral;
mod ops;
mod storage;
pub mod variables;

pub use attention::{Attention, Heads, KeyValues, Rope};
pub use error::Error;
pub use files::Files;
pub use group::{Group, Spent};
pub use hook::Hook;
pub use joining::builder;
pub use layers::{ColumnParallel, Embedding, Form, Norm, RowParallel, Weights};
