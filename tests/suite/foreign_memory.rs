//! Registered memory of other ranks and other communicators counts as ordinary memory, no matter
//! which rank passes it.

use std::sync::Mutex;

use spark_ccl::{Builder, Communicator, Error, Fault, Path, RedOp, Registered};

use super::ranks::each;

const LEN: usize = 12_000;

/// `n` ranks with two allocations each, filled with 10 times the rank plus the allocation's number.
fn ranks(builder: &Builder, n: usize) -> (Vec<Communicator>, Vec<[Registered<i32>; 2]>) {
    let all = each(builder.local(n).unwrap(), |comm| {
        let memory = [0, 1].map(|number| {
            let mut memory = comm.alloc::<i32>(LEN).unwrap();
            memory.fill(10 * comm.rank() as i32 + number);
            memory
        });
        (comm, memory)
    });
    all.into_iter().unzip()
}

/// Every rank makes a call with its own buffer. Returns the results by rank.
fn each_with<B: Send, R: Send>(
    comms: Vec<Communicator>,
    buffers: Vec<B>,
    work: impl Fn(&Communicator, B) -> R + Sync,
) -> Vec<R> {
    let buffers: Vec<_> = buffers.into_iter().map(|it| Mutex::new(Some(it))).collect();
    each(comms, |comm| {
        let buffer = buffers[comm.rank()].lock().unwrap().take().unwrap();
        work(&comm, buffer)
    })
}

/// Checks for the error of a call whose registered memory differs between ranks.
fn assert_differs(result: Result<(), Error>) {
    let error = result.unwrap_err();
    let Error::Failed(fault) = &error else {
        panic!("{error}");
    };
    assert!(matches!(**fault, Fault::Mismatch { .. }), "{error}");
    assert!(error.to_string().contains("registered memory"), "{error}");
}

/// Rank 0's memory is registered for rank 0 alone. Nobody passes rank 1's memory at the same place.
#[test]
fn memory_that_nobody_passed_is_not_read() {
    let (comms, mut memory) = ranks(&Communicator::builder(), 2);
    let [[of_0, _], [of_1, _]] = &mut memory[..] else {
        unreachable!("two ranks");
    };
    let of_0 = &*of_0;
    std::thread::scope(|scope| {
        // Its owner may do with it as it likes.
        scope.spawn(|| of_1.fill(-1));
        for result in each_with(comms, vec![of_0, of_0], |comm, buffer| {
            let mut got = vec![0; 2 * LEN];
            comm.all_gather(buffer, &mut got).run()
        }) {
            assert_differs(result);
        }
    });
}

/// Each call that has a one-sided form, for each side that is shared.
#[test]
fn memory_of_another_rank_is_ordinary_on_every_side() {
    type Call = fn(&Communicator, &mut Registered<i32>) -> Result<(), Error>;
    let calls: [Call; 8] = [
        |comm, it| comm.all_reduce_in_place(it, RedOp::Sum).run(),
        |comm, it| comm.broadcast_in_place(it, 1).run(),
        |comm, it| comm.all_gather_in_place(it).run(),
        |comm, it| comm.gather_in_place(it, 1).run(),
        |comm, it| comm.scatter_in_place(it, 1).run(),
        |comm, it| comm.reduce_in_place(it, RedOp::Sum, 1).run(),
        |comm, it| comm.reduce_scatter_in_place(it, RedOp::Sum).run(),
        |comm, it| {
            let mut got = vec![0; LEN];
            comm.all_to_all(&*it, &mut got).run()
        },
    ];
    for call in calls {
        // Two of the ranks have each other's memory.
        let (comms, mut memory) = ranks(&Communicator::builder(), 3);
        memory.swap(1, 2);
        for result in each_with(comms, memory, |comm, [mut buffer, _]| {
            // A rank that only sends may finish before the others ask for its memory.
            call(comm, &mut buffer).and_then(|()| comm.barrier().run())
        }) {
            assert_differs(result);
        }
    }
}

#[test]
fn memory_that_all_ranks_have_from_others_takes_the_ordinary_path() {
    let (comms, mut memory) = ranks(&Communicator::builder(), 3);
    // Rank r has the memory of rank r + 1.
    memory.rotate_left(1);
    let memory: Vec<_> = memory.into_iter().map(|[memory, _]| memory).collect();
    let results = each_with(comms, memory, |comm, mut memory| {
        let mut got = vec![-1; 3 * LEN];
        comm.all_gather(&memory, &mut got).run().unwrap();
        comm.all_reduce_in_place(&mut memory, RedOp::Sum)
            .run()
            .unwrap();
        (got, memory.to_vec())
    });
    for (got, sums) in results {
        let blocks = [10, 20, 0].map(|x| vec![x; LEN]);
        assert!(got == blocks.concat());
        assert!(sums.iter().all(|&x| x == 30), "{}", sums[0]);
    }
}

#[test]
fn zero_copy_refuses_memory_of_another_rank() {
    let builder = Communicator::builder().path(Path::ZeroCopy);
    let (comms, mut memory) = ranks(&builder, 2);
    memory.reverse();
    let results = each_with(comms, memory, |comm, [mut memory, _]| {
        let call = comm.all_reduce_in_place(&mut memory, RedOp::Sum);
        call.run()
    });
    for result in results {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }
}

/// Both communicators have the same size, and number their allocations alike.
#[test]
fn memory_of_another_communicator_is_not_that_of_this_one() {
    let (ours, mut own) = ranks(&Communicator::builder(), 2);
    let (theirs, mut others) = ranks(&Communicator::builder(), 2);
    drop(theirs);
    let buffers = vec![&mut own[0][0], &mut others[1][0]];
    for result in each_with(ours, buffers, |comm, it| {
        comm.all_reduce_in_place(it, RedOp::Sum).run()
    }) {
        assert_differs(result);
    }
}

/// In place, each rank's block is at the place of the results; otherwise it is the passed buffer.
#[test]
fn registered_blocks_at_different_places_are_a_mismatch() {
    for root in [None, Some(0), Some(1)] {
        let (comms, memory) = ranks(&Communicator::builder(), 2);
        let results = each_with(comms, memory, |comm, [mut memory, _]| {
            let mut got = vec![0; LEN];
            let own = comm.rank() == 0;
            match root {
                None if own => comm.all_gather_in_place(&mut memory).run(),
                None => {
                    let block = memory.view(0..LEN / 2)?;
                    comm.all_gather(block, &mut got).run()
                }
                Some(root) if own => comm.gather_in_place(&mut memory, root).run(),
                Some(root) => {
                    let block = memory.view(0..LEN / 2)?;
                    comm.gather(block, &mut got, root).run()
                }
            }
        });
        for result in results {
            let text = result.as_ref().unwrap_err().to_string();
            assert!(text.contains(", in place"), "{text}");
            assert_differs(result);
        }
    }
}
