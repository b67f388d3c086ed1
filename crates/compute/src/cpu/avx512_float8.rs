//! 8-bit float lanes with AVX-512.
//!
//! A number with five exponent bits is the upper byte of a half. One with four is so after a shift,
//! except for a factor. The machine can convert halves.
//!
//! These instructions are beyond the architecture's baseline. The lanes' methods are called only
//! from kernels of a level that the machine supports, into which they are inlined.

#![allow(clippy::wildcard_imports)]

use core::arch::x86_64::*;
use std::marker::PhantomData;

use spark_ccl_types::Combine;

use super::arithmetic::each;
use super::avx512::{narrow, widen};
use super::fp16;
use super::lane::{Lane, Op};

/// The differences between the two formats. The functions are unsafe because the machine must have
/// the level's instructions.
pub(super) trait Format {
    /// The number of mantissa bits.
    const MAN: i32;
    /// The smallest normal value.
    const NORMAL: f32;
    /// The value after the largest one: infinity, or NaN in a format without infinity.
    const OVERFLOW: f32;
    const INFINITY: bool;
    /// The factor from a value to the half with the format's exponent bits.
    const SCALE: f32;

    /// The halves, from the upper bytes of 16-bit words.
    ///
    /// # Safety
    /// The machine must have AVX-512BW.
    unsafe fn halves(words: __m512i) -> __m512i;

    /// The inverse. The lower bytes are undefined.
    ///
    /// # Safety
    /// The machine must have AVX-512BW.
    unsafe fn words(halves: __m512i) -> __m512i;

    /// Rounds halves from [`Format::halves`], or computed from such, to values of the format.
    ///
    /// # Safety
    /// The machine must have AVX-512BW.
    unsafe fn round(halves: __m512i) -> __m512i;

    /// A mask of the bytes that are NaN.
    ///
    /// # Safety
    /// The machine must have AVX-512BW.
    unsafe fn nan(bytes: __m512i) -> __mmask64;
}

/// The format with five exponent bits.
pub(super) struct E5M2;

impl Format for E5M2 {
    const MAN: i32 = 2;
    const NORMAL: f32 = 1.0 / 16384.0;
    const OVERFLOW: f32 = 65536.0;
    const INFINITY: bool = true;
    const SCALE: f32 = 1.0;

    #[inline(always)]
    unsafe fn halves(words: __m512i) -> __m512i {
        // SAFETY: all of this needs no more than AVX-512BW, which this function requires of the
        // machine, and touches no memory.
        unsafe { _mm512_and_si512(words, _mm512_set1_epi16(0xff00_u16 as i16)) }
    }

    #[inline(always)]
    unsafe fn words(halves: __m512i) -> __m512i {
        halves
    }

    // Like `round_bf16` in `lane`. No NaN has bits in the lower byte.
    #[inline(always)]
    unsafe fn round(halves: __m512i) -> __m512i {
        // SAFETY: all of this needs no more than AVX-512BW, which this function requires of the
        // machine, and touches no memory.
        unsafe { half_to_even::<8>(halves) }
    }

    #[inline(always)]
    unsafe fn nan(bytes: __m512i) -> __mmask64 {
        // SAFETY: all of this needs no more than AVX-512BW, which this function requires of the
        // machine, and touches no memory.
        unsafe {
            let magnitude = _mm512_and_si512(bytes, _mm512_set1_epi8(0x7f));
            _mm512_cmpgt_epi8_mask(magnitude, _mm512_set1_epi8(0x7c))
        }
    }
}

/// The format with four exponent bits.
pub(super) struct E4M3;

impl Format for E4M3 {
    const MAN: i32 = 3;
    const NORMAL: f32 = 1.0 / 64.0;
    const OVERFLOW: f32 = 480.0;
    const INFINITY: bool = false;
    const SCALE: f32 = 1.0 / 256.0;

