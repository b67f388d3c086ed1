//! The values with which kernels compute: numbers, and vectors of numbers.

use spark_ccl_types::Scale;

/// Values for which the reductions' operations are defined.
///
/// Results are those of plain Rust, except for `max` and `min` of floats: if an operand is NaN, the
/// result is the canonical NaN, and +0 is larger than -0. All methods are `inline(always)`, so that
/// they are compiled with the instructions of the kernel that calls them. Those of vectors use
/// instructions beyond the baseline: they may be called only from a kernel that is compiled for
/// those.
pub(super) trait Arithmetic: Copy {
    /// A factor in the form in which it is applied.
    type Factor: Copy;

    fn factor(scale: Scale) -> Self::Factor;
    fn times(self, factor: Self::Factor) -> Self;
    fn sum(self, other: Self) -> Self;
    fn prod(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
}

/// A factor for floats. A NaN factor is canonical, so that the payload of a computed NaN has no
/// bits that the smallest type lacks.
pub(super) fn float_factor(scale: Scale) -> f64 {
    match scale {
        Scale::One => 1.0,
        Scale::Float(x) | Scale::Unrounded(x) if x.is_nan() => f64::NAN,
        Scale::Float(x) | Scale::Unrounded(x) => x,
        Scale::Int(x) => x as f64,
    }
}

fn int_factor(scale: Scale) -> u64 {
    match scale {
        Scale::One => 1,
        Scale::Float(x) | Scale::Unrounded(x) => x as i64 as u64,
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

/// The larger or smaller of two floats, independent of their order. Equal operands may be zeros of
/// different sign: `and` of the bits clears the sign unless both have it, `or` sets it if one has
/// it.
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

/// An array of `N` elements, by index. Uses a loop, not `from_fn`, because closures are not
/// compiled with a kernel's instructions.
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
