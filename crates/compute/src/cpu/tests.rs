//! Compares every kernel, at every level of the machine, with a plain loop, bit for bit.

mod means;
mod reference;

use std::fmt::Debug;

use half::{bf16, f16};
use proptest::prelude::*;
use reference::Reference;
use spark_ccl_testing::FloatMode;
#[cfg(target_arch = "x86_64")]
use spark_ccl_testing::{Need, has};
use spark_ccl_types::{Combine, DType, Element, F8E4M3, F8E5M2, Scale};

use super::Cpu;
use super::dispatch::Level;
use crate::{Compute, Job, Operand, Started, Streaming};

/// A job over memory of its own.
#[derive(Debug, Clone)]
struct Case {
    op: Combine,
    count: usize,
    srcs: usize,
    dsts: usize,
    scale: Option<Scale>,
    /// The source that is also the first destination, if any.
    alias: Option<usize>,
    streaming: Streaming,
    /// The mode of the thread that runs it, if not the default.
    mode: Option<FloatMode>,
    seed: u64,
}

const STREAMING: [Streaming; 3] = [Streaming::Nothing, Streaming::Last, Streaming::Everything];

const GUARD: u8 = 0xa5;

/// A buffer of elements, possibly misaligned, between guard bytes.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    fn new<T: Element>(values: &[T], shift: usize) -> Self {
        let mut bytes = vec![GUARD; 64 + shift];
        bytes.extend_from_slice(bytemuck::cast_slice(values));
        bytes.extend_from_slice(&[GUARD; 64]);
        Self {
            bytes,
            start: 64 + shift,
        }
    }

    fn ptr(&mut self) -> *mut u8 {
        self.bytes[self.start..].as_mut_ptr()
    }

    #[track_caller]
    fn assert_holds<T: Element>(&self, expected: &[T], what: &dyn Debug) {
        let (before, rest) = self.bytes.split_at(self.start);
        let (seen, after) = rest.split_at(rest.len() - 64);
        assert!(
            before.iter().chain(after).all(|&b| b == GUARD),
            "out of bounds: {what:?}"
        );
        let expected: &[u8] = bytemuck::cast_slice(expected);
        if seen != expected {
            let at = (0..seen.len()).find(|&i| seen[i] != expected[i]).unwrap() / size_of::<T>();
            let element = |bytes: &[u8]| {
                bytemuck::pod_read_unaligned::<T>(&bytes[at * size_of::<T>()..][..size_of::<T>()])
            };
            let (seen, expected) = (element(seen), element(expected));
            panic!("element {at}: {seen:?} instead of {expected:?}; {what:?}");
        }
    }
}

impl Case {
    /// Runs on every level and compares with the reference.
    fn check<T: Reference>(&self) {
        let mut random = Random(self.seed);
        let sources: Vec<Vec<T>> = (0..self.srcs)
            .map(|_| (0..self.count).map(|_| T::sample(random.next())).collect())
            .collect();
        let expected = self.expected(&sources);
        for level in Level::available() {
            self.check_level(level, &sources, &expected, &mut random);
        }
    }

    /// The factor of source `i`: every other source has one.
    fn scale(&self, i: usize) -> Scale {
        self.scale
            .filter(|_| i.is_multiple_of(2))
            .unwrap_or(Scale::One)
    }

    fn expected<T: Reference>(&self, sources: &[Vec<T>]) -> Vec<T> {
        (0..self.count)
            .map(|at| {
                let values = sources
                    .iter()
                    .enumerate()
                    .map(|(i, s)| (s[at], self.scale(i)));
                T::combine(self.op, values)
            })
            .collect()
    }

