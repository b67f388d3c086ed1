//! Calls without types give the results of typed ones, and refuse what types would not allow.

use spark_ccl::{
    Communicator, DType, Element, Error, F8E4M3, F8E5M2, Operation, RedOp, Reducer, UntypedCall,
    bf16, f16,
};

use super::ranks::run;
use super::types::{Number, for_every_type};

const COUNT: usize = 77;

/// Small numbers that depend on rank and place.
fn own<T: Number>(rank: usize) -> Vec<T> {
    let value = |i: usize| (i * 5 + rank * 3) as i64 % (T::LIMIT + 1);
    (0..COUNT).map(|i| T::of(value(i))).collect()
}

fn compare<T: Number>(comm: &Communicator) {
    let factor = T::of(1 + comm.rank() as i64 % 2);
    let plain = [RedOp::Sum, RedOp::Prod, RedOp::Min, RedOp::Max, RedOp::Avg];
    for op in plain
        .map(Reducer::Op)
        .into_iter()
        .chain([Reducer::PreMulSum(factor)])
    {
        let send = own::<T>(comm.rank());
        let (mut expected, mut seen) = (send.clone(), send.clone());
        comm.all_reduce(&send, &mut expected, op).run().unwrap();
        let call = UntypedCall::new(Operation::AllReduce, T::DTYPE)
            .send(send.as_ptr().cast(), COUNT)
            .recv(seen.as_mut_ptr().cast(), COUNT);
        let call = match op {
            Reducer::PreMulSum(factor) => {
                let mut bytes = [0; 8];
                bytes[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&factor));
                call.pre_mul_sum(bytes)
            }
            Reducer::Op(op) => call.reduction(op),
            other => unreachable!("{other:?} has no call without types"),
        };
        // SAFETY: `send` and `seen` have `COUNT` elements each, all initialised, and are only used
        // by this thread, after the call.
        unsafe { comm.run_untyped(&call).unwrap() };
        assert_eq!(seen, expected, "{op:?} of {}", T::DTYPE);
        seen.copy_from_slice(&send);
        // SAFETY: `send` and `seen` have `COUNT` elements each, all initialised, and are used again
        // only after `wait`.
        let started = unsafe { comm.start_untyped(&call).unwrap() };
        started.wait().unwrap();
        assert_eq!(seen, expected, "{op:?} of {}, started", T::DTYPE);
    }
}

#[test]
fn they_give_what_typed_calls_do() {
    run(3, |comm| for_every_type!(T => compare::<T>(comm)));
}

#[test]
fn they_reach_registered_memory() {
    let ours = run(2, |comm| {
        let mut memory = comm.alloc::<u8>(2 * COUNT * size_of::<f64>()).unwrap();
        let values = own::<f64>(comm.rank());
        let half = COUNT * size_of::<f64>();
        memory[..half].copy_from_slice(bytemuck::cast_slice(&values));
        let start = memory.as_mut_ptr();
        let call = UntypedCall::new(Operation::AllReduce, DType::F64)
            .reduction(RedOp::Sum)
            .within(&memory)
            .send(start, COUNT)
            .recv(start.wrapping_add(half), COUNT);
        // SAFETY: `memory` has `COUNT` initialised elements in each half, outlives the call, which
        // is done when this returns, and nobody else uses it meanwhile.
        unsafe { comm.run_untyped(&call).unwrap() };
        bytemuck::cast_slice::<u8, f64>(&memory[half..]).to_vec()
    });
    let both = own::<f64>(0).into_iter().zip(own::<f64>(1));
    let sums: Vec<_> = both.map(|(a, b)| a + b).collect();
    assert_eq!(ours, [sums.clone(), sums]);
}

/// The text of a refusal. Nothing was sent before.
fn refusal(comm: &Communicator, call: &UntypedCall) -> String {
    // SAFETY: the call is refused before it reads or writes anything, as the result shows.
    match unsafe { comm.run_untyped(call) } {
        Err(Error::Invalid { problem, .. }) => problem,
        other => panic!("{other:?}"),
    }
}

#[test]
fn they_refuse_what_types_prove() {
    run(1, |comm| {
        let mut memory = [0_f32; 4];
        let start = memory.as_mut_ptr().cast::<u8>();
        let sum = |call: UntypedCall| call.reduction(RedOp::Sum);
        let new = || UntypedCall::new(Operation::AllReduce, f32::DTYPE);
        for (call, word) in [
            (sum(new()).send(std::ptr::null(), 1).recv(start, 1), "null"),
            (
                sum(new()).send(start, 1).recv(std::ptr::null_mut(), 1),
                "null",
            ),
            (sum(new()).in_place(start.wrapping_add(2), 1), "aligned"),
            (sum(new()).in_place(start, usize::MAX / 4), "no memory"),
            (
                sum(new()).in_place(start.wrapping_sub(start as usize).wrapping_sub(4), 2),
                "no memory",
            ),
            (new().in_place(start, 1), "no reduction"),
            (
                sum(new()).send(start, 2).recv(start.wrapping_add(4), 2),
                "overlap",
            ),
            (
                sum(UntypedCall::new(Operation::Broadcast, f32::DTYPE)).in_place(start, 1),
                "reduces nothing",
            ),
        ] {
            let said = refusal(comm, &call);
            assert!(said.contains(word), "{said}");
        }
        // SAFETY: `start` is that of four floats, all initialised, which only this thread has, and
        // uses after the call.
        unsafe { comm.run_untyped(&sum(new()).in_place(start, 4)).unwrap() };
    });
}

