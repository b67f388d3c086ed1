//! Registered memory: the zero-copy path and its conditions.

use std::time::{Duration, Instant};

use spark_ccl::{
    Algorithm, Builder, Communicator, DType, Error, F8E4M3, F8E5M2, Fault, Operation, Path, RedOp,
    ReduceOp, Reducer, bf16, f16,
};

use super::buffers::Memory;
use super::collectives_model::{COLLECTIVES, Case};
use super::ranks::{each, run, run_with};
use super::types::for_every_type;

fn zero_copy() -> Builder {
    Communicator::builder().path(Path::ZeroCopy)
}

/// Every collective with a one-sided form.
fn one_sided(count: usize) -> impl Iterator<Item = Case> {
    COLLECTIVES.into_iter().flat_map(move |collective| {
        [false, true]
            .into_iter()
            // An exchange in place has none.
            .filter(move |in_place| !(*in_place && collective == Operation::AllToAll))
            .map(move |in_place| Case {
                in_place,
                memory: Memory::Registered,
                ..Case::new(collective, count)
            })
    })
}

fn has_one_sided_form(case: &Case) -> bool {
    // In a scatter out of place, only the root's memory is certainly registered.
    case.in_place || case.collective != Operation::Scatter
}

#[test]
fn memory_is_zeroed_and_can_be_empty() {
    run(3, |comm| {
        let mut memory = comm.alloc::<u64>(1000).unwrap();
        assert!(memory.iter().all(|&x| x == 0));
        memory.fill(7);
        drop(memory);
        let again = comm.alloc::<u64>(1000).unwrap();
        assert!(again.iter().all(|&x| x == 0));
        let empty = comm.alloc::<f32>(0).unwrap();
        assert!(empty.is_empty());
    });
}

#[test]
fn every_path_computes_the_same() {
    for path in [Path::ZeroCopy, Path::Safe, Path::Auto] {
        for n in [1, 2, 3, 5, 8] {
            run_with(&Communicator::builder().path(path), n, |comm| {
                for count in [0, 1, n, 1009, 40_003] {
                    for case in one_sided(count) {
                        if path == Path::ZeroCopy && !has_one_sided_form(&case) {
                            continue;
                        }
                        Case {
                            root: n - 1,
                            offset: count % 5,
                            ..case
                        }
                        .check::<f32>(comm);
                    }
                }
            });
        }
    }
}

#[test]
fn zero_copy_reduces_every_type_by_every_operation() {
    run_with(&zero_copy(), 3, |comm| {
        // Factors may differ between ranks, so no rank can apply another's.
        for op in ReduceOp::ALL
            .into_iter()
            .filter(|&op| op != ReduceOp::PreMulSum)
        {
            for case in one_sided(515).filter(|case| case.collective.reduces()) {
                let case = Case {
                    op,
                    root: 1,
                    ..case
                };
                for_every_type!(T => case.check::<T>(comm));
            }
        }
    });
}

#[test]
fn every_rank_has_its_own_factor() {
    for path in [Path::Safe, Path::Auto] {
        run_with(&Communicator::builder().path(path), 3, |comm| {
            let factor = Reducer::PreMulSum(10_i64.pow(comm.rank() as u32));
            for count in [1, 30_000] {
                let mut memory = comm.alloc::<i64>(count).unwrap();
                memory.fill(2);
                let mut ordinary = memory.to_vec();
                comm.all_reduce_in_place(&mut memory, factor).run().unwrap();
                comm.all_reduce_in_place(&mut ordinary, factor)
                    .run()
                    .unwrap();
                assert!(memory.iter().chain(&ordinary).all(|&x| x == 222));
            }
        });
    }
}

#[test]
fn registered_memory_over_sockets_is_as_good_as_ordinary() {
    let builder = Communicator::builder().shared_memory(false);
    run_with(&builder, 3, |comm| {
        for case in one_sided(5003) {
            case.check::<f32>(comm);
        }
    });
}

#[test]
fn large_registered_memory_takes_the_zero_copy_path() {
    run(2, |comm| {
        let registered = comm
            .explain(Operation::AllReduce, DType::F32, 1 << 20, true)
            .unwrap();
        assert!(registered.algorithm == Algorithm::OneSided, "{registered}");
        let ordinary = comm
            .explain(Operation::AllReduce, DType::F32, 1 << 20, false)
            .unwrap();
        assert!(ordinary.algorithm != Algorithm::OneSided, "{ordinary}");
    });
}

#[test]
fn zero_copy_gives_the_same_bits_on_every_rank() {
    let results = run_with(&zero_copy(), 5, |comm| {
        let mut memory = comm.alloc::<f32>(10_007).unwrap();
        for (i, x) in memory.iter_mut().enumerate() {
            *x = ((i * 31 + comm.rank() * 17) as f32).sqrt();
        }
        comm.all_reduce_in_place(&mut memory, RedOp::Avg)
            .run()
            .unwrap();
        memory.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    });
    assert!(results.iter().all(|result| *result == results[0]));
}

