//! Inputs whose reduction is exact in any order, for any number of ranks, and the expected results.
//!
//! For each index, a hash selects the total, and the ranks' shares are the differences between cut
//! points of that total. So the shares add up to the total for any number of ranks, and the result
//! is known without a loop over the ranks. No partial sum is larger than the total, which fits the
//! type's mantissa, so every order of additions is exact. Which rank has which share rotates with
//! the index. The shares differ in size, so that counting one rank twice and omitting another is
//! detected. Products use exponents in the same way. Only the average of floats must be rounded:
//! there, two ranks contribute to an element, and the result may differ by two units.
//!
//! All values repeat after [`PERIOD`] elements, so that large buffers can be filled and compared at
//! the speed of memory. The period is a prime, so that data displaced by any block or message is
//! detected.
//!
//! Knows the element types and the reductions, and computes without their arithmetic. Must not know
//! collectives and buffers.

mod float;

pub(crate) use float::Format;
use float::{encode, encode_f64};
use spark_ccl::{DType, Element, ReduceOp};

/// The number of elements after which inputs and results repeat.
pub(crate) const PERIOD: usize = 65_521;
/// Cut points are fractions with this many bits.
const CUT_BITS: u32 = 24;
/// The most bits of a float's total: its product with a cut point must fit 64 bits.
const TOTAL_BITS: u32 = 40;

/// The inputs and the results of a reduction.
#[derive(Debug, Clone)]
pub(crate) struct Reduction {
    format: Format,
    op: ReduceOp,
    seed: u64,
    ranks: u64,
    /// `ranks + 1` increasing fractions of `2^CUT_BITS`, from 0 to 1.
    cuts: Vec<u64>,
}

/// A rank's position in the reduction of one element.
struct Position {
    hash: u64,
    /// The position of the rank in this element's rotation.
    at: u64,
}

impl Reduction {
    /// Inputs for `ranks` ranks; each seed gives different values.
    pub(crate) fn new(dtype: DType, op: ReduceOp, ranks: usize, seed: u64) -> Self {
        let ranks = ranks as u64;
        let square = u128::from(ranks) * u128::from(ranks);
        let cuts = (0..=ranks)
            .map(|k| (((u128::from(k) * u128::from(k)) << CUT_BITS) / square) as u64)
            .collect();
        Self {
            format: Format::of(dtype),
            op,
            seed,
            ranks,
            cuts,
        }
    }

    /// The bits that `rank` contributes at `index`.
    pub(crate) fn input(&self, rank: usize, index: usize) -> u64 {
        let position = self.position(rank as u64, index as u64);
        match self.format {
            Format::Int { bits, signed } => {
                self.int_input(&position, rank as u64, bits, signed) & self.format.mask()
            }
            Format::Float {
                bits,
                fraction,
                bias,
            } => {
                let (negative, mantissa, exponent) =
                    self.float_input(&position, rank as u64, fraction, bias);
                encode(bits, fraction, bias, negative, mantissa, exponent)
            }
        }
    }

    /// The bits of the result at `index`.
    pub(crate) fn expected(&self, index: usize) -> u64 {
        let hash = self.hash(index as u64);
        match self.format {
            Format::Int { bits, signed } => {
                self.int_expected(hash, bits, signed) & self.format.mask()
            }
            Format::Float {
                bits,
                fraction,
                bias,
            } => {
                if self.op == ReduceOp::Avg {
                    return encode_f64(bits, fraction, bias, self.float_average(hash, fraction));
                }
                let (negative, mantissa, exponent) = self.float_expected(hash, fraction, bias);
                encode(bits, fraction, bias, negative, mantissa, exponent)
            }
        }
    }

    /// The most by which the bits of a result may differ from the expected ones.
    pub(crate) fn tolerance(&self) -> u64 {
        let rounded = self.op == ReduceOp::Avg && matches!(self.format, Format::Float { .. });
        // Averages are positive, so adjacent numbers have adjacent bits.
        if rounded { 2 } else { 0 }
    }

    /// The factor by which `rank`'s inputs are multiplied in a pre-multiplied sum.
    pub(crate) fn factor(rank: usize) -> u64 {
        1 + (rank as u64 & 1)
    }

    fn hash(&self, index: u64) -> u64 {
        spread(self.seed, index)
    }

    fn position(&self, rank: u64, index: u64) -> Position {
        let hash = self.hash(index);
        let turned = rank + self.rotation(hash);
        Position {
            hash,
            at: if turned >= self.ranks {
                turned - self.ranks
            } else {
                turned
            },
        }
    }

