//! Float lanes with AVX-512.
//!
//! Vectors compute in f32. Most of the code converts, for which machines have few ports, so each
//! conversion uses as few instructions as possible. The conversions to bfloat16 in `avx512_bf16`
//! cannot be used: they flush subnormals to zero.
//!
//! These instructions are beyond the architecture's baseline. The lanes' methods are called only
//! from kernels of a level that the machine supports, into which they are inlined.

#![allow(clippy::wildcard_imports)]

use core::arch::asm;
use core::arch::x86_64::*;

use spark_ccl_types::Scale;

use super::arithmetic::{Arithmetic, each, float_factor};
use super::fp16;
use super::lane::{Lane, Op, Tile};

/// Lanes of f32 and f64.
macro_rules! floats {
    ($($lane:ident, $vector:ident, $ty:ident, $nan:ident: $set1:ident, $load:ident, $store:ident,
        $load_part:ident, $store_part:ident, $add:ident, $mul:ident, $range:ident,
        $unordered:ident, $select:ident;)*) => {$(
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

            // `range` orders the zeros, and prefers numbers to NaN.
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                // SAFETY: the machine has the instructions: only kernels of a level that it
                // supports may call this (the rule of `Arithmetic`).
                unsafe { $nan($range::<0b0101>(self, other), self, other) }
            }

            #[inline(always)]
            fn min(self, other: Self) -> Self {
                // SAFETY: the machine has the instructions: only kernels of a level that it
                // supports may call this (the rule of `Arithmetic`).
                unsafe { $nan($range::<0b0100>(self, other), self, other) }
            }
        }

        /// `number`, or NaN where `a` or `b` is NaN.
        ///
        /// # Safety
        /// The machine must have AVX-512F.
        #[inline(always)]
        unsafe fn $nan(number: $vector, a: $vector, b: $vector) -> $vector {
            // SAFETY: all of this needs no more than AVX-512F, which this function requires of the
            // machine, and touches no memory.
            unsafe { $select(number, $unordered::<_CMP_UNORD_Q>(a, b), $set1($ty::NAN)) }
        }

        /// One vector of elements.
        pub(super) struct $lane;

        impl Lane for $lane {
            const WIDTH: usize = 64 / size_of::<$ty>();
            const SIZE: usize = size_of::<$ty>();
            type Packed = $vector;
            type Acc = $vector;
            type Tile = Tile<Self, 4>;

            #[inline(always)]
            unsafe fn read(ptr: *const u8) -> $vector {
                // SAFETY: `ptr` is readable for a group, as `Lane::read` requires, which is 64
                // bytes. The load needs no alignment, and the machine has the lane's instructions
                // (also required).
                unsafe { $load(ptr.cast()) }
            }

            #[inline(always)]
            unsafe fn write(ptr: *mut u8, packed: $vector) {
                // SAFETY: `ptr` is writable for a group, as `Lane::write` requires, which is 64
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
                unsafe { $load_part((1 << len) - 1, ptr.cast()) }
            }

            #[inline(always)]
            unsafe fn write_part(ptr: *mut u8, packed: $vector, len: usize) {
                // SAFETY: `ptr` is writable for `len` elements, less than a group, and the machine
                // has the lane's instructions: `Lane::write_part` requires both. The mask has the
                // first `len` elements; no other is written.
                unsafe { $store_part(ptr.cast(), (1 << len) - 1, packed) };
            }
        }
    )*};
}

floats! {
    F32, __m512, f32, or_nan: _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps,
        _mm512_maskz_loadu_ps, _mm512_mask_storeu_ps, _mm512_add_ps, _mm512_mul_ps, _mm512_range_ps,
        _mm512_cmp_ps_mask, _mm512_mask_mov_ps;
    F64, __m512d, f64, or_nan_f64: _mm512_set1_pd, _mm512_loadu_pd, _mm512_storeu_pd,
        _mm512_maskz_loadu_pd, _mm512_mask_storeu_pd, _mm512_add_pd, _mm512_mul_pd, _mm512_range_pd,
        _mm512_cmp_pd_mask, _mm512_mask_mov_pd;
}

