//! What the tag of a message says.

use crate::Slot;

/// From the top: whether it is a credit; the lane; and of a slot, the bytes of its payload and the
/// end of its number, of a credit, the total.
const CREDIT: u64 = 1 << 63;
const LANE_AT: u32 = 48;
const BYTES_AT: u32 = 24;
const LOW: u64 = (1 << BYTES_AT) - 1;
const TOTAL: u64 = (1 << LANE_AT) - 1;

/// The most lanes, of which the number behind the last one is no lane's: slots there are of
/// packets. And the most bytes of a payload.
pub(super) const MOST_LANES: usize = (1 << (63 - LANE_AT)) - 1;
pub(super) const MOST_BYTES: usize = LOW as usize;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    /// Of a slot whose payload has this many bytes. Of its number, only the end is told.
    Slot { slot: Slot, payload: usize },
    /// How many slots of a lane were consumed.
    Credit { lane: usize, total: u64 },
}

impl Tag {
    pub(super) fn word(self) -> u64 {
        match self {
            Self::Slot { slot, payload } => {
                let Slot { lane, number } = slot;
                (lane as u64) << LANE_AT | (payload as u64) << BYTES_AT | number & LOW
            }
            Self::Credit { lane, total } => CREDIT | (lane as u64) << LANE_AT | total & TOTAL,
        }
    }

    /// Whether it is what was told of a slot, of whose number that is only the end.
    pub(super) fn is_of(self, slot: Slot, payload: usize) -> bool {
        self.word() == Self::Slot { slot, payload }.word()
    }

    pub(super) fn of(word: u64) -> Self {
        let lane = ((word & !CREDIT) >> LANE_AT) as usize;
        if word & CREDIT != 0 {
            let total = word & TOTAL;
            return Self::Credit { lane, total };
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
    }
}
