//! Factors of elements, without the element type.

/// A factor applied to an operand before it is reduced or copied (pre-multiplied sum, float avg).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    /// No factor.
    One,
    /// For float types. The product is computed in f32 (in f64 for f64) and rounded to the type, so
    /// an input that is scaled beforehand gives the same bits. Integer types use the factor's
    /// integer part.
    Float(f64),
    /// Like [`Float`](Self::Float), but a product is added or multiplied unrounded (a maximum or
    /// minimum rounds it): in types of less than 32 bits, only the result is rounded. For `f32` and
    /// `f64` there is no difference.
    Unrounded(f64),
    /// For integer types: the low bits of the factor; the product wraps. Float types use its value.
    Int(u64),
}
