//! The immediate values that come with writes and sends.

use spark_ccl_verbs::Opcode;

/// The most channels of a link.
pub(super) const MAX_CHANNELS: usize = 1 << 6;
/// Message numbers are transmitted modulo this.
const NUMBERS: u32 = 1 << 24;

/// The meaning of an immediate value. Messages of a channel are numbered from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Immediate {
    /// The message with this number is in its slot.
    Message { channel: usize, number: u32 },
    /// The receiver has returned the slots of all messages up to this number that are not lent.
    Released { channel: usize, number: u32 },
    /// The receiver has read the lent message with this number over this rail, or over one that it has dropped.
    Returned { channel: usize, number: u32 },
    /// This rail works.
    Hello,
    /// The sender sends nothing more over this rail.
    SenderGone,
    /// The receiver accepts nothing more.
    ReceiverGone,
}

impl Immediate {
    pub(super) fn to_bits(self) -> u32 {
        let of = |kind: u32, channel: usize, number: u64| {
            (kind << 30)
                | ((channel as u32 % MAX_CHANNELS as u32) << 24)
                | (number as u32 % NUMBERS)
        };
        match self {
            Self::Message { channel, number } => of(0, channel, number.into()),
            Self::Released { channel, number } => of(1, channel, number.into()),
            Self::Returned { channel, number } => of(3, channel, number.into()),
            Self::Hello => of(2, 0, 0),
            Self::SenderGone => of(2, 0, 1),
            Self::ReceiverGone => of(2, 0, 2),
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
        let channel = (bits >> 24) as usize % MAX_CHANNELS;
        let number = bits % NUMBERS;
        match (bits >> 30, number) {
            (0, number) => Some(Self::Message { channel, number }),
            (1, number) => Some(Self::Released { channel, number }),
            (3, number) => Some(Self::Returned { channel, number }),
            (2, 0) => Some(Self::Hello),
            (2, 1) => Some(Self::SenderGone),
            (2, 2) => Some(Self::ReceiverGone),
            _ => None,
        }
    }
}

/// How far `number` is ahead of `known`, of which only the low bits are compared; negative if it is behind.
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
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_said_is_understood(channel in 0..MAX_CHANNELS, number in 0..NUMBERS) {
            for said in [
                Immediate::Message { channel, number },
                Immediate::Released { channel, number },
                Immediate::Returned { channel, number },
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
                let channel_bits = if bits >> 30 == 2 { !(0x3f << 24) } else { u32::MAX };
                prop_assert_eq!(said.to_bits(), bits & channel_bits);
            }
        }

        #[test]
        fn distances_are_small_numbers_forth_and_back(known: u64, step in -1000_i64..1000) {
            let number = known.wrapping_add_signed(step) as u32 % NUMBERS;
            prop_assert_eq!(distance(number, known), step);
        }
    }
}
