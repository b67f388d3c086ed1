//! Communicators whose device memory goes by way of the host, on NVIDIA's GPUs or on such that are
//! none. Two ranks share a GPU where there is only one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod announced;
mod buffers;
mod by_host;
mod by_mail;
mod by_slots;
mod collectives;
mod context;
mod dropped;
mod failures;
mod graphs;
mod in_place;
mod late;
mod lengths;
mod mail;
mod means;
mod messages;
mod observed;
mod on_gpus;
mod processes;
mod proxy;
mod refused;
mod roots;
mod streams;
mod support;
mod types;
mod unstaged;
mod ways;

use std::sync::Arc;

use spark_ccl::cuda::cudarc::driver::CudaStream;
use spark_ccl::cuda::devices;
use spark_ccl::{Backend, Builder, Communicator, Net};
use spark_ccl_testing::{Need, has};
use spark_ccl_verbs::testing;
use support::{Gpus, in_another_process, of_fakes, text};

const BACKEND: Backend = Backend::Engine;
/// The most ranks.
const MOST: usize = 4;

/// GPUs for two ranks and more, as many as there are GPUs.
fn gpus(_: usize) -> Option<Gpus> {
    has(Need::Gpus(1)).then(|| Gpus::alone(devices().unwrap().len().clamp(2, MOST)))
}

fn builder() -> Builder {
    // Through slots what goes by pieces of the host, too, where those are faster; or by pieces.
    let protocol = std::env::var("SPARK_CCL_TEST_GPU_PROTOCOL");
    let builder = Communicator::builder()
        .backend(BACKEND)
        .set("SPARK_CCL_SHARE_GPU", "1")
        .set(
            "SPARK_CCL_GPU_PROTOCOL",
            protocol.as_deref().unwrap_or("slots"),
        );
    match std::env::var("SPARK_CCL_TEST_RDMA_SEED") {
        // Over RDMA devices that are none. The seed decides how badly they carry.
        Ok(seed) => {
            println!("SPARK_CCL_TEST_RDMA_SEED={seed}");
            builder
                .shared_memory(false)
                .network(Net::Rdma)
                .verbs(testing::network(seed.parse().unwrap()))
        }
        Err(_) => builder,
    }
}

/// A stream of a rank that no other rank uses. Ranks that share a GPU also share its default
/// stream.
fn stream_of(comm: &Communicator) -> Arc<CudaStream> {
    comm.context().unwrap().new_stream().unwrap()
}