#[test]
fn views_must_lie_within_the_memory() {
    run(1, |comm| {
        let mut memory = comm.alloc::<i32>(10).unwrap();
        memory.view(0..10).unwrap();
        memory.view_mut(10..10).unwrap();
        #[allow(clippy::reversed_empty_ranges)]
        for range in [0..11, 11..11, 7..6, 0..usize::MAX] {
            let text = memory.view(range.clone()).unwrap_err().to_string();
            assert!(text.contains("10 elements"), "{text}");
            assert!(matches!(memory.view_mut(range), Err(Error::Invalid { .. })));
        }
    });
}

/// Checks the errors of calls that differ in the place of their registered memory.
fn differing_places(place: impl Fn(&Communicator) -> Result<(), Error> + Sync) {
    let start = Instant::now();
    let errors = each(Communicator::local(2).unwrap(), |comm| {
        place(&comm).unwrap_err()
    });
    assert!(
        start.elapsed() < Duration::from_secs(60),
        "{:?}",
        start.elapsed()
    );
    for error in errors {
        let Error::Failed(fault) = &error else {
            panic!("{error}");
        };
        assert!(matches!(**fault, Fault::Mismatch { .. }), "{error}");
        assert!(
            error.to_string().contains("allocation and offset"),
            "{error}"
        );
    }
}

#[test]
fn views_at_different_places_are_a_mismatch() {
    differing_places(|comm| {
        let mut memory = comm.alloc::<f32>(20_000)?;
        let start = comm.rank() * 16;
        let view = memory.view_mut(start..start + 10_000)?;
        comm.all_reduce_in_place(view, RedOp::Sum).run()
    });
}

#[test]
fn views_of_different_allocations_are_a_mismatch() {
    differing_places(|comm| {
        let mut memory = [comm.alloc::<f32>(10_000)?, comm.alloc(10_000)?];
        let buffer = &mut memory[comm.rank()];
        comm.all_reduce_in_place(buffer, RedOp::Sum).run()
    });
}

/// From one element on, on both sides of the zero-copy path's threshold.
const COUNTS: [usize; 4] = [1, 10, 1_024, 10_000];

#[test]
fn what_is_a_mismatch_is_one_at_every_size() {
    for count in COUNTS {
        differing_places(|comm| {
            let mut memory = comm.alloc::<f32>(2 * count)?;
            let start = comm.rank() * count;
            let view = memory.view_mut(start..start + count)?;
            comm.all_reduce_in_place(view, RedOp::Sum).run()
        });
    }
}

#[test]
fn registered_on_one_rank_alone_is_a_mismatch() {
    for count in COUNTS {
        differing_places(|comm| {
            let mut memory = comm.alloc::<f32>(count)?;
            if comm.rank() == 0 {
                let call = comm.all_reduce_in_place(&mut memory, RedOp::Sum);
                call.run()
            } else {
                let call = comm.all_reduce_in_place(&mut memory[..], RedOp::Sum);
                call.run()
            }
        });
    }
}

/// Ranks that cannot be one-sided do not check the place of memory.
#[test]
fn any_memory_will_do_where_all_data_go_through_links() {
    let ring = Communicator::builder().algorithms(Algorithm::Ring);
    for builder in [Communicator::builder().path(Path::Safe), ring] {
        for count in COUNTS {
            run_with(&builder, 3, |comm| {
                let mut memory = comm.alloc::<i32>(2 * count).unwrap();
                memory.fill(1);
                let start = comm.rank() % 2 * count;
                let view = memory.view_mut(start..start + count).unwrap();
                comm.all_reduce_in_place(view, RedOp::Sum).run().unwrap();
                assert_eq!(memory[start..start + count], vec![3; count]);
            });
        }
    }
}

#[test]
fn parts_of_memory_are_used_together() {
    run(2, |comm| {
        let mut memory = comm.alloc::<i32>(1_000).unwrap();
        memory.fill(1);
        let (first, rest) = memory.split_at_mut(100).unwrap();
        comm.scope(|scope| {
            comm.all_reduce_in_place(first, RedOp::Sum)
                .start_in(scope)?;
            comm.all_reduce_in_place(rest, RedOp::Max).start_in(scope)?;
            Ok(())
        })
        .unwrap();
        assert_eq!(
            (&memory[..100], &memory[100..]),
            (&[2; 100][..], &[1; 900][..])
        );
        memory.split_at_mut(1_000).unwrap();
        for mid in [1_001, usize::MAX] {
            let error = memory.split_at_mut(mid).unwrap_err();
            assert!(error.to_string().contains("1000 elements"), "{error}");
        }
    });
}

