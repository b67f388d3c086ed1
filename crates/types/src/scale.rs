//! Factors of elements, without the element type.

/// A factor applied to an operand before it is reduced or copied (pre-multiplied sum, float avg).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    /// No factor.
    One,
    /// For float types: the product is computed in f32 (in f64 for f64) and rounded to the type, so
    /// that scaling first and reducing later gives the same bits. Integer types use its integer
    /// part.
    Float(f64),
    /// As [`Float`](Self::Float), but the product is not rounded to the type before it is added or
    /// multiplied (it is for a maximum or minimum): of types of less than 32 bits, only the result
    /// is. Of `f32` and `f64` both are the same.
    Unrounded(f64),
    /// For integer types: the low bits of the factor; the product wraps. Float types use its value.
    Int(u64),
}
