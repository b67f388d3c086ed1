//! What a rank's settings choose: its device, and the backend where none is named. And untyped
//! calls.

use spark_ccl::cuda::DeviceCall;
use spark_ccl::cuda::cudarc::driver::sys::CUstream;
use spark_ccl::{Backend, Communicator, DType, Operation, RedOp, UntypedCall};

use super::{builder, gpus, text};

#[test]
fn a_rank_takes_the_device_that_it_names() {
    let Some(_gpus) = gpus(2) else { return };
    let own = builder().set("SPARK_CCL_DEVICE", "1");
    let comm = own.local(1).unwrap().remove(0);
    assert_eq!(comm.device(), Some(1));
    let said = text(builder().set("SPARK_CCL_DEVICE", "1000").local(1));
    assert!(
        said.contains("SPARK_CCL_DEVICE of rank 0 is 1000"),
        "{said}"
    );
}

#[test]
fn nccl_is_taken_where_all_ranks_have_it_and_a_gpu_of_their_own() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder().backend(Backend::Auto), |comm| {
        assert_eq!(comm.device(), Some(comm.rank()));
        sum_untyped(&comm);
    });
    // Our own kernels would be next, for which the two need a setting more.
    let shared = builder()
        .backend(Backend::Auto)
        .set("SPARK_CCL_DEVICE", "0");
    let said = text(shared.local(2));
    assert!(said.contains("SPARK_CCL_SHARE_GPU=1"), "{said}");
}

/// By addresses, in the legacy and in the thread's default stream.
fn sum_untyped(comm: &Communicator) {
    const COUNT: usize = 1000;
    let value = |rank: usize, place: usize| (rank * 1_000_003 + place) as i64;
    let mut memory = comm.alloc_device::<i64>(COUNT).unwrap();
    let own: Vec<_> = (0..COUNT).map(|place| value(comm.rank(), place)).collect();
    let start = std::ptr::without_provenance_mut::<u8>(memory.address() as usize);
    let call = UntypedCall::new(Operation::AllReduce, DType::I64)
        .reduction(RedOp::Sum)
        .in_place(start, COUNT);
    for handle in [0, 1, 2] {
        memory.write(&own).unwrap();
        let stream: CUstream = std::ptr::without_provenance_mut(handle);
        let calls = [DeviceCall {
            comm,
            call: &call,
            stream,
        }];
        // SAFETY: `memory` outlives the wait that follows, and nothing else uses it meanwhile. The
        // handles 0 to 2 are the default streams, which always exist.
        unsafe {
            Communicator::enqueue_untyped(&calls).unwrap();
            comm.wait_raw(stream).unwrap();
        }
        let mut seen = vec![0; COUNT];
        memory.read(&mut seen).unwrap();
        for (place, seen) in seen.into_iter().enumerate() {
            let sum = (0..comm.size()).map(|rank| value(rank, place)).sum::<i64>();
            assert_eq!(seen, sum, "rank {}, stream {handle}", comm.rank());
        }
    }
}