    #[inline(always)]
    unsafe fn halves(words: __m512i) -> __m512i {
        // SAFETY: all of this needs no more than AVX-512BW, which this function requires of the
        // machine, and touches no memory.
        unsafe {
            let halves = _mm512_srai_epi16::<1>(words);
            let halves = _mm512_and_si512(halves, _mm512_set1_epi16(0xbf80_u16 as i16));
            let magnitude = _mm512_set1_epi16(0x3f80);
            let nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(halves, magnitude), magnitude);
            _mm512_mask_mov_epi16(halves, nan, _mm512_set1_epi16(0x7e00))
        }
    }

    #[inline(always)]
    unsafe fn words(halves: __m512i) -> __m512i {
        // SAFETY: all of this needs no more than AVX-512BW, which this function requires of the
        // machine, and touches no memory.
        unsafe {
            let sign = _mm512_set1_epi16(0x8000_u16 as i16);
            // halves & sign | (halves << 1) & !sign
            _mm512_ternarylogic_epi32::<0xca>(sign, halves, _mm512_slli_epi16::<1>(halves))
        }
    }

    // Values that are too large become NaN; NaN stays NaN.
    #[inline(always)]
    unsafe fn round(halves: __m512i) -> __m512i {
        // SAFETY: all of this needs no more than AVX-512BW, which this function requires of the
        // machine, and touches no memory.
        unsafe {
            let sign = _mm512_set1_epi16(0x8000_u16 as i16);
            let magnitude = half_to_even::<7>(_mm512_andnot_si512(sign, halves));
            let magnitude = _mm512_min_epu16(magnitude, _mm512_set1_epi16(0x3f80));
            // sign & halves | magnitude
            _mm512_ternarylogic_epi32::<0xea>(sign, halves, magnitude)
        }
    }

    #[inline(always)]
    unsafe fn nan(bytes: __m512i) -> __mmask64 {
        // SAFETY: all of this needs no more than AVX-512BW, which this function requires of the
        // machine, and touches no memory.
        unsafe {
            let nan = _mm512_set1_epi8(0x7f);
            _mm512_cmpeq_epi8_mask(_mm512_and_si512(bytes, nan), nan)
        }
    }
}

/// Rounds to multiples of `1 << BITS`, ties to even; the lower bits are undefined.
///
/// # Safety
/// The machine must have AVX-512BW.
#[inline(always)]
unsafe fn half_to_even<const BITS: u32>(words: __m512i) -> __m512i {
    // SAFETY: all of this needs no more than AVX-512BW, which this function requires of the
    // machine, and touches no memory.
    unsafe {
        let last = _mm512_and_si512(_mm512_srli_epi16::<BITS>(words), _mm512_set1_epi16(1));
        let half = _mm512_set1_epi16((1 << (BITS - 1)) - 1);
        _mm512_add_epi16(words, _mm512_add_epi16(last, half))
    }
}

/// `N` vectors of 64 bytes. An accumulator has the even bytes of each half of a vector, then the
/// odd ones. `NATIVE` if the machine has half-precision arithmetic.
pub(super) struct Float8<F, const N: usize, const NATIVE: bool>(PhantomData<F>);

impl<F: Format, const N: usize, const NATIVE: bool> Lane for Float8<F, N, NATIVE> {
    const WIDTH: usize = 64 * N;
    const SIZE: usize = 1;
    type Packed = [__m512i; N];
    type Acc = [[__m512; 4]; N];
    type Tile = Float8<F, 2, NATIVE>;

    #[inline(always)]
    unsafe fn read(ptr: *const u8) -> Self::Packed {
        // SAFETY: `ptr` is readable for a group, as `Lane::read` requires: for `N` vectors of 64
        // bytes; this is vector `i` of them. The load needs no alignment, and the machine has the
        // lane's instructions (also required).
        each!(i => unsafe { _mm512_loadu_si512(ptr.add(i * 64).cast()) })
    }