/// Makes NaN canonical. NaN is rare, so two vectors are tested at a time, and one branch covers
/// all.
///
/// # Safety
/// The machine must have AVX-512F.
#[inline(always)]
unsafe fn canonical<const N: usize>(mut acc: [[__m512; 2]; N]) -> [[__m512; 2]; N] {
    let mut numbers = __mmask16::MAX;
    // SAFETY: all of this needs no more than AVX-512F, which this function requires of the machine,
    // and touches no memory.
    unsafe {
        for [low, high] in acc {
            numbers = _mm512_mask_cmp_ps_mask::<_CMP_ORD_Q>(numbers, low, high);
        }
        if numbers != __mmask16::MAX {
            for [low, high] in &mut acc {
                (*low, *high) = (or_nan(*low, *low, *low), or_nan(*high, *high, *high));
            }
        }
    }
    acc
}

/// A mask of the first `len` 16-bit elements.
#[inline(always)]
fn first_words(len: usize) -> __mmask32 {
    (1 << len) - 1
}

/// `N` vectors of 32 halves; `NATIVE` if the machine has half-precision arithmetic.
pub(super) struct F16<const N: usize, const NATIVE: bool>;

impl<const N: usize, const NATIVE: bool> Lane for F16<N, NATIVE> {
    const WIDTH: usize = 32 * N;
    const SIZE: usize = 2;
    type Packed = [__m512i; N];
    type Acc = [[__m512; 2]; N];
    type Tile = F16<4, NATIVE>;

    #[inline(always)]
    unsafe fn read(ptr: *const u8) -> Self::Packed {
        // SAFETY: `ptr` is readable for a group, as `Lane::read` requires: for `N` vectors of 64
        // bytes; this is vector `i` of them. The load needs no alignment, and the machine has the
        // lane's instructions (also required).
        each!(i => unsafe { _mm512_loadu_si512(ptr.add(i * 64).cast()) })
    }

    #[inline(always)]
    unsafe fn write(ptr: *mut u8, packed: Self::Packed) {
        for (i, halves) in packed.into_iter().enumerate() {
            // SAFETY: `ptr` is writable for a group, as `Lane::write` requires: for `N` vectors of
            // 64 bytes; this is vector `i` of them. The store needs no alignment, and the machine
            // has the lane's instructions (also required).
            unsafe { _mm512_storeu_si512(ptr.add(i * 64).cast(), halves) };
        }
    }

    #[inline(always)]
    fn unpack(packed: Self::Packed) -> Self::Acc {
        // SAFETY: the machine has the instructions: only kernels of a level that it supports may
        // call this (the rule of `Lane`).
        each!(i => unsafe { widen(packed[i]) })
    }

    #[inline(always)]
    fn pack(acc: Self::Acc) -> Self::Packed {
        // SAFETY: the machine has the instructions: only kernels of a level that it supports may
        // call this (the rule of `Lane`).
        Self::pack_exact(unsafe { canonical(acc) })
    }

    #[inline(always)]
    fn pack_exact(acc: Self::Acc) -> Self::Packed {
        // SAFETY: the machine has the instructions: only kernels of a level that it supports may
        // call this (the rule of `Lane`).
        each!(i => unsafe { narrow(acc[i]) })
    }

    /// A single operation in half precision gives the same result as one in f32 that is then
    /// rounded to half, because f32 has more than twice as many bits.
    #[inline(always)]
    fn combine<O: Op>(a: Self::Packed, b: Self::Packed) -> Self::Packed {
        if !NATIVE {
            return O::pack::<Self>(O::apply(Self::unpack(a), Self::unpack(b)));
        }
        // SAFETY: the machine has the instructions: only kernels of a level that it supports may
        // call this (the rule of `Lane`).
        each!(i => unsafe { fp16::canonical(fp16::combine::<O>(a[i], b[i])) })
    }

