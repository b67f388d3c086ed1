//! The element types. Knows no Rust type: those are in `element.rs`.

use std::fmt;
use std::str::FromStr;

use crate::listed::listed;

listed! {
    /// An element type. NCCL's types come first, with its numbers (`ncclDataType_t`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[repr(u8)]
    pub enum DType {
        /// Signed 8 bit.
        I8 = 0,
        /// Unsigned 8 bit.
        U8 = 1,
        /// Signed 32 bit.
        I32 = 2,
        /// Unsigned 32 bit.
        U32 = 3,
        /// Signed 64 bit.
        I64 = 4,
        /// Unsigned 64 bit.
        U64 = 5,
        /// IEEE half precision.
        F16 = 6,
        /// IEEE single precision.
        F32 = 7,
        /// IEEE double precision.
        F64 = 8,
        /// bfloat16.
        Bf16 = 9,
        /// 8-bit float, 4 exponent bits, no infinities.
        F8E4M3 = 10,
        /// 8-bit float, 5 exponent bits.
        F8E5M2 = 11,
    }
}

impl DType {
    /// Bytes of one element.
    #[inline]
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// The type with this number, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Its number: NCCL's in `ncclDataType_t`, for all types that NCCL has.
    #[inline]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Its name as nccl-tests spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::I8 => "int8",
            Self::U8 => "uint8",
            Self::I32 => "int32",
            Self::U32 => "uint32",
            Self::I64 => "int64",
            Self::U64 => "uint64",
            Self::F16 => "half",
            Self::F32 => "float",
            Self::F64 => "double",
            Self::Bf16 => "bfloat16",
            Self::F8E4M3 => "f8e4m3",
            Self::F8E5M2 => "f8e5m2",
        }
    }

    /// Whether it is an integer type.
    #[inline]
    pub const fn is_integer(self) -> bool {
        matches!(
            self,
            Self::I8 | Self::U8 | Self::I32 | Self::U32 | Self::I64 | Self::U64
        )
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for an unknown element type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown data type {0:?}: use one of {all}", all = DType::ALL.map(DType::name).join(", "))]
pub struct UnknownDType(pub String);

impl FromStr for DType {
    type Err = UnknownDType;

    /// Accepts [`DType::name`] and the names that Rust, C, PyTorch and NCCL use, in upper or lower
    /// case.
    fn from_str(name: &str) -> Result<Self, UnknownDType> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "int8" | "i8" | "char" => Self::I8,
            "uint8" | "u8" => Self::U8,
            "int32" | "i32" | "int" => Self::I32,
            "uint32" | "u32" => Self::U32,
            "int64" | "i64" => Self::I64,
            "uint64" | "u64" => Self::U64,
            "half" | "float16" | "fp16" | "f16" => Self::F16,
            "float" | "float32" | "fp32" | "f32" => Self::F32,
            "double" | "float64" | "fp64" | "f64" => Self::F64,
            "bfloat16" | "bf16" => Self::Bf16,
            "f8e4m3" | "fp8e4m3" | "float8e4m3" | "fp8_e4m3" | "float8_e4m3fn" => Self::F8E4M3,
            "f8e5m2" | "fp8e5m2" | "float8e5m2" | "fp8_e5m2" | "float8_e5m2" => Self::F8E5M2,
            _ => return Err(UnknownDType(name.to_owned())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_lead_back() {
        for (code, dtype) in (0u8..).zip(DType::ALL) {
            assert_eq!(dtype.code(), code);
            assert_eq!(DType::from_code(code), Some(dtype));
            assert_eq!(dtype.name().parse(), Ok(dtype));
            assert!(
                UnknownDType(String::new())
                    .to_string()
                    .contains(dtype.name())
            );
        }
        assert_eq!(DType::from_code(DType::ALL.len() as u8), None);
    }

    #[test]
    fn aliases() {
        assert_eq!("F32".parse(), Ok(DType::F32));
        assert_eq!("bf16".parse(), Ok(DType::Bf16));
        assert_eq!("fp16".parse(), Ok(DType::F16));
        let error = "floot".parse::<DType>().unwrap_err().to_string();
        assert!(error.contains("\"floot\""), "{error}");
    }
}
