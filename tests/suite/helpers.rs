//! Threads that help with long calls.

use spark_ccl::{Builder, Communicator, DType, Element, Operation, RedOp, ReduceOp, bf16, f16};

use super::buffers::Memory;
use super::collectives_model::{COLLECTIVES, Case};
use super::ranks::run_with;

/// Elements of four bytes that a call of 1 MiB does not hold, and that no part holds evenly.
const LONG: usize = (1 << 18) + 4099;

fn helped(count: usize) -> Builder {
    Communicator::builder().set("SPARK_CCL_HELPERS", &count.to_string())
}

#[test]
fn every_long_collective_has_its_result_with_helpers() {
    for count in [0, 1, 3] {
        run_with(&helped(count), 2, |comm| {
            for collective in COLLECTIVES {
                for memory in [Memory::Ordinary, Memory::Registered] {
                    let case = Case {
                        memory,
                        offset: count,
                        ..Case::new(collective, LONG)
                    };
                    case.check::<i32>(comm);
                    let offered = comm.take_offered_parts();
                    assert!(count > 0 || offered == 0, "{case:?}: {offered} parts");
                    let divides = collective == Operation::AllReduce;
                    assert!(count == 0 || !divides || offered > 0, "{case:?}");
                }
            }
        });
    }
}

/// More operands than a part has room for without allocating.
#[test]
fn six_ranks_have_the_result_of_a_long_reduction_with_helpers() {
    run_with(&helped(1), 6, |comm| {
        let case = Case {
            memory: Memory::Registered,
            ..Case::new(Operation::AllReduce, LONG)
        };
        case.check::<i32>(comm);
        assert!(comm.take_offered_parts() > 0);
    });
}

/// Lent memory is read by several threads in longer calls only.
#[test]
fn lent_memory_is_gathered_with_helpers() {
    for helpers in [0, 3] {
        gather(helpers);
    }
}

fn gather(helpers: usize) {
    run_with(&helped(helpers), 2, |comm| {
        let count = (16 << 20) + 4099;
        let input: Vec<u8> = (0..count)
            .map(|index| (index * 7 + comm.rank()) as u8)
            .collect();
        let mut output = vec![0; 2 * count];
        comm.all_gather(&input, &mut output).run().unwrap();
        for (rank, block) in output.chunks(count).enumerate() {
            let mut values = block.iter().enumerate();
            assert!(values.all(|(index, &value)| value == (index * 7 + rank) as u8));
        }
        let offered = comm.take_offered_parts();
        assert_eq!(offered > 0, helpers > 0, "{offered} parts");
    });
}

/// The bits of sums that depend on their order, with this number of helpers, in both kinds of
/// memory.
fn sums<T: Element>(helpers: usize, value: impl Fn(f32) -> T + Sync) -> Vec<Vec<u8>> {
    run_with(&helped(helpers), 3, |comm| {
        let mut registered = comm.alloc::<T>(2 * LONG).unwrap();
        for (index, into) in registered.iter_mut().enumerate() {
            *into = value((index as f32 + comm.rank() as f32).sin());
        }
        let mut ordinary = registered.to_vec();
        comm.all_reduce_in_place(&mut registered, RedOp::Sum)
            .run()
            .unwrap();
        comm.all_reduce_in_place(&mut ordinary, RedOp::Sum)
            .run()
            .unwrap();
        let bits: [&[u8]; 2] = [&registered[..], &ordinary].map(bytemuck::cast_slice);
        bits.concat()
    })
}

#[test]
fn sums_have_the_same_bits_with_any_number_of_helpers() {
    let (f32s, f16s, bf16s) = (
        sums(0, |x| x),
        sums(0, f16::from_f32),
        sums(0, bf16::from_f32),
    );
    for count in [1, 2, 5] {
        assert!(sums(count, |x| x) == f32s, "f32, {count} helpers");
        assert!(sums(count, f16::from_f32) == f16s, "f16, {count} helpers");
        assert!(
            sums(count, bf16::from_f32) == bf16s,
            "bf16, {count} helpers"
        );
    }
}

#[test]
fn averages_and_reductions_that_are_not_done_at_once_have_their_results() {
    let builder = helped(2).compute_delay(2);
    run_with(&builder, 2, |comm| {
        for op in [ReduceOp::Avg, ReduceOp::Max] {
            let case = Case {
                op,
                ..Case::new(Operation::AllReduce, LONG)
            };
            case.check::<i32>(comm);
            case.check::<f32>(comm);
        }
    });
}

#[test]
fn explanations_name_the_helpers_of_long_calls() {
    run_with(&helped(3), 1, |comm| {
        let explain = |count| {
            let choice = comm.explain(Operation::AllReduce, DType::F32, count, false);
            choice.unwrap().to_string()
        };
        let text = explain(1 << 18);
        assert!(
            text.contains(", 3 helper threads (SPARK_CCL_HELPERS; ") && text.contains("affinity"),
            "{text}"
        );
        let text = explain((1 << 18) - 1);
        assert!(!text.contains("helper"), "{text}");
    });
}

/// Below 32 MiB, one thread reads what is lent.
#[test]
fn explanations_say_when_helpers_have_nothing_to_read() {
    run_with(&helped(3), 2, |comm| {
        let explain = |operation, count, registered| {
            let choice = comm.explain(operation, DType::U8, count, registered);
            choice.unwrap().to_string()
        };
        for (operation, count, registered, is_alone) in [
            (Operation::AllReduce, 2 << 20, false, false),
            (Operation::Broadcast, 2 << 20, false, true),
            (Operation::Broadcast, (32 << 20) - 1, false, true),
            (Operation::Broadcast, 32 << 20, false, false),
            (Operation::AllGather, 2 << 20, false, true),
            (Operation::AllGather, 16 << 20, false, false),
            (Operation::AllGather, 2 << 20, true, false),
        ] {
            let text = explain(operation, count, registered);
            let says = text.contains(", unless ranks read each other's memory by the kernel");
            assert!(text.contains("3 helper threads"), "{text}");
            assert_eq!(says, is_alone, "{operation} of {count}: {text}");
        }
    });
}
