//! Communicators with NCCL on NVIDIA's GPUs, all that are here. Where there are too few, tests are
//! skipped.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod buffers;
mod chosen;
mod collectives;
mod comparing;
mod context;
mod failures;
mod lengths;
mod meeting;
mod missing;
mod observed;
mod one_stream;
mod order;
mod streams;
mod support;
mod types;
mod upkeep;

use std::sync::Arc;

use spark_ccl::cuda::cudarc::driver::CudaStream;
use spark_ccl::cuda::{devices, nccl_version};
use spark_ccl::{Backend, Builder, Communicator};
use spark_ccl_testing::{Need, has};
use support::{Gpus, in_another_process, of_fakes, text};

const BACKEND: Backend = Backend::Nccl;

/// The GPUs, unless there are fewer than the test needs.
fn gpus(least: usize) -> Option<Gpus> {
    has(Need::Gpus(least)).then(|| {
        nccl_version().unwrap();
        Gpus::alone(devices().unwrap().len())
    })
}

/// The counters of fake GPUs, in the order of their numbers.
#[derive(Clone, Copy)]
enum Count {
    /// Looks at streams and events.
    Looks,
    /// Uses of a stream by another thread than made it.
    Strangers,
    /// Uses of a stream that was destroyed.
    Misuses,
    /// Allocations of NCCL's that were not freed.
    Blocks,
    /// Registrations that were not ended.
    Registrations,
}

/// A count of GPUs that are none, to be asked for.
fn count(what: Count) -> Option<impl Fn() -> i32> {
    let ask = of_fakes(c"fake_count")?;
    Some(move || ask(what as i32))
}

fn builder() -> Builder {
    Communicator::builder().backend(BACKEND)
}

/// A stream of a rank that no other rank uses.
fn stream_of(comm: &Communicator) -> Arc<CudaStream> {
    comm.context().unwrap().default_stream()
}
