//! The element types.

/// An element type, with NCCL's numbering.
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

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }
}
