//! Ways that are given up while ranks join, beside a kernel that waits for one of their threads.

use spark_ccl::{Builder, RedOp};
use spark_ccl_testing::{Need, has};

use super::by_host::{memory, read, sums, values};
use super::on_gpus::{ORDERED, over_rdma};
use super::{builder, gpus, in_another_process, of_fakes, stream_of};

const LEN: usize = 1000;

/// Rank 1 makes a communicator before its part in a call, for which a kernel of rank 0 waits.
/// `refuses` has the ranks give up a way.
fn joins_before_a_call(builder: &Builder, refuses: impl Fn() + Sync) {
    let gpus = gpus(2).unwrap();
    gpus.each(builder, |comm| {
        let stream = stream_of(&comm);
        let mut sum = memory(&comm, &values(comm.rank(), LEN));
        let mut enqueue = || {
            let call = comm.all_reduce_in_place(&mut sum, RedOp::Sum);
            call.on(&stream).map(drop).unwrap();
        };
        refuses();
        if comm.rank() == 0 {
            enqueue();
        }
        let other = comm.split(Some(0), 0).unwrap().unwrap();
        if comm.rank() != 0 {
            enqueue();
        }
        comm.wait(&stream).unwrap();
        assert!(read(&sum) == sums(comm.size(), LEN, 1));
        other.finalize().unwrap();
        comm.finalize().unwrap();
    });
}

/// Rank 1 has no memory for slots, and rank 0 frees its own.
#[test]
fn slots_that_another_rank_lacks_are_freed_beside_a_kernel() {
    let Some(_gpus) = gpus(2) else { return };
    if has(Need::FakeGpus) {
        // What other tests have set aside would do.
        in_another_process("refused::without_slots");
    }
}

#[test]
#[ignore = "a process that another test starts"]
fn without_slots() {
    let refuse = of_fakes(c"fake_refuse_slots").unwrap();
    let builder = builder().set("SPARK_CCL_GPU_DMABUF", "0");
    joins_before_a_call(&builder, || {
        refuse(1);
    });
}

/// A pattern does not come to slots on the GPUs.
#[test]
fn slots_out_of_reach_are_freed_beside_a_kernel() {
    let Some(_gpus) = gpus(2) else { return };
    if has(Need::FakeGpus) {
        in_another_process("refused::out_of_reach");
    }
}

#[test]
#[ignore = "a process that another test starts"]
fn out_of_reach() {
    let [generation, astray] = [c"fake_generation", c"fake_export_astray"].map(of_fakes);
    let [generation, astray] = [generation.unwrap(), astray.unwrap()];
    // At first, GPUs do not order what devices write.
    generation(8);
    joins_before_a_call(&over_rdma(), || {
        generation(ORDERED);
        astray(1);
    });
}
