//! From a job to the kernel for its type and operation, compiled for the machine's vectors.

use half::f16;

use super::kernel::{self, Max, Min, Op, Prod, Sum};
use super::lane::{Bf16Pair, Lane};
use crate::{DType, F8E4M3, F8E5M2, Job, ReduceOp, Scale};

/// An instruction set. Values come from [`Level::available`] alone, so one that exists can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// What every machine of the architecture has, and no intrinsics.
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Level {
    /// What the machine has, the best first. (`std` caches the look-up.)
    pub(super) fn available() -> impl Iterator<Item = Self> {
        let levels = [
            #[cfg(target_arch = "x86_64")]
            (is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl"))
            .then_some(Self::Avx512),
            #[cfg(target_arch = "x86_64")]
            (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"))
                .then_some(Self::Avx2),
            #[cfg(target_arch = "aarch64")]
            (!cfg!(miri)).then_some(Self::Neon),
            Some(Self::Portable),
        ];
        levels.into_iter().flatten()
    }

    pub(super) fn best() -> Self {
        Self::available().next().unwrap_or(Self::Portable)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "aarch64")]
            Self::Neon => "neon",
        }
    }

    /// # Safety
    /// As for [`Compute::start`](crate::Compute::start).
    pub(super) unsafe fn run(self, job: &Job<'_>) {
        // SAFETY: passed on from the caller; the level's instructions exist, as it does.
        unsafe {
            match self {
                Self::Portable => by_type::<Portable>(job),
                #[cfg(target_arch = "x86_64")]
                Self::Avx2 => by_type::<Avx2>(job),
                #[cfg(target_arch = "x86_64")]
                Self::Avx512 => by_type::<Avx512>(job),
                #[cfg(target_arch = "aarch64")]
                Self::Neon => by_type::<Neon>(job),
            }
        }
    }
}

/// # Safety
/// As for [`Compiled::reduce`].
unsafe fn by_type<C: Compiled>(job: &Job<'_>) {
    // SAFETY: passed on from the caller; the lanes are those of the job's type.
    unsafe {
        match job.dtype {
            DType::I8 => by_op::<C, i8, u8>(job),
            DType::U8 => by_op::<C, u8, u8>(job),
            DType::I32 => by_op::<C, i32, u32>(job),
            DType::U32 => by_op::<C, u32, u32>(job),
            DType::I64 => by_op::<C, i64, u64>(job),
            DType::U64 => by_op::<C, u64, u64>(job),
            DType::F16 => by_op::<C, C::Half, C::Half>(job),
            DType::F32 => by_op::<C, f32, f32>(job),
            DType::F64 => by_op::<C, f64, f64>(job),
            DType::Bf16 => by_op::<C, Bf16Pair, Bf16Pair>(job),
            DType::F8E4M3 => by_op::<C, F8E4M3, F8E4M3>(job),
            DType::F8E5M2 => by_op::<C, F8E5M2, F8E5M2>(job),
        }
    }
}

/// `Wrapping` is the lane for what makes no difference between signed and unsigned integers, which
/// share it.
///
/// # Safety
/// As for [`Compiled::reduce`], for either lane.
unsafe fn by_op<C: Compiled, L: Lane, Wrapping: Lane>(job: &Job<'_>) {
    // SAFETY: passed on from the caller.
    unsafe {
        match job.op {
            ReduceOp::Sum => C::reduce::<Wrapping, Sum>(job),
            ReduceOp::Prod => C::reduce::<Wrapping, Prod>(job),
            ReduceOp::Max => C::reduce::<L, Max>(job),
            ReduceOp::Min => C::reduce::<L, Min>(job),
        }
    }
}

/// The kernels, compiled for one level. What does not depend on the operation is a function of its
/// own, so that it is compiled once for each type.
///
/// All are unsafe as the functions of the same names in [`kernel`], and because the machine must
/// have the level's instructions.
pub(super) trait Compiled {
    /// How this level handles half precision, the one type whose conversions do not come out of
    /// plain loops.
    type Half: Lane;

    /// See [`kernel::reduce`].
    unsafe fn reduce<L: Lane, O: Op>(job: &Job<'_>);

    /// See [`kernel::widen`].
    unsafe fn widen<L: Lane>(acc: *mut L::Acc, src: *const u8, groups: usize);

    /// See [`kernel::narrow`].
    unsafe fn narrow<L: Lane>(dst: *mut u8, acc: *const L::Acc, groups: usize);

    /// See [`kernel::scale`].
    unsafe fn scale<L: Lane>(dst: *mut u8, src: *const u8, scale: Scale, groups: usize);
}

/// Implements [`Compiled`] for a new type, with the attribute on each function: the kernels are
/// inlined there, and so compiled with its features.
macro_rules! compiled {
    ($level:ident, $half:ty $(, #[$features:meta])?) => {
        struct $level;

        impl Compiled for $level {
            type Half = $half;

            unsafe fn reduce<L: Lane, O: Op>(job: &Job<'_>) {
                $(#[$features])?
                unsafe fn compiled<L: Lane, O: Op>(job: &Job<'_>) {
                    // SAFETY: passed on from the caller.
                    unsafe { kernel::reduce::<$level, L, O>(job) }
                }
                // SAFETY: passed on from the caller.
                unsafe { compiled::<L, O>(job) }
            }

            unsafe fn widen<L: Lane>(acc: *mut L::Acc, src: *const u8, groups: usize) {
                $(#[$features])?
                #[inline(never)]
                unsafe fn compiled<L: Lane>(acc: *mut L::Acc, src: *const u8, groups: usize) {
                    // SAFETY: passed on from the caller.
                    unsafe { kernel::widen::<L>(acc, src, groups) }
                }
                // SAFETY: passed on from the caller.
                unsafe { compiled::<L>(acc, src, groups) }
            }

            unsafe fn narrow<L: Lane>(dst: *mut u8, acc: *const L::Acc, groups: usize) {
                $(#[$features])?
                #[inline(never)]
                unsafe fn compiled<L: Lane>(dst: *mut u8, acc: *const L::Acc, groups: usize) {
                    // SAFETY: passed on from the caller.
                    unsafe { kernel::narrow::<L>(dst, acc, groups) }
                }
                // SAFETY: passed on from the caller.
                unsafe { compiled::<L>(dst, acc, groups) }
            }

            unsafe fn scale<L: Lane>(dst: *mut u8, src: *const u8, scale: Scale, groups: usize) {
                $(#[$features])?
                #[inline(never)]
                unsafe fn compiled<L: Lane>(
                    dst: *mut u8,
                    src: *const u8,
                    scale: Scale,
                    groups: usize,
                ) {
                    // SAFETY: passed on from the caller.
                    unsafe { kernel::scale::<L>(dst, src, scale, groups) }
                }
                // SAFETY: passed on from the caller.
                unsafe { compiled::<L>(dst, src, scale, groups) }
            }
        }
    };
}

compiled!(Portable, f16);
#[cfg(target_arch = "x86_64")]
compiled!(Avx2, super::half_x86::F16x8, #[target_feature(enable = "avx2,f16c")]);
#[cfg(target_arch = "x86_64")]
compiled!(
    Avx512,
    super::half_x86::F16x16,
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
);
#[cfg(target_arch = "aarch64")]
compiled!(Neon, super::half_aarch64::F16x8, #[target_feature(enable = "neon")]);
