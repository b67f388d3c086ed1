//! Arithmetic with halves, which machines with AVX512-FP16 have.
//!
//! Its intrinsics need a type that is not stable yet: hence the assembly. Vectors are of 32 halves.

use core::arch::asm;
use core::arch::x86_64::{
    __m512i, _mm512_and_si512, _mm512_mask_mov_epi16, _mm512_or_si512, _mm512_set1_epi16,
};

use spark_ccl_types::Combine;

use super::lane::Op;

/// `a op b`, rounded to half. Any NaN is NaN, but not canonical.
///
/// # Safety
/// The machine must have AVX512-FP16.
#[inline(always)]
pub(super) unsafe fn combine<O: Op>(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: passed on from the caller.
    unsafe {
        match O::NAME {
            Combine::Sum => add(a, b),
            Combine::Prod => mul(a, b),
            // The instructions return their second operand for two zeros and for NaN. Combining
            // both orders settles the zeros' sign (`and` keeps it only if both have it, `or` if
            // one has it); equal to each other they change nothing.
            Combine::Max => or_nan(_mm512_and_si512(max(a, b), max(b, a)), a, b),
            Combine::Min => or_nan(_mm512_or_si512(min(a, b), min(b, a)), a, b),
        }
    }
}

/// Makes any NaN canonical.
///
/// # Safety
/// The machine must have AVX512-FP16.
#[inline(always)]
pub(super) unsafe fn canonical(x: __m512i) -> __m512i {
    // SAFETY: passed on from the caller.
    unsafe { or_nan(x, x, x) }
}

/// `number`, or NaN where `a` or `b` is.
///
/// # Safety
/// The machine must have AVX512-FP16.
#[inline(always)]
unsafe fn or_nan(number: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: passed on from the caller.
    unsafe { _mm512_mask_mov_epi16(number, unordered(a, b), _mm512_set1_epi16(0x7e00)) }
}

/// # Safety
/// The machine must have AVX512-FP16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn unordered(a: __m512i, b: __m512i) -> u32 {
    let mask;
    // SAFETY: passed on from the caller; on registers alone.
    unsafe {
        asm!(
            "vcmpunordph {mask}, {a}, {b}",
            mask = out(kreg) mask,
            a = in(zmm_reg) a,
            b = in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags),
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
            // SAFETY: passed on from the caller; on registers alone.
            unsafe {
                asm!(
                    concat!($instruction, " {result}, {a}, {b}"),
                    result = lateout(zmm_reg) result,
                    a = in(zmm_reg) a,
                    b = in(zmm_reg) b,
                    options(pure, nomem, nostack, preserves_flags),
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