    #[inline(always)]
    unsafe fn write(ptr: *mut u8, packed: Self::Packed) {
        for (i, bytes) in packed.into_iter().enumerate() {
            // SAFETY: `ptr` is writable for a group, as `Lane::write` requires: for `N` vectors of
            // 64 bytes; this is vector `i` of them. The store needs no alignment, and the machine
            // has the lane's instructions (also required).
            unsafe { _mm512_storeu_si512(ptr.add(i * 64).cast(), bytes) };
        }
    }

    #[inline(always)]
    fn unpack(packed: Self::Packed) -> Self::Acc {
        // SAFETY: the machine has the instructions: only kernels of a level that it supports may
        // call this (the rule of `Lane`).
        each!(i => unsafe {
            let [even, odd] = split::<F>(packed[i]);
            let ([a, b], [c, d]) = (floats::<F>(even), floats::<F>(odd));
            [a, b, c, d]
        })
    }

    #[inline(always)]
    fn pack(acc: Self::Acc) -> Self::Packed {
        // SAFETY: the machine has the instructions: only kernels of a level that it supports may
        // call this (the rule of `Lane`).
        each!(i => unsafe {
            let [a, b, c, d] = acc[i];
            let even = halves::<F>([round::<F>(a), round::<F>(b)]);
            join::<F>([even, halves::<F>([round::<F>(c), round::<F>(d)])])
        })
    }

    #[inline(always)]
    fn pack_exact(acc: Self::Acc) -> Self::Packed {
        // SAFETY: the machine has the instructions: only kernels of a level that it supports may
        // call this (the rule of `Lane`).
        each!(i => unsafe {
            let [a, b, c, d] = acc[i];
            let even = halves::<F>([limit::<F>(a), limit::<F>(b)]);
            join::<F>([even, halves::<F>([limit::<F>(c), limit::<F>(d)])])
        })
    }

    /// Half precision has more than twice as many bits as the format, so rounding twice gives the
    /// same result.
    #[inline(always)]
    fn combine<O: Op>(a: Self::Packed, b: Self::Packed) -> Self::Packed {
        if !NATIVE {
            return O::pack::<Self>(O::apply(Self::unpack(a), Self::unpack(b)));
        }
        // SAFETY: the machine has the instructions: only kernels of a level that it supports may
        // call this (the rule of `Lane`).
        each!(i => unsafe {
            let ([a, b], [c, d]) = (split::<F>(a[i]), split::<F>(b[i]));
            join::<F>([native::<F, O>(a, c), native::<F, O>(b, d)])
        })
    }

    #[inline(always)]
    unsafe fn read_part(ptr: *const u8, len: usize) -> Self::Packed {
        // SAFETY: `ptr` is readable for `len` elements, less than a group, and the machine has the
        // lane's instructions: `Lane::read_part` requires both. The mask has the first `len`
        // elements; no other is read.
        unsafe { [_mm512_maskz_loadu_epi8((1 << len) - 1, ptr.cast()); N] }
    }

    #[inline(always)]
    unsafe fn write_part(ptr: *mut u8, packed: Self::Packed, len: usize) {
        // SAFETY: `ptr` is writable for `len` elements, less than a group, and the machine has the
        // lane's instructions: `Lane::write_part` requires both. The mask has the first `len`
        // elements; no other is written.
        unsafe { _mm512_mask_storeu_epi8(ptr.cast(), (1 << len) - 1, packed[0]) };
    }
}

/// The halves of the even bytes and of the odd ones.
///
/// # Safety
/// The machine must have AVX-512BW.
#[inline(always)]
unsafe fn split<F: Format>(bytes: __m512i) -> [__m512i; 2] {
    // SAFETY: all of this needs no more than AVX-512BW, which this function requires of the
    // machine, and touches no memory.
    unsafe { [F::halves(_mm512_slli_epi16::<8>(bytes)), F::halves(bytes)] }
}

