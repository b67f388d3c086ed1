//! The library's tests through its public API: ranks as threads and as real processes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod buffers;
mod builder;
mod campaign;
mod collectives;
mod collectives_model;
mod collectives_pairs;
mod collectives_random;
mod compile_fail;
mod compute;
mod counts;
mod dmabuf;
mod examples;
mod faults;
mod foreign_memory;
mod fork;
mod growth;
mod hosts;
mod launch;
mod leaving;
mod mismatch;
mod nonblocking;
mod processes;
mod processes_rank;
mod ranks;
mod rdma;
mod registered;
mod single_copy;
mod split;
mod split_errors;
mod stopped;
mod switch;
mod tuning;
mod types;
mod values;
mod waiting;
