//! The small floats with AVX2 and F16C.
//!
//! As for AVX-512, the instructions are beyond the baseline, and the methods are called only from
//! kernels compiled for a level that was found on the machine, into which they are inlined.

#![allow(clippy::wildcard_imports)]

use core::arch::x86_64::*;

use spark_ccl_types::Scale;

use super::arithmetic::{Arithmetic, float_factor};
use super::lane::{Lane, Tile};

/// Vectors of f32 and of f64, and the types themselves.
macro_rules! floats {
    ($($lane:ident, $vector:ident, $ty:ident, $nan:ident: $set1:ident, $load:ident, $store:ident,
        $load_part:ident, $store_part:ident, $first:ident, $add:ident, $mul:ident, $max:ident, $min:ident, $and:ident, $or:ident, $compare:ident,
        $select:ident;)*) => {$(
        impl Arithmetic for $vector {
            type Factor = $ty;

            #[inline(always)]
            fn factor(scale: Scale) -> $ty {
                float_factor(scale) as $ty
            }

            #[inline(always)]
            fn times(self, factor: $ty) -> Self {
                // SAFETY: called only where the level's instructions exist.
                unsafe { $mul(self, $set1(factor)) }
            }

            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                // SAFETY: as in `times`.
                unsafe { $add(self, other) }
            }

            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                // SAFETY: as in `times`.
                unsafe { $mul(self, other) }
            }

            // The instructions return their second operand for two zeros and for NaN. Combining
            // both orders settles the zeros' sign (`and` keeps it only if both have it, `or` if one
            // has it); equal to each other they change nothing.
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                // SAFETY: as in `times`.
                unsafe { $nan($and($max(self, other), $max(other, self)), self, other) }
            }

            #[inline(always)]
            fn min(self, other: Self) -> Self {
                // SAFETY: as in `times`.
                unsafe { $nan($or($min(self, other), $min(other, self)), self, other) }
            }
        }

        /// `number`, or NaN where `a` or `b` is.
        ///
        /// # Safety
        /// The machine must have AVX.
        #[inline(always)]
        unsafe fn $nan(number: $vector, a: $vector, b: $vector) -> $vector {
            // SAFETY: passed on from the caller.
            unsafe { $select(number, $set1($ty::NAN), $compare::<_CMP_UNORD_Q>(a, b)) }
        }

        /// A vector of them.
        pub(super) struct $lane;

        impl Lane for $lane {
            const WIDTH: usize = 32 / size_of::<$ty>();
            const SIZE: usize = size_of::<$ty>();
            type Packed = $vector;
            type Acc = $vector;
            type Tile = Tile<Self, 4>;

            #[inline(always)]
            unsafe fn read(ptr: *const u8) -> $vector {
                // SAFETY: the caller vouches for 32 bytes; the load is an unaligned one.
                unsafe { $load(ptr.cast()) }
            }

            #[inline(always)]
            unsafe fn write(ptr: *mut u8, packed: $vector) {
                // SAFETY: the caller vouches for 32 bytes; the store is an unaligned one.
                unsafe { $store(ptr.cast(), packed) }
            }

            #[inline(always)]
            fn unpack(packed: $vector) -> $vector {
                packed
            }

            #[inline(always)]
            fn pack(acc: $vector) -> $vector {
                // SAFETY: called only where the level's instructions exist.
                unsafe { $nan(acc, acc, acc) }
            }

            #[inline(always)]
            fn pack_exact(acc: $vector) -> $vector {
                acc
            }

            #[inline(always)]
            unsafe fn read_part(ptr: *const u8, len: usize) -> $vector {
                // SAFETY: the caller vouches for `len` elements; nothing else is accessed.
                unsafe { $load_part(ptr.cast(), $first(len)) }
            }

            #[inline(always)]
            unsafe fn write_part(ptr: *mut u8, packed: $vector, len: usize) {
                // SAFETY: the caller vouches for `len` elements; nothing else is accessed.
                unsafe { $store_part(ptr.cast(), $first(len), packed) };
            }
        }
    )*};
}

floats! {
    F32, __m256, f32, or_nan: _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_maskload_ps,
        _mm256_maskstore_ps, first_words, _mm256_add_ps, _mm256_mul_ps, _mm256_max_ps,
        _mm256_min_ps, _mm256_and_ps, _mm256_or_ps, _mm256_cmp_ps, _mm256_blendv_ps;
    F64, __m256d, f64, or_nan_f64: _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd,
        _mm256_maskload_pd, _mm256_maskstore_pd, first_double_words, _mm256_add_pd, _mm256_mul_pd,
        _mm256_max_pd, _mm256_min_pd, _mm256_and_pd, _mm256_or_pd, _mm256_cmp_pd, _mm256_blendv_pd;
}