    /// Runs on one level, in buffers of random alignment.
    fn check_level<T: Reference>(
        &self,
        level: Level,
        sources: &[Vec<T>],
        expected: &[T],
        random: &mut Random,
    ) {
        let mut shift = || (random.next() % 9) as usize;
        let mut srcs: Vec<Buffer> = sources
            .iter()
            .map(|values| Buffer::new(values, shift()))
            .collect();
        let mut dsts: Vec<Buffer> = (0..self.dsts)
            .map(|_| Buffer::new(&vec![T::default(); self.count], shift()))
            .collect();
        let operands: Vec<Operand> = (0..)
            .zip(&mut srcs)
            .map(|(i, src)| Operand {
                ptr: src.ptr(),
                scale: self.scale(i),
            })
            .collect();
        let mut targets: Vec<*mut u8> = dsts.iter_mut().map(Buffer::ptr).collect();
        if let Some(alias) = self.alias {
            targets[0] = operands[alias].ptr.cast_mut();
        }
        let job = Job {
            dtype: T::DTYPE,
            op: self.op,
            srcs: &operands,
            dsts: &targets,
            count: self.count,
            streaming: self.streaming,
            divides: false,
        };
        // SAFETY: every buffer holds `count` elements, and only this job accesses them.
        let start = || unsafe { Cpu::at(level).start(&job) };
        let started = match self.mode {
            Some(mode) => mode.run(start),
            None => start(),
        };

        assert_eq!(started, Started::Done);
        let what = (T::DTYPE, level, self);
        for (i, src) in srcs.iter().enumerate() {
            let aliased = self.alias == Some(i);
            src.assert_holds(if aliased { expected } else { &sources[i] }, &what);
        }
        for dst in dsts.iter().skip(usize::from(self.alias.is_some())) {
            dst.assert_holds(expected, &what);
        }
    }

    fn check_dtype(&self, dtype: DType) {
        match dtype {
            DType::I8 => self.check::<i8>(),
            DType::U8 => self.check::<u8>(),
            DType::I32 => self.check::<i32>(),
            DType::U32 => self.check::<u32>(),
            DType::I64 => self.check::<i64>(),
            DType::U64 => self.check::<u64>(),
            DType::F16 => self.check::<f16>(),
            DType::F32 => self.check::<f32>(),
            DType::F64 => self.check::<f64>(),
            DType::Bf16 => self.check::<bf16>(),
            DType::F8E4M3 => self.check::<F8E4M3>(),
            DType::F8E5M2 => self.check::<F8E5M2>(),
        }
    }
}

/// A linear congruential generator, good enough to fill buffers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 ^ (self.0 >> 29)
    }
}

#[test]
fn every_type_operation_and_shape() {
    let mut seed = 0;
    for dtype in DType::ALL {
        for op in Combine::ALL {
            for count in [0, 1, 7, 63, 64, 65, 1000] {
                for (srcs, dsts) in (1..=5).flat_map(|s| (1..=3).map(move |d| (s, d))) {
                    seed += 1;
                    let case = Case {
                        op,
                        count,
                        srcs,
                        dsts,
                        scale: None,
                        alias: None,
                        streaming: STREAMING[(seed + seed / 15) as usize % 3],
                        mode: None,
                        seed,
                    };
                    case.check_dtype(dtype);
                }
            }
        }
    }
}

/// Exhaustive: every 8-bit float with every other.
#[test]
fn every_pair_of_8_bit_floats() {
    let e4m3: Vec<F8E4M3> = (0..=u8::MAX).map(F8E4M3::from_bits).collect();
    let e5m2: Vec<F8E5M2> = (0..=u8::MAX).map(F8E5M2::from_bits).collect();
    for op in Combine::ALL {
        check_pairs(op, &e4m3, &e4m3);
        check_pairs(op, &e5m2, &e5m2);
    }
}

/// Every half with each half at the edges of the format's ranges.
#[test]
fn halves_with_those_at_the_edges() {
    let edges = [
        0x0001, 0x03ff, 0x0400, 0x1401, 0x3bff, 0x7bff, 0x7c00, 0x8001,
    ];
    let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    for op in Combine::ALL {
        check_pairs(op, &edges.map(f16::from_bits), &all);
    }
}

