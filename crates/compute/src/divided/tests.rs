//! Tests of jobs that are divided among helpers.

use spark_ccl_types::{Combine, DType, Scale};

use super::*;
use crate::Streaming;

/// Bytes of any bits, the same for the same seed.
fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(next).collect()
}

/// Everything that a job of this shape reads and writes, after it.
fn result(compute: &mut dyn Compute, shape: &Shape) -> Vec<Vec<u8>> {
    let (size, count) = (shape.dtype.size(), shape.count);
    let len = count * size + shape.shift;
    let mut buffers: Vec<_> = (0..4).map(|at| bytes(len, shape.seed + at)).collect();
    let starts = buffers.iter_mut().map(|it| it[shape.shift..].as_mut_ptr());
    let starts: Vec<_> = starts.collect();
    let scale = Scale::One;
    let operands = [0, 1].map(|at| Operand {
        ptr: starts[at],
        scale,
    });
    let job = Job {
        dtype: shape.dtype,
        op: shape.op,
        srcs: &operands[..shape.srcs],
        dsts: if shape.in_place {
            &starts[..1]
        } else {
            &starts[2..]
        },
        count,
        streaming: shape.streaming,
        divides: true,
    };
    // SAFETY: the buffers hold `count` elements from their starts on, and only this job uses them.
    // They are apart, or the same.
    assert_eq!(unsafe { compute.start(&job) }, Started::Done);
    buffers
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    dtype: DType,
    op: Combine,
    srcs: usize,
    count: usize,
    /// From the start of each buffer, in bytes.
    shift: usize,
    in_place: bool,
    streaming: Streaming,
    seed: u64,
}

#[test]
fn all_types_and_operations_have_the_same_bits_with_any_number_of_helpers() {
    let counts = [0, 1, 2, 3, 7];
    let mut divided =
        counts.map(|count| Divided::new(Cpu::new(), Arc::new(Helpers::new(count, || {}))));
    let mut seed = 0;
    for (dtype, op) in DType::ALL.into_iter().flat_map(|dtype| {
        let ops = Combine::ALL.into_iter();
        ops.map(move |op| (dtype, op))
    }) {
        for bytes in [2 * LEAST_PART - 1, 2 * LEAST_PART, 70_001] {
            seed += 1;
            let shape = Shape {
                dtype,
                op,
                srcs: 1 + seed as usize % 2,
                count: bytes / dtype.size(),
                shift: seed as usize % 3,
                in_place: seed % 5 < 2,
                streaming: match seed % 7 {
                    0 | 1 => Streaming::Everything,
                    2 | 3 => Streaming::Last,
                    _ => Streaming::Nothing,
                },
                seed,
            };
            let expected = result(&mut Cpu::new(), &shape);
            for (count, divided) in counts.into_iter().zip(&mut divided) {
                assert!(result(divided, &shape) == expected, "{count}: {shape:?}");
            }
        }
    }
}

#[test]
fn jobs_are_divided_only_where_they_ask_for_it() {
    for (divides, count, threads) in [(false, 70_000, 0), (true, 20_000, 0), (true, 70_000, 3)] {
        let helpers = Arc::new(Helpers::new(3, || {}));
        let mut compute = Divided::new(Cpu::new(), Arc::clone(&helpers));
        let (source, mut target) = (vec![1_u8; count], vec![0_u8; count]);
        let job = Job {
            dtype: DType::U8,
            op: Combine::Sum,
            srcs: &[Operand {
                ptr: source.as_ptr(),
                scale: Scale::One,
            }],
            dsts: &[target.as_mut_ptr()],
            count,
            streaming: Streaming::Nothing,
            divides,
        };
        // SAFETY: both hold `count` bytes, and only this job uses them.
        unsafe { compute.start(&job) };
        assert_eq!(target, source);
        assert_eq!(helpers.started(), threads, "{divides} {count}");
    }
}
