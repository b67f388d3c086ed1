//! Float lanes with the instructions of AArch64's baseline.
//!
//! Intrinsics for conversions of halves only exist in newer compilers than this crate supports, so
//! these use assembly. The instructions set FPSR's exception flags, so the assembly does not
//! preserve flags.

#![allow(clippy::wildcard_imports)]

use core::arch::aarch64::*;
use core::arch::asm;

use spark_ccl_types::Scale;

use super::arithmetic::{Arithmetic, float_factor};
use super::lane::{Lane, Tile};

/// Lanes of f32 and f64.
macro_rules! floats {
    ($($lane:ident, $vector:ident, $ty:ident, $canonical:ident: $splat:ident, $load:ident,
        $store:ident, $times:ident, $add:ident, $mul:ident, $max:ident, $min:ident, $equal:ident,
        $select:ident;)*) => {$(
        impl Arithmetic for $vector {
            type Factor = $ty;

            #[inline(always)]
            fn factor(scale: Scale) -> $ty {
                float_factor(scale) as $ty
            }

            #[inline(always)]
            fn times(self, factor: $ty) -> Self {
                // SAFETY: all of this needs NEON, which belongs to the architecture's baseline, and
                // touches no memory.
                unsafe { $times(self, factor) }
            }

            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                // SAFETY: all of this needs NEON, which belongs to the architecture's baseline, and
                // touches no memory.
                unsafe { $add(self, other) }
            }

            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                // SAFETY: all of this needs NEON, which belongs to the architecture's baseline, and
                // touches no memory.
                unsafe { $mul(self, other) }
            }

            // The instructions propagate NaN and order the zeros.
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                // SAFETY: all of this needs NEON, which belongs to the architecture's baseline, and
                // touches no memory.
                unsafe { $max(self, other) }
            }

            #[inline(always)]
            fn min(self, other: Self) -> Self {
                // SAFETY: all of this needs NEON, which belongs to the architecture's baseline, and
                // touches no memory.
                unsafe { $min(self, other) }
            }
        }

        #[inline(always)]
        fn $canonical(x: $vector) -> $vector {
            // SAFETY: all of this needs NEON, which belongs to the architecture's baseline, and
            // touches no memory.
            unsafe { $select($equal(x, x), x, $splat($ty::NAN)) }
        }

        /// One vector of elements.
        pub(super) struct $lane;

        impl Lane for $lane {
            const WIDTH: usize = 16 / size_of::<$ty>();
            const SIZE: usize = size_of::<$ty>();
            type Packed = $vector;
            type Acc = $vector;
            type Tile = Tile<Self, 4>;

            #[inline(always)]
            unsafe fn read(ptr: *const u8) -> $vector {
                // SAFETY: `ptr` is readable for a group, as `Lane::read` requires, which is 16
                // bytes. Byte accesses need no alignment; NEON belongs to the architecture's
                // baseline.
                unsafe { $load(vld1q_u8(ptr)) }
            }

            #[inline(always)]
            unsafe fn write(ptr: *mut u8, packed: $vector) {
                // SAFETY: `ptr` is writable for a group, as `Lane::write` requires, which is 16
                // bytes. Byte accesses need no alignment; NEON belongs to the architecture's
                // baseline.
                unsafe { vst1q_u8(ptr, $store(packed)) }
            }

            #[inline(always)]
            fn unpack(packed: $vector) -> $vector {
                packed
            }

            #[inline(always)]
            fn pack(acc: $vector) -> $vector {
                $canonical(acc)
            }
        }
    )*};
}

floats! {
    F32, float32x4_t, f32, canonical: vdupq_n_f32, vreinterpretq_f32_u8, vreinterpretq_u8_f32,
        vmulq_n_f32, vaddq_f32, vmulq_f32, vmaxq_f32, vminq_f32, vceqq_f32, vbslq_f32;
    F64, float64x2_t, f64, canonical_f64: vdupq_n_f64, vreinterpretq_f64_u8, vreinterpretq_u8_f64,
        vmulq_n_f64, vaddq_f64, vmulq_f64, vmaxq_f64, vminq_f64, vceqq_f64, vbslq_f64;
}

/// Eight halves.
pub(super) struct F16;

impl Lane for F16 {
    const WIDTH: usize = 8;
    const SIZE: usize = 2;
    type Packed = uint16x8_t;
    type Acc = [float32x4_t; 2];
    type Tile = Tile<Self, 4>;