    #[inline(always)]
    unsafe fn read_part(ptr: *const u8, len: usize) -> Self::Packed {
        // SAFETY: `ptr` is readable for `len` elements, less than a group, and the machine has the
        // lane's instructions: `Lane::read_part` requires both. The mask has the first `len`
        // elements; no other is read.
        unsafe { [_mm512_maskz_loadu_epi16(first_words(len), ptr.cast()); N] }
    }

    #[inline(always)]
    unsafe fn write_part(ptr: *mut u8, packed: Self::Packed, len: usize) {
        // SAFETY: `ptr` is writable for `len` elements, less than a group, and the machine has the
        // lane's instructions: `Lane::write_part` requires both. The mask has the first `len`
        // elements; no other is written.
        unsafe { _mm512_mask_storeu_epi16(ptr.cast(), first_words(len), packed[0]) };
    }
}

/// Widens halves to f32.
///
/// # Safety
/// The machine must have AVX-512F.
#[inline(always)]
pub(super) unsafe fn widen(halves: __m512i) -> [__m512; 2] {
    // SAFETY: all of this needs no more than AVX-512F, which this function requires of the machine,
    // and touches no memory.
    unsafe {
        [
            _mm512_cvtph_ps(_mm512_castsi512_si256(halves)),
            _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(halves)),
        ]
    }
}

/// Rounds f32 to halves.
///
/// # Safety
/// The machine must have AVX-512F.
#[inline(always)]
pub(super) unsafe fn narrow([low, high]: [__m512; 2]) -> __m512i {
    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
    // SAFETY: all of this needs no more than AVX-512F, which this function requires of the machine,
    // and touches no memory.
    unsafe {
        let low = _mm512_castsi256_si512(_mm512_cvtps_ph::<NEAREST>(low));
        _mm512_inserti64x4::<1>(low, _mm512_cvtps_ph::<NEAREST>(high))
    }
}

/// `N` vectors of 32 bfloat16 numbers, as the halves of 16 words.
///
/// Such words are widened with a shift and a mask, and narrowed with a shuffle, all within 32-bit
/// lanes. In their natural order, elements would have to move between 16-bit and 32-bit lanes, for
/// which machines have a single port.
pub(super) struct Bf16<const N: usize>;

impl<const N: usize> Lane for Bf16<N> {
    const WIDTH: usize = 32 * N;
    const SIZE: usize = 2;
    type Packed = [__m512i; N];
    type Acc = [[__m512; 2]; N];
    type Tile = Bf16<4>;

    #[inline(always)]
    unsafe fn read(ptr: *const u8) -> Self::Packed {
        // SAFETY: `ptr` is readable for a group, as `Lane::read` requires: for `N` vectors of 64
        // bytes; this is vector `i` of them. The load needs no alignment, and the machine has the
        // lane's instructions (also required).
        each!(i => unsafe { _mm512_loadu_si512(ptr.add(i * 64).cast()) })
    }

    #[inline(always)]
    unsafe fn write(ptr: *mut u8, packed: Self::Packed) {
        for (i, words) in packed.into_iter().enumerate() {
            // SAFETY: `ptr` is writable for a group, as `Lane::write` requires: for `N` vectors of
            // 64 bytes; this is vector `i` of them. The store needs no alignment, and the machine
            // has the lane's instructions (also required).
            unsafe { _mm512_storeu_si512(ptr.add(i * 64).cast(), words) };
        }
    }

    #[inline(always)]
    fn unpack(packed: Self::Packed) -> Self::Acc {
        // SAFETY: the machine has the instructions: only kernels of a level that it supports may
        // call this (the rule of `Lane`).
        each!(i => unsafe { split(packed[i]) })
    }

    #[inline(always)]
    fn pack(acc: Self::Acc) -> Self::Packed {
        // SAFETY: the machine has the instructions: only kernels of a level that it supports may
        // call this (the rule of `Lane`).
        unsafe {
            let acc = canonical(acc);
            each!(i => join(round_upper(acc[i][0]), round_upper(acc[i][1])))
        }
    }

