//! Signatures: what a call does, packed into two words that ranks compare.

use crate::{DType, Operation, ReduceOp};

/// Everything that all ranks must agree on in one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// The operation.
    pub operation: Operation,
    /// The type of the elements.
    pub dtype: DType,
    /// [`Reduction::code`](crate::Reduction::code).
    pub op: u8,
    /// Whether the call is in place; only set if all ranks or none must be.
    pub in_place: bool,
    /// The root; 0 if there is none.
    pub root: u32,
    /// Distinguishes calls that the program has named; 0 without a name. Only the low 19 bits
    /// count.
    pub name: u32,
    /// The count of elements; 0 for operations whose counts differ between ranks.
    pub count: u64,
    /// 0 for ordinary memory; otherwise a hash of the registered regions and offsets.
    pub place: u64,
}

const COUNT_BITS: u32 = 48;
/// In word 0, the name begins at this bit; the root is above it.
const NAME_SHIFT: u32 = 25;
const NAME_BITS: u32 = 19;
const ROOT_SHIFT: u32 = NAME_SHIFT + NAME_BITS;

impl Signature {
    /// The signature of a call that only has an operation, a type and a count.
    #[inline]
    pub const fn plain(operation: Operation, dtype: DType, count: u64) -> Self {
        Self {
            operation,
            dtype,
            op: 0,
            in_place: false,
            root: 0,
            name: 0,
            count,
            place: 0,
        }
    }

    /// The bytes of the vector, or of one block if each rank has a block. Saturates at `u64::MAX`:
    /// an allocation may ask for any count.
    #[inline]
    pub fn bytes(self) -> u64 {
        self.count.saturating_mul(self.dtype.size() as u64)
    }

    /// Word 0 has the operation, dtype, op, in place, name, and the low 20 bits of the root. Word 1
    /// has the low 48 bits of the count and the low 16 bits of the place.
    #[inline]
    pub fn words(self) -> [u64; 2] {
        let head = u64::from(self.operation.code())
            | u64::from(self.dtype.code()) << 8
            | u64::from(self.op) << 16
            | u64::from(self.in_place) << 24
            | (u64::from(self.name) & ((1 << NAME_BITS) - 1)) << NAME_SHIFT
            | u64::from(self.root) << ROOT_SHIFT;
        let count = self.count & ((1 << COUNT_BITS) - 1);
        [head, count | self.place << COUNT_BITS]
    }

    /// The signature with these words, without the bits that they lack; `None` if no signature has
    /// them.
    pub fn from_words(words: [u64; 2]) -> Option<Self> {
        let byte = |shift: u32| (words[0] >> shift) as u8;
        Some(Self {
            operation: Operation::from_code(byte(0))?,
            dtype: DType::from_code(byte(8))?,
            op: byte(16),
            in_place: words[0] >> 24 & 1 == 1,
            root: (words[0] >> ROOT_SHIFT) as u32,
            name: name_of(words),
            count: count_of(words),
            place: words[1] >> COUNT_BITS,
        })
    }

    /// A digest of the signature for message tags. It distinguishes calls, but is not an integrity
    /// check.
    #[inline]
    pub fn digest(self) -> u32 {
        mix(self.words()) ^ (self.place >> 32) as u32
    }
}

#[inline]
fn mix(words: [u64; 2]) -> u32 {
    let mixed = (words[0] ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xff51_afd7_ed55_8ccd)
        ^ words[1].wrapping_mul(0xc4ce_b9fe_1a85_ec53).rotate_left(31);
    let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0x9fb2_1c65_1e98_df25);
    (mixed >> 32) as u32
}

/// The bits of [`Signature::name`] that the words have.
pub fn name_of(words: [u64; 2]) -> u32 {
    (words[0] >> NAME_SHIFT) as u32 & ((1 << NAME_BITS) - 1)
}

/// A signature as text, for error messages, without its name.
pub fn describe(words: [u64; 2]) -> String {
    // A call with a count for each block has no count of its own.
    let is_of_blocks = words[0] as u8 == Operation::AllToAllV.code();
    text(words, !is_of_blocks || count_of(words) > 0)
}

/// The signature of a message between two ranks, or of a block, as text. Tells the count even if it
/// is 0.
pub fn describe_message(words: [u64; 2]) -> String {
    text(words, true)
}

fn count_of(words: [u64; 2]) -> u64 {
    words[1] & ((1 << COUNT_BITS) - 1)
}

fn text(words: [u64; 2], has_count: bool) -> String {
    let byte = |shift: u32| (words[0] >> shift) as u8;
    let Some(operation) = Operation::from_code(byte(0)) else {
        return format!("an unknown operation ({:#x}, {:#x})", words[0], words[1]);
    };
    if operation == Operation::Barrier {
        return operation.name().to_owned();
    }
    let mut parts = Vec::new();
    if has_count {
        parts.push(format!("count {}", count_of(words)));
    }
    parts.push(match DType::from_code(byte(8)) {
        Some(dtype) => dtype.name().to_owned(),
        None => format!("type {}", byte(8)),
    });
    if operation.reduces() {
        let op = ReduceOp::from_code(byte(16)).map_or("unknown op", ReduceOp::name);
        parts.push(op.to_owned());
    }
    if operation.is_rooted() {
        parts.push(format!("root {}", words[0] >> ROOT_SHIFT));
    }
    if words[0] >> 24 & 1 == 1 {
        parts.push("in place".to_owned());
    }
    let place = words[1] >> COUNT_BITS;
    if place != 0 {
        parts.push(format!(
            "registered memory of allocation and offset #{place:04x}"
        ));
    }
    format!("{operation}({})", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Peers may announce any words.
        #[test]
        fn any_words_are_described(head: u64, operation in 0_u64..16, tail: u64) {
            for head in [head, head & !0xff | operation] {
                prop_assert!(!describe([head, tail]).is_empty());
            }
        }
    }

    #[test]
    fn words_tell_every_field_apart() {
        let base = Signature {
            operation: Operation::Broadcast,
            dtype: DType::F32,
            op: 0,
            in_place: false,
            root: 1,
            name: 5,
            count: 17,
            place: 0,
        };
        let others = [
            Signature {
                operation: Operation::Reduce,
                ..base
            },
            Signature {
                dtype: DType::F64,
                ..base
            },
            Signature { op: 2, ..base },
            Signature {
                in_place: true,
                ..base
            },
            Signature { root: 2, ..base },
            Signature { name: 6, ..base },
            Signature { count: 18, ..base },
            Signature { place: 9, ..base },
        ];
        for other in others {
            assert_ne!(base.words(), other.words());
            assert_ne!(base.digest(), other.digest());
            assert_eq!(Signature::from_words(other.words()), Some(other));
        }
        assert_eq!(name_of(base.words()), 5);
        assert_eq!(describe(base.words()), "broadcast(count 17, float, root 1)");
    }
}
