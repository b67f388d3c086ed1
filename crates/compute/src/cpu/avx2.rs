//! Float lanes with AVX2 and F16C.
//!
//! These instructions are beyond the architecture's baseline. The lanes' methods are called only
//! from kernels of a level that the machine supports, into which they are inlined.

#![allow(clippy::wildcard_imports)]

use core::arch::x86_64::*;

use spark_ccl_types::Scale;

use super::arithmetic::{Arithmetic, float_factor};
use super::lane::{Lane, Tile};

/// Lanes of f32 and f64.
macro_rules! floats {
    ($($lane:ident, $vector:ident, $ty:ident, $nan:ident: $set1:ident, $load:ident, $store:ident,
        $load_part:ident, $store_part:ident, $first:ident, $add:ident, $mul:ident, $max:ident,
        $min:ident, $and:ident, $or:ident, $compare:ident, $select:ident;)*) => {$(
        impl Arithmetic for $vector {
            type Factor = $ty;

            #[inline(always)]
            fn factor(scale: Scale) -> $ty {
                float_factor(scale) as $ty
            }

            #[inline(always)]
            fn times(self, factor: $ty) -> Self {
                // SAFETY: the machine has the instructions: only kernels of a level that it
                // supports may call this (the rule of `Arithmetic`).
                unsafe { $mul(self, $set1(factor)) }
            }

            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                // SAFETY: the machine has the instructions: only kernels of a level that it
                // supports may call this (the rule of `Arithmetic`).
                unsafe { $add(self, other) }
            }

            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                // SAFETY: the machine has the instructions: only kernels of a level that it
                // supports may call this (the rule of `Arithmetic`).
                unsafe { $mul(self, other) }
            }

            // For two zeros and for NaN, these instructions return their second operand. Both
            // orders are therefore combined, which settles the sign of zero: `and` keeps a sign bit
            // that both have, `or` one that either has. Equal values stay as they are.
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                // SAFETY: the machine has the instructions: only kernels of a level that it
                // supports may call this (the rule of `Arithmetic`).
                unsafe { $nan($and($max(self, other), $max(other, self)), self, other) }
            }

            #[inline(always)]
            fn min(self, other: Self) -> Self {
                // SAFETY: the machine has the instructions: only kernels of a level that it
                // supports may call this (the rule of `Arithmetic`).
                unsafe { $nan($or($min(self, other), $min(other, self)), self, other) }
            }
        }

        /// `number`, or NaN where `a` or `b` is NaN.
        ///
        /// # Safety
        /// The machine must have AVX.
        #[inline(always)]
        unsafe fn $nan(number: $vector, a: $vector, b: $vector) -> $vector {
            // SAFETY: all of this needs no more than AVX, which this function requires of the
            // machine, and touches no memory.
            unsafe { $select(number, $set1($ty::NAN), $compare::<_CMP_UNORD_Q>(a, b)) }
        }

        /// One vector of elements.
        pub(super) struct $lane;

        impl Lane for $lane {
            const WIDTH: usize = 32 / size_of::<$ty>();
            const SIZE: usize = size_of::<$ty>();
            type Packed = $vector;
            type Acc = $vector;
            type Tile = Tile<Self, 4>;

            #[inline(always)]
            unsafe fn read(ptr: *const u8) -> $vector {
                // SAFETY: `ptr` is readable for a group, as `Lane::read` requires, which is 32
                // bytes. The load needs no alignment, and the machine has the lane's instructions
                // (also required).
                unsafe { $load(ptr.cast()) }
            }

            #[inline(always)]
            unsafe fn write(ptr: *mut u8, packed: $vector) {
                // SAFETY: `ptr` is writable for a group, as `Lane::write` requires, which is 32
                // bytes. The store needs no alignment, and the machine has the lane's instructions
                // (also required).
                unsafe { $store(ptr.cast(), packed) }
            }

            #[inline(always)]
            fn unpack(packed: $vector) -> $vector {
                packed
            }

            #[inline(always)]
            fn pack(acc: $vector) -> $vector {
                // SAFETY: the machine has the instructions: only kernels of a level that it
                // supports may call this (the rule of `Lane`).
                unsafe { $nan(acc, acc, acc) }
            }

            #[inline(always)]
            fn pack_exact(acc: $vector) -> $vector {
                acc
            }

            #[inline(always)]
            unsafe fn read_part(ptr: *const u8, len: usize) -> $vector {
                // SAFETY: `ptr` is readable for `len` elements, less than a group, and the machine
                // has the lane's instructions: `Lane::read_part` requires both. The mask has the
                // first `len` elements; no other is read.
                unsafe { $load_part(ptr.cast(), $first(len)) }
            }

            #[inline(always)]
            unsafe fn write_part(ptr: *mut u8, packed: $vector, len: usize) {
                // SAFETY: `ptr` is writable for `len` elements, less than a group, and the machine
                // has the lane's instructions: `Lane::write_part` requires both. The mask has the
                // first `len` elements; no other is written.
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

/// A mask with all bits set in the first `len` 32-bit elements.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
unsafe fn first_words(len: usize) -> __m256i {
    // SAFETY: all of this needs no more than AVX2, which this function requires of the machine, and
    // touches no memory.
    unsafe {
        let index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_cmpgt_epi32(_mm256_set1_epi32(len as i32), index)
    }
}

/// A mask with all bits set in the first `len` 64-bit elements.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
unsafe fn first_double_words(len: usize) -> __m256i {
    // SAFETY: all of this needs no more than AVX2, which this function requires of the machine, and
    // touches no memory.
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
        // SAFETY: `ptr` is readable for a group, as `Lane::read` requires, which is 32 bytes. The
        // loads need no alignment, and the machine has the lane's instructions (also required).
        unsafe {
            [
                _mm_loadu_si128(ptr.cast()),
                _mm_loadu_si128(ptr.add(16).cast()),
            ]
        }
    }

    #[inline(always)]
    unsafe fn write(ptr: *mut u8, [low, high]: Self::Packed) {
        // SAFETY: `ptr` is writable for a group, as `Lane::write` requires, which is 32 bytes. The
        // stores need no alignment, and the machine has the lane's instructions (also required).
        unsafe {
            _mm_storeu_si128(ptr.cast(), low);
            _mm_storeu_si128(ptr.add(16).cast(), high);
        }
    }

    #[inline(always)]
    fn unpack([low, high]: Self::Packed) -> Self::Acc {
        // SAFETY: the machine has the instructions: only kernels of a level that it supports may
        // call this (the rule of `Lane`).
        unsafe { [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)] }
    }

    #[inline(always)]
    fn pack([low, high]: Self::Acc) -> Self::Packed {
        // SAFETY: the machine has the instructions: only kernels of a level that it supports may
        // call this (the rule of `Lane`).
        Self::pack_exact(unsafe { [or_nan(low, low, low), or_nan(high, high, high)] })
    }

    #[inline(always)]
    fn pack_exact([low, high]: Self::Acc) -> Self::Packed {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
        // SAFETY: the machine has the instructions: only kernels of a level that it supports may
        // call this (the rule of `Lane`).
        unsafe {
            [
                _mm256_cvtps_ph::<NEAREST>(low),
                _mm256_cvtps_ph::<NEAREST>(high),
            ]
        }
    }
}

