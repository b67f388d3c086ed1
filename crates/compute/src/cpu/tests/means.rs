//! Means of two, compared with exact ones that are rounded once.

use half::f16;
use spark_ccl_types::{Combine, Element, F8E4M3, F8E5M2, Scale};

use super::Random;
use crate::cpu::Cpu;
use crate::cpu::dispatch::Level;
use crate::{Compute, Job, Operand, Streaming};

// Miri takes minutes for all pairs, even to make them.
const STRIDE: usize = if cfg!(miri) { 500 } else { 1 };

/// The mean of two numbers of less than 32 bits is the exact one, rounded once.
#[test]
fn a_mean_of_two_is_rounded_once() {
    let mut random = Random(3);
    let halves: Vec<_> = (0..100_000)
        .step_by(STRIDE)
        .map(|_| [0, 16].map(|shift| f16::from_bits((random.next() >> shift) as u16)))
        .collect();
    // In f32: without an instruction for it, `half` ignores the last 32 bits of an f64. Rounding to
    // f32 first makes no ties.
    check_means(&halves, |[a, b]| {
        f16::from_f32(f32::midpoint(a.to_f32(), b.to_f32()))
    });
    let bytes = || (0..=u16::MAX).step_by(STRIDE).map(u16::to_le_bytes);
    let e4m3: Vec<_> = bytes().map(|pair| pair.map(F8E4M3::from_bits)).collect();
    check_means(&e4m3, |[a, b]| {
        F8E4M3::from_f32(f32::midpoint(a.to_f32(), b.to_f32()))
    });
    let e5m2: Vec<_> = bytes().map(|pair| pair.map(F8E5M2::from_bits)).collect();
    check_means(&e5m2, |[a, b]| {
        F8E5M2::from_f32(f32::midpoint(a.to_f32(), b.to_f32()))
    });
}

fn check_means<T: Element>(pairs: &[[T; 2]], mean: impl Fn([T; 2]) -> T) {
    // Not a number is not equal to itself.
    let numbers: Vec<_> = pairs
        .iter()
        .copied()
        .filter(|&pair| mean(pair) == mean(pair))
        .collect();
    let [a, b] = [0, 1].map(|i| numbers.iter().map(|pair| pair[i]).collect::<Vec<T>>());
    let operands = [&a, &b].map(|values| Operand {
        ptr: values.as_ptr().cast(),
        scale: Scale::Unrounded(0.5),
    });
    for level in Level::available() {
        let mut result = vec![T::default(); a.len()];
        let job = Job {
            dtype: T::DTYPE,
            op: Combine::Sum,
            srcs: &operands,
            dsts: &[result.as_mut_ptr().cast()],
            count: a.len(),
            streaming: Streaming::Nothing,
            divides: false,
        };
        // SAFETY: all three buffers hold `count` elements, and only this job accesses them.
        unsafe { Cpu::at(level).start(&job) };
        for (&pair, &seen) in numbers.iter().zip(&result) {
            assert_eq!(seen, mean(pair), "{level:?}: {pair:?}");
        }
    }
}