/// Every operation with its required arguments, except buffers.
fn every_operation(start: *mut u8) -> Vec<UntypedCall> {
    let all = Operation::ALL.into_iter();
    all.map(|operation| {
        let call = UntypedCall::new(operation, i32::DTYPE);
        match operation {
            Operation::AllToAllV => call.blocks((&[1]).into(), (&[1]).into()),
            _ if operation.reduces() => call.reduction(RedOp::Sum),
            _ => call,
        }
        .in_place(start, 1)
    })
    .collect()
}

#[test]
fn they_are_in_place_where_the_operation_can_be() {
    use Operation::{AllToAllV, Alloc, Barrier, Recv, Send, SendRecv};
    run(1, |comm| {
        let mut memory = [3_i32];
        let start = memory.as_mut_ptr().cast();
        for (operation, call) in Operation::ALL.into_iter().zip(every_operation(start)) {
            if operation == Alloc {
                assert!(refusal(comm, &call).contains("Communicator::alloc"));
            } else if [AllToAllV, Barrier, Recv, Send, SendRecv].contains(&operation) {
                let said = refusal(comm, &call);
                assert!(said.contains("no in-place form"), "{operation}: {said}");
            } else {
                // SAFETY: `start` is that of one initialised number, which only this thread has,
                // and uses after the call.
                unsafe { comm.run_untyped(&call).unwrap() };
            }
        }
        assert_eq!(memory, [3]);
    });
}

#[test]
fn they_refuse_what_the_operation_does_not_have() {
    run(1, |comm| {
        let mut memory = [0_f32; 4];
        let start = memory.as_mut_ptr().cast::<u8>();
        let new = |operation| UntypedCall::new(operation, f32::DTYPE);
        let sum = || new(Operation::AllReduce).reduction(RedOp::Sum);
        let own = || (&[1]).into();
        for (call, problem) in [
            (
                new(Operation::Send)
                    .send(start, 1)
                    .recv(start.wrapping_add(4), 2),
                "a receive buffer of 2 elements, which it does not have",
            ),
            (
                new(Operation::Recv)
                    .recv(start, 1)
                    .send(start.wrapping_add(4), 3),
                "a send buffer of 3 elements, which it does not have",
            ),
            (
                new(Operation::Barrier).send(start, 1),
                "a send buffer of 1 elements",
            ),
            (
                new(Operation::Barrier).recv(start, 1),
                "a receive buffer of 1 elements",
            ),
            (sum().in_place(start, 1).root(1), "a root, rank 1"),
            (sum().in_place(start, 1).blocks(own(), own()), "blocks"),
            (
                new(Operation::Send).send(start, 1).to(1),
                "destination is rank 1",
            ),
            (
                new(Operation::Recv).recv(start, 1).from(usize::MAX),
                "source is rank",
            ),
        ] {
            let said = refusal(comm, &call);
            assert!(said.contains(problem), "{said}");
            // SAFETY: the call is refused before it reads or writes anything, as the result shows.
            let started = unsafe { comm.start_untyped(&call) };
            assert!(matches!(started, Err(Error::Invalid { .. })), "{started:?}");
        }
        // A buffer without elements counts as none.
        // SAFETY: the call's buffer has no elements, so none are read or written.
        unsafe {
            comm.run_untyped(&new(Operation::Barrier).recv(start, 0))
                .unwrap();
        };
    });
}

#[test]
fn they_refuse_memory_that_others_have_allocated() {
    run(2, |comm| {
        let part = comm.split(Some(0), 0).unwrap().unwrap();
        let memory = comm.alloc::<u8>(4096).unwrap();
        let start = memory.as_mut_ptr();
        let sum = UntypedCall::new(Operation::AllReduce, DType::U8)
            .reduction(RedOp::Sum)
            .in_place(start, 4096);
        let said = refusal(&part, &sum.clone().within(&memory));
        let rank = comm.rank();
        assert!(
            said.contains(&format!("rank {rank}'s in-place buffer")),
            "{said}"
        );
        assert!(said.contains("another communicator"), "{said}");
        // SAFETY: `memory` has 4096 initialised bytes, which no other call uses meanwhile. For
        // `part` they are ordinary memory.
        unsafe { part.run_untyped(&sum).unwrap() };
        // SAFETY: `memory` has 4096 initialised bytes, and the call before, which used them, is
        // done.
        unsafe { comm.run_untyped(&sum.within(&memory)).unwrap() };
    });
}