    #[inline(always)]
    fn pack_exact(acc: Self::Acc) -> Self::Packed {
        // SAFETY: the machine has the instructions: only kernels of a level that it supports may
        // call this (the rule of `Lane`).
        each!(i => unsafe {
            join(_mm512_castps_si512(acc[i][0]), _mm512_castps_si512(acc[i][1]))
        })
    }

    #[inline(always)]
    unsafe fn read_part(ptr: *const u8, len: usize) -> Self::Packed {
        // SAFETY: `ptr` is readable for `len` elements, less than a group, and the machine has the
        // lane's instructions: `Lane::read_part` requires both. The mask has the first `len`
        // elements; no other is read.
        unsafe { [_mm512_maskz_loadu_epi16(first_words(len), ptr.cast()); N] }
    }

    #[inline(always)]
    unsafe fn write_part(ptr: *mut u8, packed: Self::Packed, len: usize) {
        // SAFETY: `ptr` is writable for `len` elements, less than a group, and the machine has the
        // lane's instructions: `Lane::write_part` requires both. The mask has the first `len`
        // elements; no other is written.
        unsafe { _mm512_mask_storeu_epi16(ptr.cast(), first_words(len), packed[0]) };
    }
}

/// # Safety
/// The machine must have AVX-512F.
#[inline(always)]
unsafe fn split(words: __m512i) -> [__m512; 2] {
    // SAFETY: all of this needs no more than AVX-512F, which this function requires of the machine,
    // and touches no memory.
    unsafe {
        let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
        [
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)),
            _mm512_castsi512_ps(_mm512_and_si512(words, upper)),
        ]
    }
}

/// Joins the upper halves of the words.
///
/// # Safety
/// The machine must have AVX-512BW.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn join(low: __m512i, mut high: __m512i) -> __m512i {
    // SAFETY: the assembly needs AVX-512BW, which this function requires of the machine, and only
    // uses registers.
    unsafe {
        // Moves the third and fourth byte of each word of `low` to the first and second of `high`.
        // For the intrinsic, LLVM emits a permutation across lanes, which takes three times as
        // long.
        asm!(
            "vpshufb {high}{{{mask}}}, {low}, {down}",
            high = inout(zmm_reg) high,
            low = in(zmm_reg) low,
            mask = in(kreg) 0x3333_3333_3333_3333_u64,
            down = in(zmm_reg) _mm512_set4_epi32(0x0f0e, 0x0b0a, 0x0706, 0x0302),
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    high
}

/// Rounds to the upper half of each word like `round_bf16` in `lane`, except for NaN.
///
/// # Safety
/// The machine must have AVX-512BW and VNNI.
#[inline(always)]
unsafe fn round_upper(x: __m512) -> __m512i {
    // SAFETY: all of this needs no more than AVX-512BW and VNNI, which this function requires of
    // the machine, and touches no memory.
    unsafe {
        let bits = _mm512_castps_si512(x);
        let (last, half) = (_mm512_set1_epi32(1 << 16), _mm512_set1_epi32(0x7fff));
        // bits & last | half: the two halves of each word are its addends.
        let addends = _mm512_ternarylogic_epi32::<0xea>(bits, last, half);
        add_halves(bits, addends)
    }
}

/// Adds both halves of each word to `sum`.
///
/// # Safety
/// The machine must have AVX-512BW and VNNI.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn add_halves(mut sum: __m512i, words: __m512i) -> __m512i {
    // SAFETY: the assembly needs AVX-512BW and VNNI, which this function requires of the machine,
    // and only uses registers.
    unsafe {
        // For the intrinsic, LLVM emits two instructions, which have less latency.
        asm!(
            "vpdpwssd {sum}, {words}, {ones}",
            sum = inout(zmm_reg) sum,
            words = in(zmm_reg) words,
            ones = in(zmm_reg) _mm512_set1_epi16(1),
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}
