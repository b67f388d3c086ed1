//! The element types as Rust types.

use std::fmt::Debug;

use half::{bf16, f16};

use crate::{DType, F8E4M3, F8E5M2, Scale};

/// A type of elements. Implemented for the types of [`DType`] only; the trait is sealed.
#[diagnostic::on_unimplemented(
    message = "calls have no elements of type `{Self}`",
    label = "not an element type",
    note = "elements are i8, u8, i32, u32, i64, u64, f16, bf16, f32, f64, F8E4M3 or F8E5M2",
    note = "structs and other plain data travel as bytes: `bytemuck::cast_slice(..)`"
)]
pub trait Element:
    bytemuck::Pod + Send + Sync + PartialEq + Debug + Default + sealed::Sealed + 'static
{
    /// The type at run time.
    const DTYPE: DType;

    /// This value as a factor for elements of its type.
    fn to_scale(self) -> Scale;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($ty:ty: $dtype:ident, $value:ident => $scale:expr;)*) => {
        $(
        impl sealed::Sealed for $ty {}

        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;

            fn to_scale(self) -> Scale {
                let $value = self;
                $scale
            }
        }
    )*

        impl Scale {
            /// Reads a factor from its bytes, in the host's byte order, padded with zeros.
            pub fn from_bytes(dtype: DType, bytes: [u8; 8]) -> Self {
                match dtype {
                    $(DType::$dtype => {
                        let own = &bytes[..size_of::<$ty>()];
                        bytemuck::pod_read_unaligned::<$ty>(own).to_scale()
                    })*
                }
            }
        }
    };
}

// Signed integers are sign-extended, so that the low bits are those of the factor at any width.
elements! {
    i8: I8, x => Scale::Int(i64::from(x) as u64);
    u8: U8, x => Scale::Int(u64::from(x));
    i32: I32, x => Scale::Int(i64::from(x) as u64);
    u32: U32, x => Scale::Int(u64::from(x));
    i64: I64, x => Scale::Int(x as u64);
    u64: U64, x => Scale::Int(x);
    f16: F16, x => Scale::Float(x.to_f64());
    f32: F32, x => Scale::Float(f64::from(x));
    f64: F64, x => Scale::Float(x);
    bf16: Bf16, x => Scale::Float(x.to_f64());
    F8E4M3: F8E4M3, x => Scale::Float(f64::from(x.to_f32()));
    F8E5M2: F8E5M2, x => Scale::Float(f64::from(x.to_f32()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_matches<T: Element>() -> DType {
        assert_eq!(size_of::<T>(), T::DTYPE.size());
        T::DTYPE
    }

    #[test]
    fn every_dtype_has_its_element() {
        let dtypes = [
            size_matches::<i8>(),
            size_matches::<u8>(),
            size_matches::<i32>(),
            size_matches::<u32>(),
            size_matches::<i64>(),
            size_matches::<u64>(),
            size_matches::<f16>(),
            size_matches::<f32>(),
            size_matches::<f64>(),
            size_matches::<bf16>(),
            size_matches::<F8E4M3>(),
            size_matches::<F8E5M2>(),
        ];
        assert_eq!(dtypes, DType::ALL);
    }

    #[test]
    fn negative_factors_keep_their_low_bits() {
        assert_eq!((-2i8).to_scale(), Scale::Int(u64::MAX - 1));
        assert_eq!(bf16::from_f32(-0.5).to_scale(), Scale::Float(-0.5));
    }
}