/// The inverse, for halves that are values of the format. Makes NaN canonical.
///
/// # Safety
/// The machine must have AVX-512BW.
#[inline(always)]
unsafe fn join<F: Format>([even, odd]: [__m512i; 2]) -> __m512i {
    // SAFETY: all of this needs no more than AVX-512BW, which this function requires of the
    // machine, and touches no memory.
    unsafe {
        let even = _mm512_srli_epi16::<8>(F::words(even));
        let upper = _mm512_set1_epi16(0xff00_u16 as i16);
        // even | odd & upper
        let bytes = _mm512_ternarylogic_epi32::<0xf8>(even, F::words(odd), upper);
        _mm512_mask_mov_epi8(bytes, F::nan(bytes), _mm512_set1_epi8(0x7f))
    }
}

/// `a op b`, rounded.
///
/// # Safety
/// The machine must have AVX512-FP16.
#[inline(always)]
unsafe fn native<F: Format, O: Op>(mut a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: `fp16` needs AVX512-FP16, which this function requires of the machine. That implies
    // AVX-512BW, which is all that the rest needs. Nothing touches memory.
    unsafe {
        // A product has the factor of both operands; this removes one.
        if O::NAME == Combine::Prod && !F::INFINITY {
            a = fp16::mul(a, _mm512_set1_epi16(0x5c00));
        }
        F::round(fp16::combine::<O>(a, b))
    }
}

/// # Safety
/// The machine must have AVX-512F.
#[inline(always)]
unsafe fn floats<F: Format>(halves: __m512i) -> [__m512; 2] {
    // SAFETY: all of this needs no more than AVX-512F, which this function requires of the machine,
    // and touches no memory.
    unsafe {
        let scale = _mm512_set1_ps(1.0 / F::SCALE);
        let [low, high] = widen(halves);
        [_mm512_mul_ps(low, scale), _mm512_mul_ps(high, scale)]
    }
}

/// # Safety
/// The machine must have AVX-512F.
#[inline(always)]
unsafe fn halves<F: Format>([low, high]: [__m512; 2]) -> __m512i {
    // SAFETY: all of this needs no more than AVX-512F, which this function requires of the machine,
    // and touches no memory.
    unsafe {
        let scale = _mm512_set1_ps(F::SCALE);
        narrow([_mm512_mul_ps(low, scale), _mm512_mul_ps(high, scale)])
    }
}

/// Limits x to the overflow value, which stands for NaN, in a format without infinity.
///
/// # Safety
/// The machine must have AVX-512DQ.
#[inline(always)]
unsafe fn limit<F: Format>(x: __m512) -> __m512 {
    if F::INFINITY {
        return x;
    }
    // The smaller magnitude, or the number if one is NaN, with the sign of `x`.
    // SAFETY: all of this needs no more than AVX-512DQ, which this function requires of the
    // machine, and touches no memory.
    unsafe { _mm512_range_ps::<0b0010>(x, _mm512_set1_ps(F::OVERFLOW)) }
}

/// Rounds to a value of the format, to nearest, ties to even.
///
/// Adds and subtracts a number whose last place is that of the format's values of this magnitude:
/// the addition rounds.
///
/// # Safety
/// The machine must have AVX-512F and DQ.
#[inline(always)]
unsafe fn round<F: Format>(x: __m512) -> __m512 {
    // SAFETY: all of this needs no more than AVX-512F and DQ, which this function requires of the
    // machine, and touches no memory.
    unsafe {
        let infinity = _mm512_set1_ps(f32::INFINITY);
        let overflow = _mm512_set1_ps(F::OVERFLOW);
        let x = limit::<F>(x);
        let exponent = _mm512_max_ps(_mm512_and_ps(x, infinity), _mm512_set1_ps(F::NORMAL));
        let exponent = if F::INFINITY {
            _mm512_min_ps(exponent, overflow)
        } else {
            exponent
        };
        // The factor 1.5 keeps the exponent the same for negative values.
        let shift = _mm512_set1_ps(1.5 * (1 << (23 - F::MAN)) as f32);
        let rounded = _mm512_fnmadd_ps(exponent, shift, _mm512_fmadd_ps(exponent, shift, x));
        // Restores the sign of values that became zero.
        let sign = _mm512_and_ps(x, _mm512_set1_ps(-0.0));
        _mm512_or_ps(rounded, sign)
    }
}
