//! Speed of the reduction kernels beside a memory copy, in bytes of the result per second.
//!
//! The operands are slices as the engine cuts them, and stay in the second-level cache.

#![allow(missing_docs)]

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use spark_ccl_compute::{Compute, Cpu, DType, Job, Operand, ReduceOp, Scale};

const BYTES: usize = 64 << 10;

fn every_type_and_operation(c: &mut Criterion) {
    let mut group = group(c, "reduce");
    let mut memory = Memory::new();
    group.bench_function("memcpy", |b| {
        b.iter(|| {
            let [first, .., last] = &mut memory.0;
            black_box(&mut *last).copy_from_slice(black_box(first));
        });
    });
    for dtype in DType::ALL {
        for op in ReduceOp::ALL {
            bench(
                &mut group,
                &format!("{dtype}/{op}"),
                &mut memory,
                dtype,
                op,
                2,
                1,
                Scale::One,
            );
        }
    }
}

fn shapes(c: &mut Criterion) {
    let mut group = group(c, "shape");
    let mut memory = Memory::new();
    let sum = ReduceOp::Sum;
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        for (srcs, dsts) in [(2, 2), (3, 1), (4, 1), (4, 4)] {
            let name = format!("{dtype}/{srcs} to {dsts}");
            bench(
                &mut group,
                &name,
                &mut memory,
                dtype,
                sum,
                srcs,
                dsts,
                Scale::One,
            );
        }
        let name = format!("{dtype}/2 to 1 scaled");
        bench(
            &mut group,
            &name,
            &mut memory,
            dtype,
            sum,
            2,
            1,
            Scale::Float(0.5),
        );
    }
}

fn group<'a>(c: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = c.benchmark_group(name);
    group
        .throughput(Throughput::Bytes(BYTES as u64))
        .sample_size(20)
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(200));
    group
}

#[allow(clippy::too_many_arguments)]
fn bench(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    memory: &mut Memory,
    dtype: DType,
    op: ReduceOp,
    srcs: usize,
    dsts: usize,
    scale: Scale,
) {
    let (sources, targets) = memory.0.split_at_mut(4);
    let operands: Vec<Operand> = sources[..srcs]
        .iter()
        .map(|src| Operand {
            ptr: src.as_ptr(),
            scale,
        })
        .collect();
    let targets: Vec<*mut u8> = targets[..dsts].iter_mut().map(Vec::as_mut_ptr).collect();
    let count = BYTES / dtype.size();
    let mut cpu = Cpu::new();
    group.bench_function(name, |b| {
        b.iter(|| {
            let job = Job {
                dtype,
                op,
                srcs: &operands,
                dsts: &targets,
                count,
            };
            // SAFETY: every buffer holds `BYTES` bytes, and nothing else touches them.
            unsafe { cpu.start(black_box(&job)) }
        });
    });
}

/// Four sources and four destinations. The bytes are finite numbers of every type.
struct Memory([Vec<u8>; 8]);

impl Memory {
    fn new() -> Self {
        Self(std::array::from_fn(|_| {
            (0..BYTES).map(|i| 0x30 + (i % 16) as u8).collect()
        }))
    }
}

criterion_group!(benches, every_type_and_operation, shapes);
criterion_main!(benches);
