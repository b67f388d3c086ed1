//! The expected result of a reduction, bit by bit: ranks in their order, small floats in 32 bits,
//! one rounding at the end. In a mean of floats, each operand is multiplied by 1/n in these bits
//! before it is added. And what the library makes of factors.

use spark_ccl_compute::{Compute, Cpu, Job, Operand, Started, Streaming};
use spark_ccl_types::small_float::{Half, narrow, widen};
use spark_ccl_types::{Combine, DType, F8E4M3, F8E5M2, ReduceOp, Scale, bf16};

macro_rules! integers {
    ($ty:ty, $op:expr, $inputs:expr) => {{
        let ranks = $inputs.len() as $ty;
        let is_mean = $op == ReduceOp::Avg;
        let step = |a: $ty, b: $ty| match $op {
            ReduceOp::Prod => a.wrapping_mul(b),
            ReduceOp::Max => a.max(b),
            ReduceOp::Min => a.min(b),
            _ => a.wrapping_add(b),
        };
        let pack = |x: $ty| if is_mean { x / ranks } else { x }.to_le_bytes();
        fold($inputs, <$ty>::from_le_bytes, step, pack)
    }};
}

macro_rules! floats {
    ($ty:ty, $op:expr, $inputs:expr, $unpack:expr, $pack:expr) => {{
        let factor = match $op {
            ReduceOp::Avg => 1.0 / $inputs.len() as $ty,
            _ => 1.0,
        };
        // NaN wins, and +0 is larger than -0.
        let pick = |a: $ty, b: $ty, larger: bool| {
            if a.is_nan() || b.is_nan() {
                <$ty>::NAN
            } else if (a.total_cmp(&b) == std::cmp::Ordering::Greater) == larger {
                a
            } else {
                b
            }
        };
        let step = |a: $ty, b: $ty| match $op {
            ReduceOp::Prod => a * b,
            ReduceOp::Max => pick(a, b, true),
            ReduceOp::Min => pick(a, b, false),
            _ => a + b,
        };
        let unpack = |bits| $unpack(bits) * factor;
        fold($inputs, unpack, step, $pack)
    }};
}

/// The reduction of all ranks' elements, which have been multiplied by their factors.
pub(crate) fn reduced(dtype: DType, op: ReduceOp, inputs: &[&[u8]]) -> Vec<u8> {
    match dtype {
        DType::I8 => integers!(i8, op, inputs),
        DType::U8 => integers!(u8, op, inputs),
        DType::I32 => integers!(i32, op, inputs),
        DType::U32 => integers!(u32, op, inputs),
        DType::I64 => integers!(i64, op, inputs),
        DType::U64 => integers!(u64, op, inputs),
        DType::F32 => floats!(f32, op, inputs, f32::from_le_bytes, single),
        DType::F64 => floats!(f64, op, inputs, f64::from_le_bytes, double),
        DType::F16 => floats!(
            f32,
            op,
            inputs,
            |bits| widen::<Half>(u32::from(u16::from_le_bytes(bits))),
            |x| (narrow::<Half>(x) as u16).to_le_bytes()
        ),
        DType::Bf16 => floats!(
            f32,
            op,
            inputs,
            |bits| bf16::from_le_bytes(bits).to_f32(),
            brain
        ),
        DType::F8E4M3 => floats!(
            f32,
            op,
            inputs,
            |[bits]: [u8; 1]| F8E4M3::from_bits(bits).to_f32(),
            |x| [F8E4M3::from_f32(x).to_bits()]
        ),
        DType::F8E5M2 => floats!(
            f32,
            op,
            inputs,
            |[bits]: [u8; 1]| F8E5M2::from_bits(bits).to_f32(),
            |x| [F8E5M2::from_f32(x).to_bits()]
        ),
    }
}

/// Elements times the factor that has these bits, by the engine for memory of the host.
pub(crate) fn scaled(dtype: DType, factor: u64, input: &[u8]) -> Vec<u8> {
    let mut output = vec![0; input.len()];
    let source = Operand {
        ptr: input.as_ptr(),
        scale: Scale::from_bytes(dtype, factor.to_le_bytes()),
    };
    let job = Job {
        dtype,
        op: Combine::Sum,
        srcs: &[source],
        dsts: &[output.as_mut_ptr()],
        count: input.len() / dtype.size(),
        streaming: Streaming::Nothing,
        divides: false,
    };
    // SAFETY: the source and the destination are two buffers, which this function keeps and nothing
    // else uses. Each has as many elements as the job says. The job is done when the call returns.
    let started = unsafe { Cpu::new().start(&job) };
    assert_eq!(started, Started::Done);
    output
}

// The bytes of a result; all NaNs have the same ones.

fn single(x: f32) -> [u8; 4] {
    if x.is_nan() {
        return 0x7fc0_0000_u32.to_le_bytes();
    }
    x.to_le_bytes()
}

fn double(x: f64) -> [u8; 8] {
    if x.is_nan() {
        return 0x7ff8_0000_0000_0000_u64.to_le_bytes();
    }
    x.to_le_bytes()
}

fn brain(x: f32) -> [u8; 2] {
    if x.is_nan() {
        return 0x7fc0_u16.to_le_bytes();
    }
    bf16::from_f32(x).to_le_bytes()
}

/// Reduces elements one by one.
fn fold<A: Copy, const N: usize>(
    inputs: &[&[u8]],
    unpack: impl Fn([u8; N]) -> A,
    step: impl Fn(A, A) -> A,
    pack: impl Fn(A) -> [u8; N],
) -> Vec<u8> {
    let element = |input: &[u8], at| unpack(*input[at..].first_chunk().unwrap());
    let places = (0..inputs[0].len()).step_by(N);
    places
        .flat_map(|at| {
            let all = inputs.iter().map(|input| element(input, at));
            pack(all.reduce(&step).unwrap())
        })
        .collect()
}
