//! What kernels compute with: numbers, and vectors of them.

use spark_ccl_types::Scale;

/// Values on which the operations of reductions are defined.
///
/// The results are those of plain Rust but for floats' `max` and `min`: NaN wins and is canonical,
/// +0 is larger than -0. Everything is `inline(always)`, to be compiled with the instructions of
/// the kernel around it.
pub(super) trait Arithmetic: Copy {
    /// A factor as it is multiplied with.
    type Factor: Copy;

    fn factor(scale: Scale) -> Self::Factor;
    fn times(self, factor: Self::Factor) -> Self;
    fn sum(self, other: Self) -> Self;
    fn prod(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
}

/// A factor for float types. NaN is canonical, so that the payload of one that is computed stays
/// within the bits of the smallest type.
pub(super) fn float_factor(scale: Scale) -> f64 {
    match scale {
        Scale::One => 1.0,
        Scale::Float(x) if x.is_nan() => f64::NAN,
        Scale::Float(x) => x,
        Scale::Int(x) => x as f64,
    }
}

fn int_factor(scale: Scale) -> u64 {
    match scale {
        Scale::One => 1,
        Scale::Float(x) => x as i64 as u64,
        Scale::Int(x) => x,
    }
}

macro_rules! integers {
    ($($ty:ty)*) => {$(
        impl Arithmetic for $ty {
            type Factor = $ty;

            #[inline(always)]
            fn factor(scale: Scale) -> $ty {
                int_factor(scale) as $ty
            }

            #[inline(always)]
            fn times(self, factor: $ty) -> $ty {
                self.wrapping_mul(factor)
            }

            #[inline(always)]
            fn sum(self, other: $ty) -> $ty {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn prod(self, other: $ty) -> $ty {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn max(self, other: $ty) -> $ty {
                Ord::max(self, other)
            }

            #[inline(always)]
            fn min(self, other: $ty) -> $ty {
                Ord::min(self, other)
            }
        }
    )*};
}

integers! { i8 u8 i32 u32 i64 u64 }

/// The larger or smaller of two floats, whatever their order: for equal operands the zeros decide,
/// whose sign bits `and` clears unless both are set, and `or` sets if one is.
macro_rules! pick {
    ($ty:ty, $a:ident $wins:tt $b:ident, $zeros:tt) => {{
        let equal = <$ty>::from_bits($a.to_bits() $zeros $b.to_bits());
        let one = if $a $wins $b { $a } else { $b };
        let number = if $a == $b { equal } else { one };
        if $a.is_nan() || $b.is_nan() { <$ty>::NAN } else { number }
    }};
}

macro_rules! floats {
    ($($ty:ty)*) => {$(
        impl Arithmetic for $ty {
            type Factor = $ty;

            #[inline(always)]
            fn factor(scale: Scale) -> $ty {
                float_factor(scale) as $ty
            }

            #[inline(always)]
            fn times(self, factor: $ty) -> $ty {
                self * factor
            }

            #[inline(always)]
            fn sum(self, other: $ty) -> $ty {
                self + other
            }

            #[inline(always)]
            fn prod(self, other: $ty) -> $ty {
                self * other
            }

            #[inline(always)]
            #[allow(clippy::float_cmp)]
            fn max(self, other: $ty) -> $ty {
                pick!($ty, self > other, &)
            }

            #[inline(always)]
            #[allow(clippy::float_cmp)]
            fn min(self, other: $ty) -> $ty {
                pick!($ty, self < other, |)
            }
        }
    )*};
}

floats! { f32 f64 }

/// An array of `N`, by index. With a loop instead of `from_fn`, for closures are compiled without a
/// kernel's instructions.
macro_rules! each {
    ($i:ident => $value:expr) => {{
        let $i = 0;
        let mut result = [$value; N];
        for $i in 1..N {
            result[$i] = $value;
        }
        result
    }};
}
pub(super) use each;

impl<A: Arithmetic, const N: usize> Arithmetic for [A; N] {
    type Factor = A::Factor;

    #[inline(always)]
    fn factor(scale: Scale) -> A::Factor {
        A::factor(scale)
    }

    #[inline(always)]
    fn times(self, factor: A::Factor) -> Self {
        each!(i => self[i].times(factor))
    }

    #[inline(always)]
    fn sum(self, other: Self) -> Self {
        each!(i => self[i].sum(other[i]))
    }

    #[inline(always)]
    fn prod(self, other: Self) -> Self {
        each!(i => self[i].prod(other[i]))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        each!(i => self[i].max(other[i]))
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        each!(i => self[i].min(other[i]))
    }
}
