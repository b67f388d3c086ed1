//! Numbers of the types that tensors have, and buffers of one of these types.

use spark_ccl::{DType, Element, bf16, f16};

use crate::error::Error;

/// A type of gradients and parameters: `f32`, `f64`, `f16`, `bf16`. The trait is sealed.
pub trait Number: Element + sealed::Sealed {
    /// The nearest `f32`.
    fn to_f32(self) -> f32;

    /// The nearest value of this type.
    fn from_f32(value: f32) -> Self;

    /// The sum, rounded once.
    #[must_use]
    fn plus(self, other: Self) -> Self;

    /// Whether it is neither infinite nor NaN.
    fn is_a_number(self) -> bool;

    #[doc(hidden)]
    fn of(values: &Values) -> Option<&[Self]>;

    #[doc(hidden)]
    fn of_mut(values: &mut Values) -> Option<&mut [Self]>;
}

mod sealed {
    pub trait Sealed {}
}

/// A buffer of numbers of one type.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// IEEE single precision.
    F32(Vec<f32>),
    /// IEEE double precision.
    F64(Vec<f64>),
    /// IEEE half precision.
    F16(Vec<f16>),
    /// bfloat16.
    Bf16(Vec<bf16>),
}

/// Evaluates an expression for the numbers of an enum that has a variant for each type of them.
macro_rules! each {
    ($of:ident, $values:expr, $numbers:ident => $result:expr) => {
        match $values {
            $of::F32($numbers) => $result,
            $of::F64($numbers) => $result,
            $of::F16($numbers) => $result,
            $of::Bf16($numbers) => $result,
        }
    };
}

pub(crate) use each;

pub(crate) fn dtype_of<T: Number>(_: &[T]) -> DType {
    T::DTYPE
}

impl Values {
    /// This many zeros.
    ///
    /// # Errors
    /// [`Error::Invalid`] for types that are no [`Number`].
    pub fn zeros(dtype: DType, len: usize) -> Result<Self, Error> {
        match dtype {
            DType::F32 => Ok(Self::F32(vec![0.0; len])),
            DType::F64 => Ok(Self::F64(vec![0.0; len])),
            DType::F16 => Ok(Self::F16(vec![f16::ZERO; len])),
            DType::Bf16 => Ok(Self::Bf16(vec![bf16::ZERO; len])),
            other => Err(not_trained(other)),
        }
    }

    /// The type of its numbers.
    pub fn dtype(&self) -> DType {
        each!(Values, self, vector => dtype_of(vector))
    }

    /// How many.
    pub fn len(&self) -> usize {
        each!(Values, self, vector => vector.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Their bytes, in this machine's order.
    pub fn bytes(&self) -> &[u8] {
        each!(Values, self, vector => bytemuck::cast_slice(vector))
    }

    /// Their bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        each!(Values, self, vector => bytemuck::cast_slice_mut(vector))
    }

    /// The numbers, if they are of this type.
    pub fn get<T: Number>(&self) -> Option<&[T]> {
        T::of(self)
    }

    /// The numbers, if they are of this type.
    pub fn get_mut<T: Number>(&mut self) -> Option<&mut [T]> {
        T::of_mut(self)
    }
}

/// The error for tensors of another type.
pub(crate) fn not_trained(dtype: DType) -> Error {
    Error::Invalid {
        what: "a tensor's type",
        problem: format!("{dtype}: tensors that are trained are float, double, half or bfloat16"),
    }
}

macro_rules! numbers {
    ($($type:ty: $variant:ident, $value:ident => $to:expr, $from:expr, $sum:expr;)*) => {$(
        impl sealed::Sealed for $type {}

        impl Number for $type {
            fn to_f32(self) -> f32 {
                let $value = self;
                $to
            }

            fn from_f32($value: f32) -> Self {
                $from
            }

            fn plus(self, other: Self) -> Self {
                let $value = [self, other];
                $sum
            }

            fn is_a_number(self) -> bool {
                self.is_finite()
            }

            fn of(values: &Values) -> Option<&[Self]> {
                match values {
                    Values::$variant(vector) => Some(vector),
                    _ => None,
                }
            }

            fn of_mut(values: &mut Values) -> Option<&mut [Self]> {
                match values {
                    Values::$variant(vector) => Some(vector),
                    _ => None,
                }
            }
        }
    )*};
}

numbers! {
    f32: F32, x => x, x, x[0] + x[1];
    f64: F64, x => x as f32, f64::from(x), x[0] + x[1];
    f16: F16, x => x.to_f32(), f16::from_f32(x), f16::from_f32(x[0].to_f32() + x[1].to_f32());
    bf16: Bf16, x => x.to_f32(), bf16::from_f32(x), bf16::from_f32(x[0].to_f32() + x[1].to_f32());
}
