//! Tests of the exact inputs and expected results.

// These tests compare for exactness.
#![allow(clippy::float_cmp)]

use super::*;

const DTYPES: [DType; 12] = [
    DType::I8,
    DType::U8,
    DType::I32,
    DType::U32,
    DType::I64,
    DType::U64,
    DType::F16,
    DType::F32,
    DType::F64,
    DType::Bf16,
    DType::F8E4M3,
    DType::F8E5M2,
];
const RANKS: [usize; 10] = [1, 2, 3, 5, 7, 8, 17, 64, 1000, 4096];

fn indices(ranks: usize) -> std::ops::Range<usize> {
    0..if ranks > 100 { 20 } else { 400 }
}

fn sign_extend(bits: u32, signed: bool, raw: u64) -> i128 {
    let value = i128::from(raw);
    if signed && raw >> (bits - 1) == 1 {
        value - (1 << bits)
    } else {
        value
    }
}

/// The float type that a test checks, and the case that its messages name.
struct FloatCase {
    dtype: DType,
    op: ReduceOp,
    ranks: usize,
    bits: u32,
    fraction: u32,
    bias: i32,
}

impl FloatCase {
    /// `None` for integer types.
    fn new(dtype: DType, op: ReduceOp, ranks: usize) -> Option<Self> {
        let Format::Float {
            bits,
            fraction,
            bias,
        } = Format::of(dtype)
        else {
            return None;
        };
        Some(Self {
            dtype,
            op,
            ranks,
            bits,
            fraction,
            bias,
        })
    }

    fn largest(&self) -> f64 {
        if self.dtype == DType::F8E4M3 {
            448.0
        } else {
            2f64.powi(self.bias) * (2.0 - 2f64.powi(-(self.fraction as i32)))
        }
    }

    fn encode(&self, value: f64) -> u64 {
        encode_f64(self.bits, self.fraction, self.bias, value)
    }

    fn decode(&self, raw: u64) -> f64 {
        float::decode(self.bits, self.fraction, self.bias, raw)
    }

    /// Checks that the type can represent a value.
    fn exact(&self, value: f64) -> f64 {
        let Self {
            dtype, op, ranks, ..
        } = self;
        assert!(
            value.abs() <= self.largest(),
            "{dtype:?} {op} {ranks}: {value} is out of range"
        );
        assert_eq!(
            self.decode(self.encode(value.abs())),
            value.abs(),
            "{dtype:?} {op} {ranks}: {value} is rounded"
        );
        value
    }

    fn operand(&self, reduction: &Reduction, rank: usize, index: usize) -> f64 {
        let raw = self.decode(reduction.input(rank, index));
        if self.op == ReduceOp::PreMulSum {
            self.exact(raw * Reduction::factor(rank) as f64)
        } else {
            raw
        }
    }

    fn combine(&self, a: f64, b: f64) -> f64 {
        match self.op {
            ReduceOp::Sum | ReduceOp::PreMulSum => self.exact(a + b),
            ReduceOp::Prod => self.exact(a * b),
            ReduceOp::Max => a.max(b),
            ReduceOp::Min => a.min(b),
            ReduceOp::Avg => a + b,
        }
    }
}

/// Every partial result, in both directions, must be representable in the type, and the last one
/// must be the expected result.
fn check_float(dtype: DType, op: ReduceOp, ranks: usize) {
    let Some(case) = FloatCase::new(dtype, op, ranks) else {
        return;
    };
    let reduction = Reduction::new(dtype, op, ranks, 7);
    for index in indices(ranks) {
        let operand = |rank| case.operand(&reduction, rank, index);
        let combine = |a, b| case.combine(a, b);
        let forwards = (1..ranks).map(operand).fold(operand(0), combine);
        let backwards = (0..ranks - 1)
            .rev()
            .map(operand)
            .fold(operand(ranks - 1), combine);
        assert_eq!(forwards.to_bits(), backwards.to_bits());
        let expected = reduction.expected(index);
        if op == ReduceOp::Avg {
            assert!(forwards <= case.largest());
            let result = case.encode(forwards / ranks as f64);
            assert!(
                result.abs_diff(expected) <= reduction.tolerance(),
                "{dtype:?} {ranks} {index}: {result:x} {expected:x}"
            );
        } else {
            let expected = case.decode(expected);
            assert_eq!(expected, forwards, "{dtype:?} {op} {ranks} {index}");
        }
    }
}

