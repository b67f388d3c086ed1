//! Communicators with this library's own kernels through pinned memory of the host, as between GPUs
//! that do not reach each other, on NVIDIA's. Two ranks share a GPU where there is only one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod buffers;
mod collectives;
mod failures;
mod graphs;
mod late;
mod means;
mod messages;
mod order;
mod own_kernels;
mod processes;
mod streams;
mod support;
mod types;

use std::sync::Arc;

use spark_ccl::cuda::cudarc::driver::CudaStream;
use spark_ccl::cuda::devices;
use spark_ccl::{Backend, Builder, Communicator};
use spark_ccl_testing::{Need, has};
use support::{Gpus, in_another_process, of_fakes, text};

const BACKEND: Backend = Backend::Engine;
/// The most ranks.
const MOST: usize = 8;

/// GPUs for two ranks and more, as many as there are GPUs.
fn gpus(_: usize) -> Option<Gpus> {
    has(Need::Gpu).then(|| Gpus::alone(devices().unwrap().len().clamp(2, MOST)))
}

fn builder() -> Builder {
    Communicator::builder()
        .backend(BACKEND)
        .set("SPARK_CCL_SHARE_GPU", "1")
        .set("SPARK_CCL_PATH", "safe")
}

/// A stream of a rank that no other rank uses. Ranks that share a GPU also share its default
/// stream.
fn stream_of(comm: &Communicator) -> Arc<CudaStream> {
    comm.context().unwrap().new_stream().unwrap()
}

#[test]
fn the_memory_that_ranks_share_is_named() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let path = comm.device_path().unwrap();
        for part in [
            "pinned memory of the host",
            "not the GPUs' memory: SPARK_CCL_PATH=safe",
        ] {
            assert!(path.contains(part), "{part}: {path}");
        }
        comm.finalize().unwrap();
    });
}
