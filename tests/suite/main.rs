//! The library's tests through its public API: ranks as threads and as real processes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod collectives;
mod collectives_model;
mod collectives_pairs;
mod collectives_random;
mod compile_fail;
mod compute;
mod dmabuf;
mod examples;
mod faults;
mod hosts;
mod mismatch;
mod nonblocking;
mod processes;
mod processes_rank;
mod ranks;
mod rdma;
mod registered;
mod split;
mod split_errors;
mod stopped;
mod tuning;
mod types;
mod waiting;
