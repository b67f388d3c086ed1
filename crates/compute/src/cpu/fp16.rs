//! Half-precision arithmetic with AVX512-FP16.
//!
//! Its intrinsics need a type that is not stable yet, so this uses assembly. A vector has 32
//! halves. The instructions set MXCSR's exception flags, so the assembly does not preserve flags.

use core::arch::asm;
use core::arch::x86_64::{
    __m512i, _mm512_and_si512, _mm512_mask_mov_epi16, _mm512_or_si512, _mm512_set1_epi16,
};

use spark_ccl_types::Combine;

use super::lane::Op;

/// `a op b`, rounded to half. NaN stays NaN, but is not canonical.
///
/// # Safety
/// The machine must have AVX512-FP16.
#[inline(always)]
pub(super) unsafe fn combine<O: Op>(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: all of this needs no more than AVX512-FP16, which this function requires of the
    // machine, and touches no memory.
    unsafe {
        match O::NAME {
            Combine::Sum => add(a, b),
            Combine::Prod => mul(a, b),
            // For two zeros and for NaN, these instructions return their second operand. Both
            // orders are therefore combined, which settles the sign of zero: `and` keeps a sign bit
            // that both have, `or` one that either has. Equal values stay as they are.
            Combine::Max => or_nan(_mm512_and_si512(max(a, b), max(b, a)), a, b),
            Combine::Min => or_nan(_mm512_or_si512(min(a, b), min(b, a)), a, b),
        }
    }
}

/// Makes NaN canonical.
///
/// # Safety
/// The machine must have AVX512-FP16.
#[inline(always)]
pub(super) unsafe fn canonical(x: __m512i) -> __m512i {
    // SAFETY: all of this needs no more than AVX512-FP16, which this function requires of the
    // machine, and touches no memory.
    unsafe { or_nan(x, x, x) }
}

/// `number`, or NaN where `a` or `b` is NaN.
///
/// # Safety
/// The machine must have AVX512-FP16.
#[inline(always)]
unsafe fn or_nan(number: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: all of this needs no more than AVX512-FP16, which this function requires of the
    // machine, and touches no memory.
    unsafe { _mm512_mask_mov_epi16(number, unordered(a, b), _mm512_set1_epi16(0x7e00)) }
}

/// # Safety
/// The machine must have AVX512-FP16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn unordered(a: __m512i, b: __m512i) -> u32 {
    let mask;
    // SAFETY: the assembly needs AVX512-FP16, which this function requires of the machine, and only
    // uses registers.
    unsafe {
        asm!(
            "vcmpunordph {mask}, {a}, {b}",
            mask = out(kreg) mask,
            a = in(zmm_reg) a,
            b = in(zmm_reg) b,
            options(pure, nomem, nostack),
        );
    }
    mask
}

macro_rules! instructions {
    ($($name:ident: $instruction:literal;)*) => {$(
        /// # Safety
        /// The machine must have AVX512-FP16.
        #[inline]
        #[target_feature(enable = "avx512f")]
        pub(super) unsafe fn $name(a: __m512i, b: __m512i) -> __m512i {
            let result;
            // SAFETY: the assembly needs AVX512-FP16, which this function requires of the machine,
            // and only uses registers.
            unsafe {
                asm!(
                    concat!($instruction, " {result}, {a}, {b}"),
                    result = lateout(zmm_reg) result,
                    a = in(zmm_reg) a,
                    b = in(zmm_reg) b,
                    options(pure, nomem, nostack),
                );
            }
            result
        }
    )*};
}

instructions! {
    add: "vaddph";
    mul: "vmulph";
    max: "vmaxph";
    min: "vminph";
}