fn check_int(dtype: DType, op: ReduceOp, ranks: usize) {
    let Format::Int { bits, signed } = Format::of(dtype) else {
        return;
    };
    let format = Format::of(dtype);
    let reduction = Reduction::new(dtype, op, ranks, 7);
    for index in indices(ranks) {
        let inputs = (0..ranks).map(|rank| {
            let raw = reduction.input(rank, index);
            assert_eq!(raw & !format.mask(), 0);
            raw
        });
        let wide = |raw| sign_extend(bits, signed, raw);
        let result = match op {
            ReduceOp::Sum => inputs.fold(0u64, u64::wrapping_add),
            ReduceOp::PreMulSum => inputs.enumerate().fold(0u64, |a, (rank, x)| {
                a.wrapping_add(x.wrapping_mul(Reduction::factor(rank)))
            }),
            ReduceOp::Prod => inputs.fold(1u64, u64::wrapping_mul),
            ReduceOp::Max => inputs.map(wide).max().map_or(0, |x| x as u64),
            ReduceOp::Min => inputs.map(wide).min().map_or(0, |x| x as u64),
            // No partial sum may wrap, so that the division gives the same result in every width.
            ReduceOp::Avg => {
                let sum: i128 = inputs.map(wide).inspect(|&x| assert!(x >= 0)).sum();
                assert!(sum <= i128::from(u64::MAX >> (65 - bits)));
                (sum / ranks as i128) as u64
            }
        };
        assert_eq!(
            result & format.mask(),
            reduction.expected(index),
            "{dtype:?} {op} {ranks} {index}"
        );
    }
}

#[test]
fn every_type_operation_and_rank_count_is_exact() {
    for dtype in DTYPES {
        for op in ReduceOp::ALL {
            for ranks in RANKS {
                check_float(dtype, op, ranks);
                check_int(dtype, op, ranks);
            }
        }
    }
}

/// Counting one rank twice and omitting another must change results.
#[test]
fn a_missing_contribution_shows() {
    for dtype in [DType::F32, DType::F8E4M3, DType::Bf16, DType::I32] {
        for ranks in [2, 3, 8] {
            let reduction = Reduction::new(dtype, ReduceOp::Sum, ranks, 3);
            for rank in 0..ranks {
                let other = (rank + 1) % ranks;
                assert!(
                    (0..100)
                        .any(|index| reduction.input(rank, index) != reduction.input(other, index)),
                    "{dtype:?} {ranks}"
                );
                assert!(
                    (0..400).any(|index| reduction.input(rank, index) != 0),
                    "{dtype:?} {ranks}"
                );
            }
        }
    }
}

#[test]
fn seeds_and_sources_differ() {
    let format = Format::of(DType::F32);
    let at = |seed, source| {
        (0..64)
            .map(|index| moved(format, seed, source, index))
            .collect::<Vec<_>>()
    };
    assert_ne!(at(1, 0), at(1, 1));
    assert_ne!(at(1, 0), at(2, 0));
    let sums = |seed| {
        (0..64)
            .map(|index| Reduction::new(DType::F32, ReduceOp::Sum, 2, seed).expected(index))
            .collect::<Vec<_>>()
    };
    assert_ne!(sums(1), sums(2));
}

#[test]
fn moved_floats_are_finite() {
    for index in 0..1000 {
        assert!(from_bits::<f32>(moved(Format::of(DType::F32), 1, 3, index)).is_finite());
        assert!(from_bits::<f64>(moved(Format::of(DType::F64), 1, 3, index)).is_finite());
    }
}

#[test]
fn bits_round_trip() {
    assert_eq!(to_bits(&1.5f32), u64::from(1.5f32.to_bits()));
    assert_eq!(from_bits::<f32>(to_bits(&-2.25f32)), -2.25);
    assert_eq!(to_bits(&-1i8), 0xff);
    assert_eq!(from_bits::<i64>(to_bits(&-5i64)), -5);
}
