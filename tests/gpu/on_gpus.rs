//! Slots in the memory of GPUs, which RDMA devices write. Both are fakes: this shows when the way
//! is taken, that calls are right, and what is said where it is not; nothing of real devices.

use spark_ccl::{Builder, Communicator, Net};
use spark_ccl_testing::{Need, has, seed};
use spark_ccl_verbs::testing;

use super::by_slots::at_once_and_in_graphs;
use super::{BACKEND, gpus, in_another_process, of_fakes, text};

/// GPUs that order what devices write.
pub(super) const ORDERED: i32 = 9;
const IN_GPUS: &str = "RDMA devices write slots into the memory of the receiver's GPU";

pub(super) fn over_rdma() -> Builder {
    Communicator::builder()
        .backend(BACKEND)
        .set("SPARK_CCL_SHARE_GPU", "1")
        .set("SPARK_CCL_GPU_PROTOCOL", "proxy")
        // Memory of the host would do for the strict path, too.
        .set("SPARK_CCL_GPU_PINNED", "0")
        .shared_memory(false)
        .network(Net::Rdma)
        .verbs(testing::network(seed()))
}

/// The generation of the GPUs is that of all tests of a process.
fn in_a_process_of_fakes(test: &str) {
    let Some(_gpus) = gpus(2) else { return };
    if has(Need::FakeGpus) {
        in_another_process(test);
    }
}

fn with_generation(generation: i32) {
    of_fakes(c"fake_generation").unwrap()(generation);
}

#[test]
fn devices_write_slots_into_gpus_and_all_calls_are_right() {
    in_a_process_of_fakes("on_gpus::written_by_devices");
}

#[test]
#[ignore = "a process that another test starts"]
fn written_by_devices() {
    with_generation(ORDERED);
    let gpus = gpus(2).unwrap();
    // Slots on GPUs are no copies in the host's memory, as only packets are.
    for path in ["auto", "zero-copy"] {
        gpus.each(&over_rdma().set("SPARK_CCL_PATH", path), |comm| {
            let said = comm.device_path().unwrap();
            assert!(said.contains(IN_GPUS), "{said}");
            for len in [0, 1, 100, 2000, 40_001] {
                at_once_and_in_graphs(&comm, len);
            }
            comm.finalize().unwrap();
        });
    }
}

#[test]
fn what_keeps_slots_out_of_gpus_is_said() {
    in_a_process_of_fakes("on_gpus::obstacles");
}

#[test]
#[ignore = "a process that another test starts"]
fn obstacles() {
    let gpus = gpus(2).unwrap();
    let in_host = |builder: &Builder, why: &str| {
        gpus.each(builder, |comm| {
            let said = comm.device_path().unwrap();
            assert!(!said.contains(IN_GPUS), "{said}");
            let why = format!("not slots in the GPUs' memory: {why}");
            assert!(said.contains(&why), "{said}");
            at_once_and_in_graphs(&comm, 2000);
            comm.finalize().unwrap();
        });
    };
    with_generation(8);
    in_host(&over_rdma(), "the GPU has compute capability 8.6");
    let strict = over_rdma().set("SPARK_CCL_PATH", "zero-copy");
    let said = text(strict.local(2));
    for part in ["compute capability 8.6", "SPARK_CCL_GPU_PINNED=1"] {
        assert!(said.contains(part), "{said}");
    }
    with_generation(ORDERED);
    let refused = over_rdma().set("SPARK_CCL_GPU_DMABUF", "0");
    in_host(&refused, "SPARK_CCL_GPU_DMABUF=0 on rank");
    let over_tcp = over_rdma().network(Net::Tcp);
    in_host(&over_tcp, "RDMA devices put no slots");
    // A pattern shows what no attribute says. One rank is enough: all take the same way.
    of_fakes(c"fake_export_astray").unwrap()(1);
    gpus.each(&over_rdma(), |comm| {
        let said = comm.device_path().unwrap();
        assert!(!said.contains(IN_GPUS), "{said}");
        at_once_and_in_graphs(&comm, 2000);
        comm.finalize().unwrap();
    });
}