    #[inline(always)]
    unsafe fn read(ptr: *const u8) -> uint16x8_t {
        // SAFETY: `ptr` is readable for a group, as `Lane::read` requires, which is 16 bytes. Byte
        // accesses need no alignment; NEON belongs to the architecture's baseline.
        unsafe { vreinterpretq_u16_u8(vld1q_u8(ptr)) }
    }

    #[inline(always)]
    unsafe fn write(ptr: *mut u8, packed: uint16x8_t) {
        // SAFETY: `ptr` is writable for a group, as `Lane::write` requires, which is 16 bytes. Byte
        // accesses need no alignment; NEON belongs to the architecture's baseline.
        unsafe { vst1q_u8(ptr, vreinterpretq_u8_u16(packed)) }
    }

    #[inline(always)]
    fn unpack(halves: uint16x8_t) -> [float32x4_t; 2] {
        let (low, high): (float32x4_t, float32x4_t);
        // SAFETY: the assembly needs NEON, which belongs to the architecture's baseline, and only
        // uses registers.
        unsafe {
            asm!(
                "fcvtl {low:v}.4s, {halves:v}.4h",
                "fcvtl2 {high:v}.4s, {halves:v}.8h",
                halves = in(vreg) halves,
                low = out(vreg) low,
                high = lateout(vreg) high,
                options(pure, nomem, nostack),
            );
        }
        [low, high]
    }

    #[inline(always)]
    fn pack([low, high]: [float32x4_t; 2]) -> uint16x8_t {
        let (low, high) = (canonical(low), canonical(high));
        let halves: uint16x8_t;
        // SAFETY: the assembly needs NEON, which belongs to the architecture's baseline, and only
        // uses registers.
        unsafe {
            asm!(
                "fcvtn {halves:v}.4h, {low:v}.4s",
                "fcvtn2 {halves:v}.8h, {high:v}.4s",
                low = in(vreg) low,
                high = in(vreg) high,
                halves = out(vreg) halves,
                options(pure, nomem, nostack),
            );
        }
        halves
    }
}

/// Eight bfloat16 numbers as the halves of four words, which widen and narrow within 32-bit lanes.
pub(super) struct Bf16;

impl Lane for Bf16 {
    const WIDTH: usize = 8;
    const SIZE: usize = 2;
    type Packed = uint32x4_t;
    type Acc = [float32x4_t; 2];
    type Tile = Tile<Self, 4>;

    #[inline(always)]
    unsafe fn read(ptr: *const u8) -> uint32x4_t {
        // SAFETY: `ptr` is readable for a group, as `Lane::read` requires, which is 16 bytes. Byte
        // accesses need no alignment; NEON belongs to the architecture's baseline.
        unsafe { vreinterpretq_u32_u8(vld1q_u8(ptr)) }
    }

    #[inline(always)]
    unsafe fn write(ptr: *mut u8, packed: uint32x4_t) {
        // SAFETY: `ptr` is writable for a group, as `Lane::write` requires, which is 16 bytes. Byte
        // accesses need no alignment; NEON belongs to the architecture's baseline.
        unsafe { vst1q_u8(ptr, vreinterpretq_u8_u32(packed)) }
    }

    #[inline(always)]
    fn unpack(words: uint32x4_t) -> [float32x4_t; 2] {
        // SAFETY: all of this needs NEON, which belongs to the architecture's baseline, and touches
        // no memory.
        unsafe {
            [
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(words)),
                vreinterpretq_f32_u32(vandq_u32(words, vdupq_n_u32(0xffff_0000))),
            ]
        }
    }

    #[inline(always)]
    fn pack([low, high]: [float32x4_t; 2]) -> uint32x4_t {
        // SAFETY: all of this needs NEON, which belongs to the architecture's baseline, and touches
        // no memory.
        unsafe { vsriq_n_u32::<16>(round_upper(high), round_upper(low)) }
    }
}

/// Rounds to the upper half of each word like `round_bf16` in `lane`.
#[inline(always)]
fn round_upper(x: float32x4_t) -> uint32x4_t {
    // SAFETY: all of this needs NEON, which belongs to the architecture's baseline, and touches no
    // memory.
    unsafe {
        let bits = vreinterpretq_u32_f32(canonical(x));
        let last = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
        vaddq_u32(bits, vaddq_u32(last, vdupq_n_u32(0x7fff)))
    }
}
