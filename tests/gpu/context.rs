//! Calls leave the thread's current context as it was: another device's, or none.

use std::time::Duration;

use spark_ccl::cuda::cudarc::driver::{CudaContext, result, sys};
use spark_ccl::cuda::{self, DeviceCall, Registration};
use spark_ccl::{Communicator, DType, Operation, RedOp, UntypedCall};
use spark_ccl_testing::{Need, has};

use super::{builder, gpus};

const LEN: usize = 100;

/// What is current in a thread of the program's.
struct Own(sys::CUcontext);

impl Own {
    /// Does something, which leaves that context current.
    fn keeps<R>(&self, what: &str, call: impl FnOnce() -> R) -> R {
        // SAFETY: the context is null, or a primary one that the test keeps until its end, and both
        // may be made current.
        unsafe { result::ctx::set_current(self.0) }.unwrap();
        let value = call();
        let after = result::ctx::get_current().unwrap().unwrap_or_default();
        assert_eq!(after, self.0, "after {what}");
        value
    }
}

#[test]
fn calls_leave_the_current_context_alone() {
    if !has(Need::Gpus(2)) {
        return;
    }
    let Some(_gpus) = gpus(2) else { return };
    let other = CudaContext::new(1).unwrap();
    for own in [other.cu_ctx(), sys::CUcontext::default()].map(Own) {
        let own_builder = builder().set("SPARK_CCL_DEVICE", "0");
        let comm = own.keeps("local", || own_builder.local(1).unwrap().remove(0));
        calls(&own, &comm);
        let split = own.keeps("split", || comm.split(Some(0), 0).unwrap().unwrap());
        let memory = own.keeps("alloc", || split.alloc_device::<u8>(LEN).unwrap());
        own.keeps("dropping a communicator", || drop(split));
        own.keeps("dropping the last of a GPU", || drop(memory));
        own.keeps("finalize", || comm.finalize().unwrap());
        own.keeps("dropping", || drop(comm));
        let comm = own.keeps("local again", || own_builder.local(1).unwrap().remove(0));
        own.keeps("abort", || comm.abort("a test"));
        own.keeps("check", || comm.check().unwrap_err());
        own.keeps("dropping what has failed", || drop(comm));
        let context = own.keeps("cuda::context", || cuda::context(0).unwrap());
        // SAFETY: null is the handle of the legacy default stream, which always exists.
        let borrowed = unsafe { cuda::borrow_stream(&context, std::ptr::null_mut()) };
        drop(borrowed.unwrap());
    }
}

fn calls(own: &Own, comm: &Communicator) {
    let stream = std::ptr::null_mut();
    let mut memory = own.keeps("alloc", || comm.alloc_device::<i64>(LEN).unwrap());
    own.keeps("write", || memory.write(&[1; LEN]).unwrap());
    let start = std::ptr::without_provenance_mut::<u8>(memory.address() as usize);
    let call = UntypedCall::new(Operation::AllReduce, DType::I64)
        .reduction(RedOp::Sum)
        .in_place(start, LEN);
    let one = DeviceCall {
        comm,
        call: &call,
        stream,
    };
    for calls in [&[one][..], &[one, one]] {
        own.keeps("enqueue_untyped", || {
            // SAFETY: `memory` outlives the wait for the default stream below (`wait_raw`), and
            // nothing but these calls uses it before that. They run in the stream's order.
            unsafe { Communicator::enqueue_untyped(calls) }.unwrap();
        });
    }
    let nothing = UntypedCall::new(Operation::Barrier, DType::I64);
    own.keeps("a refused call", || {
        let refused = DeviceCall {
            call: &nothing,
            ..one
        };
        // SAFETY: a barrier has no buffers, and the stream is the default one, which always exists.
        unsafe { Communicator::enqueue_untyped(&[refused]) }.unwrap_err();
    });
    // SAFETY: the stream is the default one, which always exists.
    own.keeps("wait_raw", || unsafe { comm.wait_raw(stream) }.unwrap());
    own.keeps("register", || {
        comm.register_device(&memory, Registration::Local).unwrap()
    });
    own.keeps("run", || {
        let call = comm.all_reduce_in_place(&mut memory, RedOp::Sum);
        call.run().unwrap();
    });
    own.keeps("read", || memory.read(&mut [0; LEN]).unwrap());
    own.keeps("set_timeout", || {
        comm.set_timeout(Duration::from_secs(9)).unwrap();
    });
    own.keeps("check", || comm.check().unwrap());
    let stream = comm.context().unwrap().default_stream();
    own.keeps("on", || {
        let call = comm.all_reduce_in_place(&mut memory, RedOp::Sum);
        call.on(&stream).unwrap();
    });
    own.keeps("group", || {
        let grouped = comm.group(|group| {
            comm.all_reduce_in_place(&mut memory, RedOp::Sum)
                .within(group, &stream);
            Ok(())
        });
        grouped.unwrap();
    });
    own.keeps("wait", || comm.wait(&stream).unwrap());
    own.keeps("read_in", || memory.read_in(&stream, |_| ()).unwrap());
    own.keeps("dropping memory", || drop(memory));
}
