//! Communicators with this library's own kernels on NVIDIA's GPUs. Two ranks share a GPU where
//! there is only one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod buffers;
mod collectives;
mod endurance;
mod failures;
mod graphs;
mod in_place;
mod late;
mod means;
mod messages;
mod observed;
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
}

/// A stream of a rank that no other rank uses. Ranks that share a GPU also share its default
/// stream.
fn stream_of(comm: &Communicator) -> Arc<CudaStream> {
    comm.context().unwrap().new_stream().unwrap()
}

/// A process that sees only its own GPU learns it when it maps the others' memory.
#[test]
fn a_gpu_that_cannot_map_memory_of_others_is_named() {
    if has(Need::FakeGpus) {
        in_another_process("one_maps_no_memory_of_others");
    }
}

#[test]
#[ignore = "a process that another test starts"]
fn one_maps_no_memory_of_others() {
    of_fakes(c"fake_leave_alone").unwrap()(1);
    let paths = Gpus::alone(2).each(&builder(), |comm| {
        let path = comm.device_path().unwrap();
        comm.finalize().unwrap();
        path
    });
    let says = |words: &str| paths.iter().filter(|path| path.contains(words)).count();
    assert_eq!(says("pinned memory of the host"), 2, "{paths:?}");
    assert_eq!(says("not the GPUs' memory: cuMemSetAccess"), 1, "{paths:?}");
    assert_eq!(says("has none to offer; it says why"), 1, "{paths:?}");
}
