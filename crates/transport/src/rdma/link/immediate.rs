//! The immediate values that come with writes and sends, as bits. What they change is in
//! `order.rs`.

use spark_ccl_verbs::Opcode;

/// Message numbers are transmitted modulo this.
const NUMBERS: u32 = 1 << 30;

/// The meaning of an immediate value. Messages are numbered from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Immediate {
    /// The message with this number is in its slot.
    Message { number: u32 },
    /// The receiver has returned the slots of all messages up to this number that are not lent.
    Released { number: u32 },
    /// The receiver has read the lent message with this number over this rail, or over one that it
    /// has dropped.
    Returned { number: u32 },
    /// This rail works.
    Hello,
    /// The sender sends nothing more over this rail.
    SenderGone,
    /// The receiver accepts nothing more.
    ReceiverGone,
}

impl Immediate {
    pub(super) fn to_bits(self) -> u32 {
        let of = |kind: u32, number: u32| (kind << 30) | (number % NUMBERS);
        match self {
            Self::Message { number } => of(0, number),
            Self::Released { number } => of(1, number),
            Self::Returned { number } => of(3, number),
            Self::Hello => of(2, 0),
            Self::SenderGone => of(2, 1),
            Self::ReceiverGone => of(2, 2),
        }
    }

    /// The opcode of its completion: values with data come with a write, the others with a send.
    pub(super) fn arrival(self) -> Opcode {
        match self {
            Self::Message { .. } | Self::Hello => Opcode::ReceiveOfWrite,
            Self::Released { .. }
            | Self::Returned { .. }
            | Self::SenderGone
            | Self::ReceiverGone => Opcode::Receive,
        }
    }

    /// Decodes a value; `None` if no peer of this version sends it.
    pub(super) fn from_bits(bits: u32) -> Option<Self> {
        let number = bits % NUMBERS;
        match (bits >> 30, number) {
            (0, number) => Some(Self::Message { number }),
            (1, number) => Some(Self::Released { number }),
            (3, number) => Some(Self::Returned { number }),
            (2, 0) => Some(Self::Hello),
            (2, 1) => Some(Self::SenderGone),
            (2, 2) => Some(Self::ReceiverGone),
            _ => None,
        }
    }
}

/// How far `number` is ahead of `known`, of which only the low bits are compared; negative if it is
/// behind.
pub(super) fn distance(number: u32, known: u64) -> i64 {
    let ahead = number.wrapping_sub(known as u32) % NUMBERS;
    if ahead < NUMBERS / 2 {
        i64::from(ahead)
    } else {
        i64::from(ahead) - i64::from(NUMBERS)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_said_is_understood(number in 0..NUMBERS) {
            for said in [
                Immediate::Message { number },
                Immediate::Released { number },
                Immediate::Returned { number },
                Immediate::Hello,
                Immediate::SenderGone,
                Immediate::ReceiverGone,
            ] {
                prop_assert_eq!(Immediate::from_bits(said.to_bits()), Some(said));
            }
        }

        #[test]
        fn any_bits_are_understood_or_refused(bits: u32) {
            if let Some(said) = Immediate::from_bits(bits) {
                prop_assert_eq!(said.to_bits(), bits);
            }
        }

        #[test]
        fn distances_are_small_numbers_forth_and_back(known: u64, step in -1000_i64..1000) {
            let number = known.wrapping_add_signed(step) as u32 % NUMBERS;
            prop_assert_eq!(distance(number, known), step);
        }
    }
}
