//! Factors of elements, without their type.

/// A factor applied to an operand before it is reduced or copied (pre-multiplied sum, float avg).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    /// No factor.
    One,
    /// For the float types: the product is taken in f32 (f64 for f64) and rounded to the type, so
    /// scaling first and reducing later gives the same bits. Integer types use its whole part.
    Float(f64),
    /// For the integer types: wrapping product; the low bits of the factor. Float types use its
    /// value.
    Int(u64),
}