    fn rotation(&self, hash: u64) -> u64 {
        ((hash >> 8 & 0xffff) * self.ranks) >> 16
    }

    /// The share of `total` (at most 40 bits) at a position of the rotation.
    fn cut(&self, total: u64, at: u64) -> u64 {
        ((total * self.cuts[at as usize + 1]) >> CUT_BITS)
            - ((total * self.cuts[at as usize]) >> CUT_BITS)
    }

    fn int_input(&self, position: &Position, rank: u64, bits: u32, signed: bool) -> u64 {
        match self.op {
            ReduceOp::Sum => self.ring_share(position),
            ReduceOp::PreMulSum => {
                self.ring_share(position)
                    .wrapping_mul(if Self::factor(rank as usize) == 1 {
                        2
                    } else {
                        1
                    })
            }
            ReduceOp::Prod => {
                let power = power_of_three(self.cut(position.hash >> 58, position.at));
                if position.at == 0 {
                    power.wrapping_mul(position.hash >> 16)
                } else {
                    power
                }
            }
            ReduceOp::Max => {
                int_peak(position.hash, bits, signed).wrapping_sub(distance(position, 63))
            }
            ReduceOp::Min => {
                int_peak(position.hash, bits, signed).wrapping_add(distance(position, 63))
            }
            ReduceOp::Avg => {
                let total = int_total(position.hash, bits);
                let upto = |k: u64| {
                    ((u128::from(total) * u128::from(self.cuts[k as usize])) >> CUT_BITS) as u64
                };
                upto(position.at + 1) - upto(position.at)
            }
        }
    }

    fn int_expected(&self, hash: u64, bits: u32, signed: bool) -> u64 {
        match self.op {
            ReduceOp::Sum => hash,
            ReduceOp::PreMulSum => hash.wrapping_mul(2),
            ReduceOp::Prod => power_of_three(hash >> 58).wrapping_mul(hash >> 16),
            ReduceOp::Max | ReduceOp::Min => int_peak(hash, bits, signed),
            ReduceOp::Avg => int_total(hash, bits) / self.ranks,
        }
    }

    /// Arbitrary integers, one per rank of the ring, whose wrapping sum is the hash.
    fn ring_share(&self, position: &Position) -> u64 {
        let next = if position.at + 1 == self.ranks {
            0
        } else {
            position.at + 1
        };
        let difference = mix(position.hash ^ next).wrapping_sub(mix(position.hash ^ position.at));
        if position.at == 0 {
            difference.wrapping_add(position.hash)
        } else {
            difference
        }
    }

    fn float_input(
        &self,
        position: &Position,
        rank: u64,
        fraction: u32,
        bias: i32,
    ) -> (bool, u64, i32) {
        let hash = position.hash;
        match self.op {
            ReduceOp::Sum | ReduceOp::PreMulSum => {
                let (negative, total, exponent) = float_total(hash, fraction);
                // If the factor is one, doubles the value, as the factor of two does on other
                // ranks.
                let up = self.op == ReduceOp::PreMulSum && Self::factor(rank as usize) == 1;
                (
                    negative,
                    self.cut(total, position.at),
                    exponent + i32::from(up),
                )
            }
            ReduceOp::Prod => {
                let (up, down) = exponents(hash, bias);
                // The negative exponents are assigned in reverse order, to other ranks.
                let exponent = self.cut(up, position.at) as i32
                    - self.cut(down, self.ranks - 1 - position.at) as i32;
                if position.at == 0 {
                    let (negative, mantissa) = float_mantissa(hash, fraction);
                    (negative, mantissa, exponent - fraction as i32)
                } else {
                    (false, 1, exponent)
                }
            }
            ReduceOp::Max => signed_int(float_peak(hash, fraction) - distance(position, 3) as i64),
            ReduceOp::Min => signed_int(float_peak(hash, fraction) + distance(position, 3) as i64),
            ReduceOp::Avg => match position.at {
                0 | 1 => (
                    false,
                    average_mantissa(hash, position.at, fraction),
                    6 - fraction as i32,
                ),
                _ => (false, 0, 0),
            },
        }
    }

    fn float_expected(&self, hash: u64, fraction: u32, bias: i32) -> (bool, u64, i32) {
        match self.op {
            ReduceOp::Sum | ReduceOp::Avg => float_total(hash, fraction),
            ReduceOp::PreMulSum => {
                let (negative, total, exponent) = float_total(hash, fraction);
                (negative, total, exponent + 1)
            }
            ReduceOp::Prod => {
                let (up, down) = exponents(hash, bias);
                let (negative, mantissa) = float_mantissa(hash, fraction);
                (
                    negative,
                    mantissa,
                    up as i32 - down as i32 - fraction as i32,
                )
            }
            ReduceOp::Max | ReduceOp::Min => signed_int(float_peak(hash, fraction)),
        }
    }

