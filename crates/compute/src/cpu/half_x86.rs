//! Half precision with the conversion instructions of x86-64.
//!
//! The methods contain instructions beyond the architecture's baseline. They are called only from
//! kernels compiled for a level that was found on the machine, into which they are inlined.

#![allow(clippy::wildcard_imports)]

use core::arch::x86_64::*;

use half::f16;

use super::lane::{Lane, float_factor};
use crate::Scale;

/// Eight halves, for AVX2 and F16C.
pub(super) struct F16x8;

impl Lane for F16x8 {
    const WIDTH: usize = 8;
    const SIZE: usize = 2;
    type Acc = __m256;
    type Factor = f32;
    type Single = f16;
    type Blocked = Self;

    #[inline(always)]
    unsafe fn load(ptr: *const u8) -> __m256 {
        // SAFETY: the caller vouches for 16 bytes; the load is an unaligned one.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(ptr.cast())) }
    }

    #[inline(always)]
    unsafe fn store(ptr: *mut u8, acc: __m256) {
        // SAFETY: the caller vouches for 16 bytes; the store is an unaligned one.
        unsafe { _mm_storeu_si128(ptr.cast(), narrow8(acc)) }
    }

    #[inline(always)]
    fn factor(scale: Scale) -> f32 {
        float_factor(scale) as f32
    }

    #[inline(always)]
    fn times(acc: __m256, factor: f32) -> __m256 {
        // SAFETY: called only where the level's instructions exist.
        unsafe { _mm256_mul_ps(acc, _mm256_set1_ps(factor)) }
    }

    #[inline(always)]
    fn sum(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as in `times`.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn prod(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as in `times`.
        unsafe { _mm256_mul_ps(a, b) }
    }

    // The instructions return their second operand for two zeros and for NaN. Combining both
    // orders settles the zeros' sign (`and` keeps it only if both have it, `or` if one has it);
    // equal to each other they change nothing. An unordered pair becomes NaN by setting all bits.
    #[inline(always)]
    fn max(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as in `times`.
        unsafe {
            let number = _mm256_and_ps(_mm256_max_ps(a, b), _mm256_max_ps(b, a));
            _mm256_or_ps(number, _mm256_cmp_ps::<_CMP_UNORD_Q>(a, b))
        }
    }

    #[inline(always)]
    fn min(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as in `times`.
        unsafe {
            let number = _mm256_or_ps(_mm256_min_ps(a, b), _mm256_min_ps(b, a));
            _mm256_or_ps(number, _mm256_cmp_ps::<_CMP_UNORD_Q>(a, b))
        }
    }
}

/// # Safety
/// The machine must have AVX2 and F16C.
#[inline(always)]
unsafe fn narrow8(x: __m256) -> __m128i {
    // SAFETY: passed on from the caller.
    unsafe {
        let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x);
        let canonical = _mm256_blendv_ps(x, _mm256_set1_ps(f32::NAN), nan);
        _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(canonical)
    }
}

/// Sixteen halves, for AVX-512.
pub(super) struct F16x16;

impl Lane for F16x16 {
    const WIDTH: usize = 16;
    const SIZE: usize = 2;
    type Acc = __m512;
    type Factor = f32;
    type Single = f16;
    type Blocked = Self;

    #[inline(always)]
    unsafe fn load(ptr: *const u8) -> __m512 {
        // SAFETY: the caller vouches for 32 bytes; the load is an unaligned one.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(ptr.cast())) }
    }

    #[inline(always)]
    unsafe fn store(ptr: *mut u8, acc: __m512) {
        // SAFETY: the caller vouches for 32 bytes; the store is an unaligned one.
        unsafe { _mm256_storeu_si256(ptr.cast(), narrow16(acc)) }
    }

    #[inline(always)]
    fn factor(scale: Scale) -> f32 {
        float_factor(scale) as f32
    }

    #[inline(always)]
    fn times(acc: __m512, factor: f32) -> __m512 {
        // SAFETY: called only where the level's instructions exist.
        unsafe { _mm512_mul_ps(acc, _mm512_set1_ps(factor)) }
    }

    #[inline(always)]
    fn sum(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as in `times`.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn prod(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as in `times`.
        unsafe { _mm512_mul_ps(a, b) }
    }

    // As in `F16x8`.
    #[inline(always)]
    fn max(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as in `times`.
        unsafe {
            let number = _mm512_and_ps(_mm512_max_ps(a, b), _mm512_max_ps(b, a));
            or_nan(number, a, b)
        }
    }

    #[inline(always)]
    fn min(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as in `times`.
        unsafe {
            let number = _mm512_or_ps(_mm512_min_ps(a, b), _mm512_min_ps(b, a));
            or_nan(number, a, b)
        }
    }
}

/// `number`, or NaN where `a` or `b` is.
///
/// # Safety
/// The machine must have AVX-512F.
#[inline(always)]
unsafe fn or_nan(number: __m512, a: __m512, b: __m512) -> __m512 {
    // SAFETY: passed on from the caller.
    unsafe {
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, b);
        _mm512_mask_mov_ps(number, nan, _mm512_set1_ps(f32::NAN))
    }
}

/// # Safety
/// The machine must have AVX-512F.
#[inline(always)]
unsafe fn narrow16(x: __m512) -> __m256i {
    // SAFETY: passed on from the caller.
    unsafe { _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(or_nan(x, x, x)) }
}