/// A level that is not detected would not be tested at all.
#[test]
#[cfg(target_arch = "x86_64")]
fn every_level_of_the_processor_is_tested() {
    for (need, level) in [
        (Need::Avx2, Level::Avx2),
        (Need::Avx512, Level::Avx512),
        (Need::Avx512Fp16, Level::Avx512Fp16),
    ] {
        let is_tested = Level::available().any(|available| available == level);
        assert_eq!(is_tested, has(need), "{}", level.name());
    }
}

/// Each value of `some` with each of `others`, at every level.
#[track_caller]
fn check_pairs<T: Reference>(op: Combine, some: &[T], others: &[T]) {
    let (a, b): (Vec<T>, Vec<T>) = some
        .iter()
        .flat_map(|&a| others.iter().map(move |&b| (a, b)))
        .unzip();
    let expected: Vec<T> = (a.iter().zip(&b))
        .map(|(&a, &b)| T::combine(op, plain([a, b])))
        .collect();
    for level in Level::available() {
        let mut result = Buffer::new(&vec![T::default(); a.len()], 0);
        let operands = [&a, &b].map(|source| Operand {
            ptr: source.as_ptr().cast(),
            scale: Scale::One,
        });
        let job = Job {
            dtype: T::DTYPE,
            op,
            srcs: &operands,
            dsts: &[result.ptr()],
            count: a.len(),
            streaming: Streaming::Nothing,
            divides: false,
        };
        // SAFETY: all three buffers hold an element for each pair, and nothing else accesses them.
        unsafe { Cpu::at(level).start(&job) };
        result.assert_holds(&expected, &(T::DTYPE, op, level));
    }
}

fn plain<T, const N: usize>(values: [T; N]) -> impl Iterator<Item = (T, Scale)> {
    values.into_iter().map(|x| (x, Scale::One))
}

