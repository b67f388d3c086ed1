//! The speed of the reduction kernels, compared with a memory copy, in bytes of the result per
//! second.
//!
//! The operands have the size of the engine's slices, and stay in the L2 cache, except for those of
//! `streaming`, which are larger than the cache.

#![allow(missing_docs)]

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use spark_ccl_compute::{Compute, Cpu, Job, Operand, Streaming};
use spark_ccl_types::{Combine, DType, Scale};

const BYTES: usize = 64 << 10;
const LARGE: usize = 64 << 20;

fn every_type_and_operation(c: &mut Criterion) {
    let mut group = group(c, "reduce");
    let mut memory = Memory::new(BYTES);
    group.throughput(Throughput::Bytes(BYTES as u64));
    group.bench_function("memcpy", |b| {
        b.iter(|| {
            let [first, .., last] = &mut memory.0;
            black_box(&mut *last).copy_from_slice(black_box(first));
        });
    });
    for dtype in DType::ALL {
        for op in Combine::ALL {
            bench(
                &mut group,
                &format!("{dtype}/{op}"),
                &mut memory,
                Shape::pair(dtype, op),
            );
        }
    }
}

fn shapes(c: &mut Criterion) {
    let mut group = group(c, "shape");
    let mut memory = Memory::new(BYTES);
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        let pair = Shape::pair(dtype, Combine::Sum);
        for (srcs, dsts) in [(2, 2), (3, 1), (4, 1), (4, 4)] {
            let name = format!("{dtype}/{srcs} to {dsts}");
            bench(&mut group, &name, &mut memory, Shape { srcs, dsts, ..pair });
        }
        let scaled = Shape {
            scale: Scale::Float(0.5),
            ..pair
        };
        bench(
            &mut group,
            &format!("{dtype}/2 to 1 scaled"),
            &mut memory,
            scaled,
        );
    }
}

/// The fixed cost of a job. Seven elements leave an incomplete group in every lane.
fn small_jobs(c: &mut Criterion) {
    let mut group = group(c, "small");
    let mut memory = Memory::new(BYTES);
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        for count in [1, 7] {
            let name = format!("{dtype}/{count} elements");
            let shape = Shape {
                count,
                ..Shape::pair(dtype, Combine::Sum)
            };
            bench(&mut group, &name, &mut memory, shape);
        }
    }
}

/// Large destinations, written through the caches and past them.
fn streaming(c: &mut Criterion) {
    let mut group = group(c, "streaming");
    group.sample_size(10);
    let mut memory = Memory::new(LARGE);
    for dtype in [DType::F32, DType::Bf16] {
        for (srcs, dsts) in [(1, 1), (2, 1), (2, 2)] {
            for (streaming, name) in [
                (Streaming::Nothing, "plain"),
                (Streaming::Everything, "streaming"),
            ] {
                let name = format!("{dtype}/{srcs} to {dsts} {name}");
                let shape = Shape {
                    srcs,
                    dsts,
                    count: LARGE / dtype.size(),
                    streaming,
                    ..Shape::pair(dtype, Combine::Sum)
                };
                bench(&mut group, &name, &mut memory, shape);
            }
        }
    }
}

fn group<'a>(c: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = c.benchmark_group(name);
    group
        .sample_size(20)
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(200));
    group
}

#[derive(Clone, Copy)]
struct Shape {
    dtype: DType,
    op: Combine,
    srcs: usize,
    dsts: usize,
    scale: Scale,
    count: usize,
    streaming: Streaming,
}

impl Shape {
    /// Two sources into one destination, of `BYTES` each.
    fn pair(dtype: DType, op: Combine) -> Self {
        let count = BYTES / dtype.size();
        Self {
            dtype,
            op,
            srcs: 2,
            dsts: 1,
            scale: Scale::One,
            count,
            streaming: Streaming::Nothing,
        }
    }
}

fn bench(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, memory: &mut Memory, shape: Shape) {
    let Shape {
        dtype,
        op,
        srcs,
        dsts,
        scale,
        count,
        streaming,
    } = shape;
    let (sources, targets) = memory.0.split_at_mut(4);
    let operands: Vec<Operand> = sources[..srcs]
        .iter()
        .map(|src| Operand {
            ptr: src.as_ptr(),
            scale,
        })
        .collect();
    let targets: Vec<*mut u8> = targets[..dsts].iter_mut().map(Vec::as_mut_ptr).collect();
    let mut cpu = Cpu::new();
    group.throughput(Throughput::Bytes((count * dtype.size()) as u64));
    group.bench_function(name, |b| {
        b.iter(|| {
            let job = Job {
                dtype,
                op,
                srcs: &operands,
                dsts: &targets,
                count,
                streaming,
                divides: false,
            };
            // SAFETY: every buffer holds `count` elements, and nothing else accesses them.
            unsafe { cpu.start(black_box(&job)) }
        });
    });
}

/// Four sources and four destinations. The bytes are finite numbers in every type.
struct Memory([Vec<u8>; 8]);

impl Memory {
    fn new(bytes: usize) -> Self {
        Self(std::array::from_fn(|_| {
            (0..bytes).map(|i| 0x30 + (i % 16) as u8).collect()
        }))
    }
}

criterion_group!(
    benches,
    every_type_and_operation,
    shapes,
    small_jobs,
    streaming
);
criterion_main!(benches);
