//! Training through its public API: ranks as threads and as processes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod buckets;
mod checkpoints;
mod data_parallel;
mod parameters;
mod ranks;
mod train;
