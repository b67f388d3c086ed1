//! Half precision with the conversion instructions of AArch64.
//!
//! They belong to the baseline, but their intrinsics need a newer compiler than this crate does:
//! hence the assembly.

#![allow(clippy::wildcard_imports)]

use core::arch::aarch64::*;
use core::arch::asm;

use half::f16;

use super::lane::{Lane, float_factor};
use crate::Scale;

/// Eight halves.
pub(super) struct F16x8;

/// Eight floats.
type Pair = [float32x4_t; 2];

impl Lane for F16x8 {
    const WIDTH: usize = 8;
    const SIZE: usize = 2;
    type Acc = Pair;
    type Factor = f32;
    type Single = f16;
    type Blocked = Self;

    #[inline(always)]
    unsafe fn load(ptr: *const u8) -> Pair {
        // SAFETY: the caller vouches for 16 bytes, of any alignment.
        widen(unsafe { vreinterpretq_u16_u8(vld1q_u8(ptr)) })
    }

    #[inline(always)]
    unsafe fn store(ptr: *mut u8, acc: Pair) {
        // SAFETY: the caller vouches for 16 bytes, of any alignment.
        unsafe { vst1q_u8(ptr, vreinterpretq_u8_u16(narrow(acc))) }
    }

    #[inline(always)]
    fn factor(scale: Scale) -> f32 {
        float_factor(scale) as f32
    }

    #[inline(always)]
    fn times(acc: Pair, factor: f32) -> Pair {
        // SAFETY: NEON belongs to the architecture's baseline.
        acc.map(|x| unsafe { vmulq_n_f32(x, factor) })
    }

    #[inline(always)]
    fn sum(a: Pair, b: Pair) -> Pair {
        // SAFETY: as in `times`.
        unsafe { [vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1])] }
    }

    #[inline(always)]
    fn prod(a: Pair, b: Pair) -> Pair {
        // SAFETY: as in `times`.
        unsafe { [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])] }
    }

    // The instructions propagate NaN and order the zeros.
    #[inline(always)]
    fn max(a: Pair, b: Pair) -> Pair {
        // SAFETY: as in `times`.
        unsafe { [vmaxq_f32(a[0], b[0]), vmaxq_f32(a[1], b[1])] }
    }

    #[inline(always)]
    fn min(a: Pair, b: Pair) -> Pair {
        // SAFETY: as in `times`.
        unsafe { [vminq_f32(a[0], b[0]), vminq_f32(a[1], b[1])] }
    }
}

#[inline(always)]
fn widen(halves: uint16x8_t) -> Pair {
    let (low, high): (float32x4_t, float32x4_t);
    // SAFETY: instructions of the baseline, on registers alone.
    unsafe {
        asm!(
            "fcvtl {low:v}.4s, {halves:v}.4h",
            "fcvtl2 {high:v}.4s, {halves:v}.8h",
            halves = in(vreg) halves,
            low = out(vreg) low,
            high = lateout(vreg) high,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    [low, high]
}

#[inline(always)]
fn narrow(floats: Pair) -> uint16x8_t {
    let [low, high] = floats.map(canonical);
    let halves: uint16x8_t;
    // SAFETY: as in `widen`.
    unsafe {
        asm!(
            "fcvtn {halves:v}.4h, {low:v}.4s",
            "fcvtn2 {halves:v}.8h, {high:v}.4s",
            low = in(vreg) low,
            high = in(vreg) high,
            halves = out(vreg) halves,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    halves
}

#[inline(always)]
fn canonical(x: float32x4_t) -> float32x4_t {
    // SAFETY: NEON belongs to the architecture's baseline.
    unsafe { vbslq_f32(vceqq_f32(x, x), x, vdupq_n_f32(f32::NAN)) }
}