fn cases() -> impl Strategy<Value = (DType, Case)> {
    let scale = prop::option::of(prop_oneof![
        prop::sample::select(vec![0.0, -1.0, 0.5, 1.0 / 3.0, 3.0, 1e30, f64::NAN])
            .prop_map(Scale::Float),
        prop::sample::select(vec![0.0, 0.5, 1.0 / 3.0, 1e30, f64::NAN]).prop_map(Scale::Unrounded),
        prop::sample::select(vec![0, 3, u64::MAX]).prop_map(Scale::Int),
    ]);
    (
        prop::sample::select(DType::ALL.to_vec()),
        prop::sample::select(Combine::ALL.to_vec()),
        // Up to several blocks of the widest type.
        prop_oneof![0..200usize, 0..10_000usize],
        1..=5usize,
        1..=3usize,
        scale,
        prop::option::of(0..5usize),
        prop::sample::select(STREAMING.to_vec()),
        any::<u64>(),
    )
        .prop_map(
            |(dtype, op, count, srcs, dsts, scale, alias, streaming, seed)| {
                let alias = alias.map(|i| i % srcs);
                (
                    dtype,
                    Case {
                        op,
                        count,
                        srcs,
                        dsts,
                        scale,
                        alias,
                        streaming,
                        mode: None,
                        seed,
                    },
                )
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn factors_and_operands_in_place((dtype, case) in cases()) {
        case.check_dtype(dtype);
    }
}

/// Denormals are both operands and results here, and most sums are rounded.
#[test]
fn the_mode_of_the_thread_does_not_show() {
    let scales = [None, Some(Scale::Float(1.0 / 3.0))];
    for (mode, dtype) in FloatMode::ALL
        .into_iter()
        .flat_map(|mode| DType::ALL.map(|dtype| (mode, dtype)))
    {
        for (op, scale) in Combine::ALL
            .into_iter()
            .flat_map(|op| scales.map(|scale| (op, scale)))
        {
            let case = Case {
                op,
                count: 3000,
                srcs: 2,
                dsts: 2,
                scale,
                alias: None,
                streaming: STREAMING[2 * usize::from(scale.is_some())],
                mode: Some(mode),
                seed: 5,
            };
            case.check_dtype(dtype);
        }
    }
}

#[test]
fn order_does_not_show_in_max_and_min() {
    let values = [
        0.0f32,
        -0.0,
        1.0,
        f32::NAN,
        f32::from_bits(0xffc0_1234),
        f32::INFINITY,
    ];
    for op in [Combine::Max, Combine::Min] {
        for (a, b) in values
            .iter()
            .flat_map(|a| values.iter().map(move |b| (*a, *b)))
        {
            let [ab, ba] = [[a, b], [b, a]].map(|pair| reduce_two(op, pair));
            assert_eq!(ab.to_bits(), ba.to_bits(), "{op} of {a} and {b}");
        }
    }
    assert_eq!(reduce_two(Combine::Max, [-0.0, 0.0]).to_bits(), 0);
    assert_eq!(reduce_two(Combine::Min, [0.0, -0.0]).to_bits(), 1 << 31);
    assert_eq!(
        reduce_two(Combine::Max, [f32::from_bits(0xffc0_1234), 1.0]).to_bits(),
        0x7fc0_0000
    );
}

fn reduce_two(op: Combine, pair: [f32; 2]) -> f32 {
    let mut result = 0f32;
    let operands = pair.each_ref().map(|x| Operand {
        ptr: std::ptr::from_ref(x).cast(),
        scale: Scale::One,
    });
    let job = Job {
        dtype: DType::F32,
        op,
        srcs: &operands,
        dsts: &[(&raw mut result).cast()],
        count: 1,
        streaming: Streaming::Nothing,
        divides: false,
    };
    // SAFETY: the operands are one element each, alive, and accessed by this job only.
    unsafe { Cpu::new().start(&job) };
    result
}

#[test]
fn one_rounding_over_all_sources() {
    // In half precision 2048 + 1 rounds to 2048, but 2048 + 2 is exact.
    let [big, one] = [f16::from_f32(2048.0), f16::from_f32(1.0)];
    assert_eq!(
        f16::combine(Combine::Sum, plain([big, one, one])),
        f16::from_f32(2050.0)
    );
    let case = Case {
        op: Combine::Sum,
        count: 37,
        srcs: 3,
        dsts: 1,
        scale: None,
        alias: None,
        streaming: Streaming::Nothing,
        mode: None,
        seed: 1,
    };
    case.check_dtype(DType::F16);
}

/// Both destinations may be sources, in either order, or the same one.
#[test]
fn both_destinations_are_sources() {
    let orders = [[0, 1], [1, 0], [0, 0]];
    for (order, streaming) in
        (orders.iter()).flat_map(|order| STREAMING.map(|streaming| (order, streaming)))
    {
        let (mut a, mut b): (Vec<i32>, Vec<i32>) = ((0..5000).collect(), vec![7; 5000]);
        let operands = [a.as_mut_ptr(), b.as_mut_ptr()].map(|ptr| Operand {
            ptr: ptr.cast(),
            scale: Scale::One,
        });
        let targets = order.map(|i: usize| operands[i].ptr.cast_mut());
        let job = Job {
            dtype: DType::I32,
            op: Combine::Sum,
            srcs: &operands,
            dsts: &targets,
            count: 5000,
            streaming,
            divides: false,
        };
        // SAFETY: both buffers hold 5000 elements, and only this job accesses them.
        unsafe { Cpu::new().start(&job) };
        let expected: Vec<i32> = (7..5007).collect();
        assert_eq!(a, expected);
        assert_eq!(
            b,
            if order.contains(&1) {
                expected
            } else {
                vec![7; 5000]
            }
        );
    }
}
