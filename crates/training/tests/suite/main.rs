//! Training through its public API: ranks as threads and as processes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../examples/train/attention.rs"]
mod attention;
mod buckets;
mod checkpoints;
mod data_parallel;
mod gradients;
mod locks;
#[path = "../../examples/train/model.rs"]
mod model;
#[path = "../../examples/train/ops.rs"]
mod ops;
mod parameters;
mod ranks;
mod train;
