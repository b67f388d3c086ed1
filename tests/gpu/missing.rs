//! Without GPUs, or without NCCL.

use spark_ccl::{Communicator, RedOp};

use super::support::lack_of_gpus_is_said;
use super::{builder, text};

#[test]
fn what_is_missing_is_said_on_every_rank() {
    lack_of_gpus_is_said(&builder());
}

#[test]
fn another_library_than_nccl_is_refused() {
    let Err(error) = builder().set("SPARK_CCL_NCCL_LIBRARY", "/nowhere").local(1) else {
        panic!("a communicator without NCCL");
    };
    let said = error.to_string();
    assert!(
        said.contains("/nowhere") || said.contains("libcuda"),
        "{said}"
    );
}

#[test]
fn host_communicators_say_how_to_get_device_memory() {
    let comm = Communicator::local(1).unwrap().remove(0);
    assert_eq!(comm.device(), None);
    assert!(text(comm.context()).contains("SPARK_CCL_BACKEND=nccl"));
    assert!(text(comm.alloc_device::<f32>(1)).contains("Backend::Nccl"));
    // SAFETY: a communicator of host memory refuses the slice by its kind, so nothing uses the
    // address.
    let memory = unsafe { spark_ccl::cuda::DeviceSlice::<f32>::from_raw(0, 1, 0) };
    let refused = comm.all_reduce_in_place(memory, RedOp::Sum).run();
    assert!(text(refused).contains("all_reduce"));
    let refused = comm.scope(|scope| {
        let call = comm.all_reduce_in_place(memory, RedOp::Sum);
        call.start_in(scope).map(drop)
    });
    assert!(text(refused).contains("`on`"));
}
