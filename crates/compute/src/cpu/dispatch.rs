//! Compiles the kernels of each type and operation for each instruction set, and chooses the set.

use half::{bf16, f16};
#[cfg(target_arch = "x86_64")]
use spark_ccl_types::DType;
use spark_ccl_types::{F8E4M3, F8E5M2};

#[cfg(target_arch = "x86_64")]
use super::avx512_float8::{E4M3, E5M2, Float8};
use super::kernel;
use super::lane::{Lane, Max, Min, Op, Prod, Sum};
#[cfg(target_arch = "aarch64")]
use super::neon;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::Job;

/// Runs a job of the kernel's type and operation, whose sources start a number of bytes after the
/// addresses in its operands.
///
/// It has the safety conditions of [`Compute::start`](crate::Compute::start), and the machine must
/// have the instructions that it was compiled for.
pub(super) type Kernel = unsafe fn(&Job<'_>, usize);

/// Indexed by the type and the operation.
pub(super) type Kernels = [[Kernel; 4]; 12];

/// An instruction set. All values come from [`Level::available`], so the machine supports each of
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// The architecture's baseline, without intrinsics.
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// With half-precision arithmetic.
    #[cfg(target_arch = "x86_64")]
    Avx512Fp16,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Level {
    /// The levels that the machine supports, best first. (`std` caches the detection.)
    pub(super) fn available() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        let levels = [
            #[cfg(target_arch = "x86_64")]
            (avx512 && is_x86_feature_detected!("avx512fp16")).then_some(Self::Avx512Fp16),
            #[cfg(target_arch = "x86_64")]
            avx512.then_some(Self::Avx512),
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
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Fp16 => "avx512fp16",
            #[cfg(target_arch = "aarch64")]
            Self::Neon => "neon",
        }
    }

    pub(super) fn kernels(self) -> &'static Kernels {
        match self {
            Self::Portable => &PORTABLE,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => &AVX2,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => &AVX512,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Fp16 => &AVX512_FP16,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => &NEON,
        }
    }
}

/// Defines `ops`, the kernels of a type at a level. Each kernel has the attribute, so the loops
/// that are inlined into it are compiled with its features.
macro_rules! level {
    ($name:ident $(, #[$features:meta])?) => {
        mod $name {
            use super::{Job, Kernel, Lane, Max, Min, Op, Prod, Sum};

            $(#[$features])?
            unsafe fn kernel<L: Lane, O: Op>(job: &Job<'_>, from: usize) {
                // SAFETY: the job is as `Compute::start` demands, `L` is a lane of its type, and
                // the machine has this level's instructions, which are all that `L` uses: that is
                // the contract of `Kernel`, of whose table `L` is the entry for the type.
                unsafe { super::kernel::reduce::<L, O>(job, from) }
            }

            /// `Wrapping` is the lane of the operations that are the same for signed and unsigned
            /// integers.
            pub(super) const fn ops<L: Lane, Wrapping: Lane>() -> [Kernel; 4] {
                [
                    kernel::<Wrapping, Sum>,
                    kernel::<Wrapping, Prod>,
                    kernel::<L, Max>,
                    kernel::<L, Min>,
                ]
            }
        }
    };
}

/// All kernels of a level, by its float lanes.
macro_rules! kernels {
    ($level:ident: $half:ty, $float:ty, $double:ty, $bfloat16:ty, $e4m3:ty, $e5m2:ty) => {
        [
            $level::ops::<i8, u8>(),
            $level::ops::<u8, u8>(),
            $level::ops::<i32, u32>(),
            $level::ops::<u32, u32>(),
            $level::ops::<i64, u64>(),
            $level::ops::<u64, u64>(),
            $level::ops::<$half, $half>(),
            $level::ops::<$float, $float>(),
            $level::ops::<$double, $double>(),
            $level::ops::<$bfloat16, $bfloat16>(),
            $level::ops::<$e4m3, $e4m3>(),
            $level::ops::<$e5m2, $e5m2>(),
        ]
    };
}

level!(portable);
const PORTABLE: Kernels = kernels!(portable: f16, f32, f64, bf16, F8E4M3, F8E5M2);

#[cfg(target_arch = "x86_64")]
level!(with_avx2, #[target_feature(enable = "avx2,f16c")]);
#[cfg(target_arch = "x86_64")]
const AVX2: Kernels =
    kernels!(with_avx2: avx2::F16, avx2::F32, avx2::F64, avx2::Bf16, F8E4M3, F8E5M2);

#[cfg(target_arch = "x86_64")]
level!(
    with_avx512,
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
);
#[cfg(target_arch = "x86_64")]
const AVX512: Kernels = kernels!(
    with_avx512: avx512::F16<1, false>, avx512::F32, avx512::F64, avx512::Bf16<1>,
    Float8<E4M3, 1, false>, Float8<E5M2, 1, false>
);
#[cfg(target_arch = "x86_64")]
const AVX512_FP16: Kernels = {
    let mut kernels = AVX512;
    kernels[DType::F16 as usize] = with_avx512::ops::<avx512::F16<1, true>, avx512::F16<1, true>>();
    kernels[DType::F8E4M3 as usize] =
        with_avx512::ops::<Float8<E4M3, 1, true>, Float8<E4M3, 1, true>>();
    kernels[DType::F8E5M2 as usize] =
        with_avx512::ops::<Float8<E5M2, 1, true>, Float8<E5M2, 1, true>>();
    kernels
};

#[cfg(target_arch = "aarch64")]
level!(with_neon, #[target_feature(enable = "neon")]);
#[cfg(target_arch = "aarch64")]
const NEON: Kernels =
    kernels!(with_neon: neon::F16, neon::F32, neon::F64, neon::Bf16, F8E4M3, F8E5M2);