    fn float_average(&self, hash: u64, fraction: u32) -> f64 {
        let sum: f64 = (0..self.ranks.min(2))
            .map(|at| average_mantissa(hash, at, fraction) as f64)
            .sum();
        sum * 2f64.powi(6 - fraction as i32) / self.ranks as f64
    }
}

/// The distance of a rank's value from the result of max or min; 0 for one rank.
fn distance(position: &Position, spread: u64) -> u64 {
    if position.at == 0 {
        0
    } else {
        1 + (mix(position.hash ^ position.at) & spread)
    }
}

/// The bits of (`source`, `index`) in a collective that only moves data: finite numbers.
pub(crate) fn moved(format: Format, seed: u64, source: usize, index: usize) -> u64 {
    let random = mix(spread(seed, index as u64) ^ (source as u64) << 40);
    match format {
        Format::Int { .. } => random & format.mask(),
        // With the top bit of its exponent clear, a float is neither infinite nor NaN.
        Format::Float { bits, .. } => random & format.mask() & !(1 << (bits - 2)),
    }
}

/// The bits of a small whole number.
pub(crate) fn whole_number(dtype: DType, value: u64) -> u64 {
    match Format::of(dtype) {
        Format::Int { .. } => value,
        Format::Float {
            bits,
            fraction,
            bias,
        } => encode(bits, fraction, bias, false, value, 0),
    }
}

/// An element from its low bits.
pub(crate) fn from_bits<T: Element>(bits: u64) -> T {
    bytemuck::pod_read_unaligned(&bits.to_le_bytes()[..size_of::<T>()])
}

/// The bits of an element.
pub(crate) fn to_bits<T: Element>(value: &T) -> u64 {
    let mut bytes = [0; 8];
    bytes[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(value));
    u64::from_le_bytes(bytes)
}

/// Random bits for an element of a check.
fn spread(seed: u64, index: u64) -> u64 {
    mix(seed.wrapping_mul(0xd605_1e95_d1b3_9a4d) ^ mix(index % PERIOD as u64))
}

/// The finaliser of splitmix64: every input bit affects every output bit.
fn mix(value: u64) -> u64 {
    let x = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The sign, the total with at most the type's precision, and the shared exponent of a sum.
fn float_total(hash: u64, fraction: u32) -> (bool, u64, i32) {
    let bits = (fraction + 1).min(TOTAL_BITS);
    let total = hash >> (64 - bits);
    // Exponents of -2..=1 keep even doubled totals of the narrowest types in range.
    (hash & 1 == 1, total, (hash >> 1 & 3) as i32 - 2)
}

/// The sums of the positive and of the negative exponents in a product.
fn exponents(hash: u64, bias: i32) -> (u64, u64) {
    let most = (bias as u64 / 2).min(20);
    let pick = |bits: u64| ((bits & 0xff) * (most + 1)) >> 8;
    (pick(hash >> 48), pick(hash >> 56))
}

/// The sign and the full mantissa of the single rank in a product that has one.
fn float_mantissa(hash: u64, fraction: u32) -> (bool, u64) {
    (hash & 1 == 1, 1 << fraction | mix(hash) >> (64 - fraction))
}

/// A value in [64, 128) times `2^(fraction - 6)`: large enough that a 4096th of it is a normal
/// number.
fn average_mantissa(hash: u64, at: u64, fraction: u32) -> u64 {
    1 << fraction | mix(hash ^ at) >> (64 - fraction)
}

/// The result of a float max or min: a small integer, with room on both sides.
fn float_peak(hash: u64, fraction: u32) -> i64 {
    let half = 1i64 << fraction.min(TOTAL_BITS);
    (hash >> 20) as i64 % (2 * half) - half
}

fn signed_int(value: i64) -> (bool, u64, i32) {
    (value < 0, value.unsigned_abs(), 0)
}

/// The result of an integer max or min, with room on both sides.
fn int_peak(hash: u64, bits: u32, signed: bool) -> u64 {
    let quarter = 1u64 << (bits - 2);
    let within = hash >> (65 - bits);
    if signed {
        within.wrapping_sub(quarter)
    } else {
        within + quarter
    }
}

/// A total that is positive in the signed type of the same width.
fn int_total(hash: u64, bits: u32) -> u64 {
    hash >> (65 - bits)
}

fn power_of_three(exponent: u64) -> u64 {
    3u64.wrapping_pow(exponent as u32)
}

#[cfg(test)]
mod tests;