/// 16 bfloat16 numbers as the halves of 8 words, for the reasons given at
/// [`avx512::Bf16`](super::avx512::Bf16).
pub(super) struct Bf16;

impl Lane for Bf16 {
    const WIDTH: usize = 16;
    const SIZE: usize = 2;
    type Packed = __m256i;
    type Acc = [__m256; 2];
    type Tile = Tile<Self, 2>;

    #[inline(always)]
    unsafe fn read(ptr: *const u8) -> Self::Packed {
        // SAFETY: `ptr` is readable for a group, as `Lane::read` requires, which is 32 bytes. The
        // load needs no alignment, and the machine has the lane's instructions (also required).
        unsafe { _mm256_loadu_si256(ptr.cast()) }
    }

    #[inline(always)]
    unsafe fn write(ptr: *mut u8, packed: Self::Packed) {
        // SAFETY: `ptr` is writable for a group, as `Lane::write` requires, which is 32 bytes. The
        // store needs no alignment, and the machine has the lane's instructions (also required).
        unsafe { _mm256_storeu_si256(ptr.cast(), packed) }
    }

    #[inline(always)]
    fn unpack(words: Self::Packed) -> Self::Acc {
        // SAFETY: the machine has the instructions: only kernels of a level that it supports may
        // call this (the rule of `Lane`).
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
        // SAFETY: the machine has the instructions: only kernels of a level that it supports may
        // call this (the rule of `Lane`).
        unsafe {
            let words = join(round_upper(low), round_upper(high));
            // No NaN gets here with bits in its lower half, so rounding cannot turn it into a
            // number.
            let magnitude = _mm256_and_si256(words, _mm256_set1_epi16(0x7fff));
            let nan = _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(0x7f80));
            _mm256_blendv_epi8(words, _mm256_set1_epi16(0x7fc0), nan)
        }
    }

    #[inline(always)]
    fn pack_exact([low, high]: Self::Acc) -> Self::Packed {
        // SAFETY: the machine has the instructions: only kernels of a level that it supports may
        // call this (the rule of `Lane`).
        unsafe { join(_mm256_castps_si256(low), _mm256_castps_si256(high)) }
    }
}

/// Joins the upper halves of the words.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
unsafe fn join(low: __m256i, high: __m256i) -> __m256i {
    // SAFETY: all of this needs no more than AVX2, which this function requires of the machine, and
    // touches no memory.
    unsafe { _mm256_blend_epi16::<0xaa>(_mm256_srli_epi32::<16>(low), high) }
}

/// Rounds to the upper half of each word like `round_bf16` in `lane`, except for NaN.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
unsafe fn round_upper(x: __m256) -> __m256i {
    // SAFETY: all of this needs no more than AVX2, which this function requires of the machine, and
    // touches no memory.
    unsafe {
        let bits = _mm256_castps_si256(x);
        let last = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let addend = _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff));
        _mm256_add_epi32(bits, addend)
    }
}