/// All bits of the first `len` 32-bit elements.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
unsafe fn first_words(len: usize) -> __m256i {
    // SAFETY: passed on from the caller.
    unsafe {
        let index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_cmpgt_epi32(_mm256_set1_epi32(len as i32), index)
    }
}

/// All bits of the first `len` 64-bit elements.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
unsafe fn first_double_words(len: usize) -> __m256i {
    // SAFETY: passed on from the caller.
    unsafe {
        let index = _mm256_setr_epi64x(0, 1, 2, 3);
        _mm256_cmpgt_epi64(_mm256_set1_epi64x(len as i64), index)
    }
}

/// 16 halves.
pub(super) struct F16;

impl Lane for F16 {
    const WIDTH: usize = 16;
    const SIZE: usize = 2;
    type Packed = [__m128i; 2];
    type Acc = [__m256; 2];
    type Tile = Tile<Self, 2>;

    #[inline(always)]
    unsafe fn read(ptr: *const u8) -> Self::Packed {
        // SAFETY: the caller vouches for 32 bytes; the loads are unaligned ones.
        unsafe {
            [
                _mm_loadu_si128(ptr.cast()),
                _mm_loadu_si128(ptr.add(16).cast()),
            ]
        }
    }

    #[inline(always)]
    unsafe fn write(ptr: *mut u8, [low, high]: Self::Packed) {
        // SAFETY: the caller vouches for 32 bytes; the stores are unaligned ones.
        unsafe {
            _mm_storeu_si128(ptr.cast(), low);
            _mm_storeu_si128(ptr.add(16).cast(), high);
        }
    }

    #[inline(always)]
    fn unpack([low, high]: Self::Packed) -> Self::Acc {
        // SAFETY: called only where the level's instructions exist.
        unsafe { [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)] }
    }

    #[inline(always)]
    fn pack([low, high]: Self::Acc) -> Self::Packed {
        // SAFETY: as in `unpack`.
        Self::pack_exact(unsafe { [or_nan(low, low, low), or_nan(high, high, high)] })
    }

    #[inline(always)]
    fn pack_exact([low, high]: Self::Acc) -> Self::Packed {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
        // SAFETY: as in `unpack`.
        unsafe {
            [
                _mm256_cvtps_ph::<NEAREST>(low),
                _mm256_cvtps_ph::<NEAREST>(high),
            ]
        }
    }
}

/// 16 bfloat16 as the halves of 8 words; see [`avx512::Bf16`](super::avx512::Bf16).
pub(super) struct Bf16;

impl Lane for Bf16 {
    const WIDTH: usize = 16;
    const SIZE: usize = 2;
    type Packed = __m256i;
    type Acc = [__m256; 2];
    type Tile = Tile<Self, 2>;

    #[inline(always)]
    unsafe fn read(ptr: *const u8) -> Self::Packed {
        // SAFETY: the caller vouches for 32 bytes; the load is an unaligned one.
        unsafe { _mm256_loadu_si256(ptr.cast()) }
    }

    #[inline(always)]
    unsafe fn write(ptr: *mut u8, packed: Self::Packed) {
        // SAFETY: the caller vouches for 32 bytes; the store is an unaligned one.
        unsafe { _mm256_storeu_si256(ptr.cast(), packed) }
    }

    #[inline(always)]
    fn unpack(words: Self::Packed) -> Self::Acc {
        // SAFETY: called only where the level's instructions exist.
        unsafe {
            let upper = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words)),
                _mm256_castsi256_ps(_mm256_and_si256(words, upper)),
            ]
        }
    }

    #[inline(always)]
    fn pack([low, high]: Self::Acc) -> Self::Packed {
        // SAFETY: as in `unpack`.
        unsafe {
            let words = join(round_upper(low), round_upper(high));
            // No NaN comes with bits in the lower half, so rounding left it NaN.
            let magnitude = _mm256_and_si256(words, _mm256_set1_epi16(0x7fff));
            let nan = _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(0x7f80));
            _mm256_blendv_epi8(words, _mm256_set1_epi16(0x7fc0), nan)
        }
    }

    #[inline(always)]
    fn pack_exact([low, high]: Self::Acc) -> Self::Packed {
        // SAFETY: as in `unpack`.
        unsafe { join(_mm256_castps_si256(low), _mm256_castps_si256(high)) }
    }
}

/// The upper halves.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
unsafe fn join(low: __m256i, high: __m256i) -> __m256i {
    // SAFETY: passed on from the caller.
    unsafe { _mm256_blend_epi16::<0xaa>(_mm256_srli_epi32::<16>(low), high) }
}

/// Rounds to the upper half, as `round_bf16` in `lane` does, but for NaN.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
unsafe fn round_upper(x: __m256) -> __m256i {
    // SAFETY: passed on from the caller.
    unsafe {
        let bits = _mm256_castps_si256(x);
        let last = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let addend = _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff));
        _mm256_add_epi32(bits, addend)
    }
}
