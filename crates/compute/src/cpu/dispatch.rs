//! From a job to the kernel for its type and operation, compiled for the machine's vectors.

use half::{bf16, f16};

use super::kernel::{Max, Min, Op, Prod, Sum, reduce};
use super::lane::Lane;
use crate::{DType, F8E4M3, F8E5M2, Job, ReduceOp};

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
    // SAFETY: passed on from the caller; the lane is that of the job's type.
    unsafe {
        match job.dtype {
            DType::I8 => by_op::<C, i8>(job),
            DType::U8 => by_op::<C, u8>(job),
            DType::I32 => by_op::<C, i32>(job),
            DType::U32 => by_op::<C, u32>(job),
            DType::I64 => by_op::<C, i64>(job),
            DType::U64 => by_op::<C, u64>(job),
            DType::F16 => by_op::<C, C::Half>(job),
            DType::F32 => by_op::<C, f32>(job),
            DType::F64 => by_op::<C, f64>(job),
            DType::Bf16 => by_op::<C, bf16>(job),
            DType::F8E4M3 => by_op::<C, F8E4M3>(job),
            DType::F8E5M2 => by_op::<C, F8E5M2>(job),
        }
    }
}

/// # Safety
/// As for [`Compiled::reduce`].
unsafe fn by_op<C: Compiled, L: Lane>(job: &Job<'_>) {
    // SAFETY: passed on from the caller.
    unsafe {
        match job.op {
            ReduceOp::Sum => C::reduce::<L, Sum>(job),
            ReduceOp::Prod => C::reduce::<L, Prod>(job),
            ReduceOp::Max => C::reduce::<L, Max>(job),
            ReduceOp::Min => C::reduce::<L, Min>(job),
        }
    }
}

/// The kernels, compiled for one level.
trait Compiled {
    /// How this level handles half precision, the one type whose conversions do not come out of
    /// plain loops.
    type Half: Lane;

    /// # Safety
    /// As for [`reduce`], and the machine must have the level's instructions.
    unsafe fn reduce<L: Lane, O: Op>(job: &Job<'_>);
}

struct Portable;

impl Compiled for Portable {
    type Half = f16;

    unsafe fn reduce<L: Lane, O: Op>(job: &Job<'_>) {
        // SAFETY: passed on from the caller.
        unsafe { reduce::<L, O>(job) }
    }
}

macro_rules! compiled {
    ($level:ident, $features:literal, $half:ty) => {
        struct $level;

        impl Compiled for $level {
            type Half = $half;

            unsafe fn reduce<L: Lane, O: Op>(job: &Job<'_>) {
                // The kernel is inlined here, and so compiled with these features.
                #[target_feature(enable = $features)]
                unsafe fn compiled<L: Lane, O: Op>(job: &Job<'_>) {
                    // SAFETY: passed on from the caller.
                    unsafe { reduce::<L, O>(job) }
                }
                // SAFETY: passed on from the caller, who vouches for the features too.
                unsafe { compiled::<L, O>(job) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
compiled!(Avx2, "avx2,f16c", super::half_x86::F16x8);
#[cfg(target_arch = "x86_64")]
compiled!(
    Avx512,
    "avx512f,avx512bw,avx512dq,avx512vl",
    super::half_x86::F16x16
);
#[cfg(target_arch = "aarch64")]
compiled!(Neon, "neon", super::half_aarch64::F16x8);
