//! The tag of a message, which says what it carries.

use crate::Slot;

/// The fields of a tag, from the top: whether it is a credit; the lane; and the rest. For a slot
/// that is the bytes of its payload and the last bits of its number, for a credit the total.
const CREDIT: u64 = 1 << 63;
const LANE_AT: u32 = 48;
const BYTES_AT: u32 = 24;
const LOW: u64 = (1 << BYTES_AT) - 1;
const TOTAL: u64 = (1 << LANE_AT) - 1;

/// The most lanes, and the most bytes of a payload. The number behind the last lane's stands for
/// slots of packets, and in the tag of a credit for an opening.
pub(super) const MOST_LANES: usize = (1 << (63 - LANE_AT)) - 1;
pub(super) const MOST_BYTES: usize = LOW as usize;

/// The contents of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    /// A part of a slot whose payload has this many bytes. The tag has only the last bits of the
    /// slot's number.
    Slot { slot: Slot, payload: usize },
    /// The total of consumed slots of a lane.
    Credit { lane: usize, total: u64 },
    /// The opening, by which the peer puts slots into this rank's inbox, of this many bytes.
    Opening { bytes: u64 },
}

impl Tag {
    pub(super) fn word(self) -> u64 {
        match self {
            Self::Slot { slot, payload } => {
                let Slot { lane, number } = slot;
                (lane as u64) << LANE_AT | (payload as u64) << BYTES_AT | number & LOW
            }
            Self::Credit { lane, total } => CREDIT | (lane as u64) << LANE_AT | total & TOTAL,
            Self::Opening { bytes } => CREDIT | (MOST_LANES as u64) << LANE_AT | bytes & TOTAL,
        }
    }

    /// Whether this is the tag of a slot; compares only the last bits of the slot's number.
    pub(super) fn is_of(self, slot: Slot, payload: usize) -> bool {
        self.word() == Self::Slot { slot, payload }.word()
    }

    pub(super) fn of(word: u64) -> Self {
        let lane = ((word & !CREDIT) >> LANE_AT) as usize;
        if word & CREDIT != 0 {
            let total = word & TOTAL;
            return match lane {
                MOST_LANES => Self::Opening { bytes: total },
                _ => Self::Credit { lane, total },
            };
        }
        let number = word & LOW;
        Self::Slot {
            slot: Slot { lane, number },
            payload: (word >> BYTES_AT & LOW) as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_say_what_was_said() {
        let lane = MOST_LANES - 1;
        for (number, told, payload) in [(1, 1, 0), (LOW + 6, 5, MOST_BYTES)] {
            let slot = Slot { lane, number };
            let seen = Tag::of(Tag::Slot { slot, payload }.word());
            let slot = Slot { lane, number: told };
            assert_eq!(seen, Tag::Slot { slot, payload });
        }
        let total = TOTAL;
        let credit = Tag::Credit { lane, total };
        assert_eq!(Tag::of(credit.word()), credit);
        let opening = Tag::Opening { bytes: 20 };
        assert_eq!(Tag::of(opening.word()), opening);
    }
}