#[test]
fn zero_copy_refuses_ordinary_memory_and_stays_usable() {
    run_with(&zero_copy(), 2, |comm| {
        let mut ordinary = vec![1.0_f32; 100];
        let error = comm
            .all_reduce_in_place(&mut ordinary, RedOp::Sum)
            .run()
            .unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        let text = error.to_string();
        for part in [
            "all_reduce",
            "zero-copy",
            "Communicator::alloc",
            "SPARK_CCL_PATH",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        Case {
            memory: Memory::Registered,
            ..Case::new(Operation::AllReduce, 100)
        }
        .check::<f32>(comm);
    });
}

#[test]
fn zero_copy_between_hosts_is_refused_with_the_reason() {
    let builder = zero_copy().shared_memory(false);
    run_with(&builder, 2, |comm| {
        let mut memory = comm.alloc::<f32>(100).unwrap();
        let error = comm
            .all_reduce_in_place(&mut memory, RedOp::Sum)
            .run()
            .unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    });
}

#[test]
fn memory_that_no_device_reaches_can_be_registered_all_the_same() {
    run(3, |comm| {
        let mut memory = comm.register(vec![comm.rank() as i32; 100_000]);
        comm.all_reduce_in_place(&mut memory, RedOp::Sum)
            .run()
            .unwrap();
        assert!(memory.iter().all(|x| *x == 3));
        let mut nothing = comm.register::<u8>(Vec::new());
        comm.broadcast_in_place(&mut nothing, 0).run().unwrap();
        assert!(nothing.is_empty());
        // It counts as ordinary, so the other ranks' memory may be ordinary.
        let mut mixed = vec![comm.rank() as i32; 100_000];
        if comm.rank() == 1 {
            memory.copy_from_slice(&mixed);
            comm.all_reduce_in_place(&mut memory, RedOp::Max)
                .run()
                .unwrap();
            mixed.copy_from_slice(&memory);
        } else {
            comm.all_reduce_in_place(&mut mixed, RedOp::Max)
                .run()
                .unwrap();
        }
        assert!(mixed.iter().all(|x| *x == 2));
    });
}

/// Memory is mapped by the ranks that allocated it; another communicator numbers them anew.
#[test]
fn memory_of_another_communicator_is_never_mistaken() {
    run(4, |comm| {
        let mut memory = comm.alloc::<i64>(5000).unwrap();
        memory.fill(1 << comm.rank());
        let half = comm
            .split(Some(comm.rank() as u32 / 2), 0)
            .unwrap()
            .unwrap();
        half.all_reduce_in_place(&mut memory, RedOp::Sum)
            .run()
            .unwrap();
        let expected = if comm.rank() < 2 { 0b0011 } else { 0b1100 };
        assert!(
            memory.iter().all(|&x| x == expected),
            "rank {}: {}",
            comm.rank(),
            memory[0]
        );
        half.finalize().unwrap();
    });
}

#[test]
fn memory_outlives_its_communicator() {
    let memories = run(2, |comm| {
        let mut memory = comm.alloc::<i32>(3000).unwrap();
        memory.fill(1 + comm.rank() as i32);
        comm.all_reduce_in_place(&mut memory, RedOp::Sum)
            .run()
            .unwrap();
        memory
    });
    for memory in &memories {
        assert!(memory.iter().all(|&x| x == 3));
    }
    let comms = Communicator::local(2).unwrap();
    let pairs: Vec<_> = comms.into_iter().zip(memories).collect();
    std::thread::scope(|scope| {
        for (comm, mut memory) in pairs {
            scope.spawn(move || {
                comm.all_reduce_in_place(&mut memory, RedOp::Sum)
                    .run()
                    .unwrap();
                assert!(memory.iter().all(|&x| x == 6));
                comm.finalize().unwrap();
            });
        }
    });
}

#[test]
fn memory_keeps_its_contents_after_an_abort() {
    let started = std::sync::Barrier::new(2);
    each(Communicator::local(2).unwrap(), |comm| {
        let mut memory = comm.alloc::<i32>(5000).unwrap();
        memory.fill(5);
        let error = if comm.rank() == 0 {
            let call = comm.all_reduce_in_place(memory, RedOp::Sum);
            let pending = call.start().unwrap();
            started.wait();
            let failed = pending.wait().unwrap_err();
            // The memory belongs to this rank again.
            memory = failed.buffers;
            failed.error
        } else {
            started.wait();
            comm.abort("enough");
            comm.barrier().run().unwrap_err()
        };
        assert!(error.to_string().contains("enough"), "{error}");
        assert!(memory.iter().all(|&x| x == 5));
        memory.fill(6);
        assert!(memory.iter().all(|&x| x == 6));
    });
}

#[test]
fn too_much_memory_is_an_error_on_every_rank() {
    run(2, |comm| {
        for len in [usize::MAX / 8, usize::MAX] {
            let error = comm.alloc::<f32>(len).unwrap_err();
            assert!(matches!(error, Error::Memory { .. }), "{error:?}");
        }
        comm.alloc::<f32>(100).unwrap();
    });
}
