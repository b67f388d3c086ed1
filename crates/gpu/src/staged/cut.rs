//! Cuts an operation into pieces that fit into slots, in the same way on all ranks.

use std::ops::Range;

use spark_ccl_types::{Extent, Operation, Side};

use super::layout::{GAP, SLOT, SLOTS};

/// The shortest piece, in bytes, that an operation is cut into: with a shorter one, the start of a
/// piece takes longer than its passage.
const WORTHWHILE: u64 = 128 << 10;
/// The number of pieces of an operation that is long enough: while the host does one piece, others
/// are copied.
const PIECES: u64 = 8;
/// The alignment of the blocks of a piece, in bytes.
const ALIGNMENT: u64 = 16;
/// The bytes of all slots of messages together, unless a slot would then have less than `SMALLEST`.
const OF_MESSAGES: usize = 4 << 20;
const SMALLEST: usize = 4 << 10;

/// The bytes of a slot of messages: each rank has lanes of its own, in both directions.
pub(super) const fn slot_of_messages(ranks: usize) -> usize {
    let share = OF_MESSAGES / (2 * ranks * SLOTS);
    if share <= SMALLEST {
        SMALLEST
    } else if share >= SLOT {
        SLOT
    } else {
        1 << share.ilog2()
    }
}

/// An operation or a message in pieces. Each piece is the same operation on a range of the counted
/// elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    count: u64,
    /// The elements of each piece but the last one.
    len: u64,
    is_shared: bool,
}

impl Cut {
    /// The pieces of an operation on `count` elements of `size` bytes; a pure function of arguments
    /// that are the same on all ranks. `None` if the operation is no collective of blocks, or there
    /// are too many ranks for a slot.
    pub fn new(operation: Operation, size: usize, count: u64, ranks: usize) -> Option<Self> {
        let [inputs, outputs] =
            [Side::Input, Side::Output].map(|side| blocks(operation, side, ranks));
        let (inputs, outputs) = (inputs?, outputs?);
        let is_shared = inputs == 1 && outputs == 1 && !operation.is_divided();
        let blocks = if is_shared { 1 } else { inputs + outputs };
        let bytes = size as u64 * blocks;
        let whole = (ALIGNMENT / size as u64).max(1);
        let most = (SLOT - GAP) as u64 / bytes / whole * whole;
        if most == 0 {
            return None;
        }
        let pieces = (count.saturating_mul(bytes) / WORTHWHILE).clamp(1, PIECES);
        let len = count.div_ceil(pieces).max(1).next_multiple_of(whole);
        Some(Self {
            count,
            len: len.min(most),
            is_shared,
        })
    }

    /// The pieces of a message of this many bytes, where each byte counts as an element; a pure
    /// function of arguments that are the same at both ends. Pieces begin at multiples of 16.
    pub fn of_message(bytes: u64, ranks: usize) -> Self {
        let pieces = (bytes / WORTHWHILE).clamp(1, PIECES);
        let len = bytes.div_ceil(pieces).max(1).next_multiple_of(ALIGNMENT);
        Self {
            count: bytes,
            len: len.min(slot_of_messages(ranks) as u64),
            is_shared: true,
        }
    }

    /// An operation in one piece, which is in no slot.
    pub fn whole(count: u64) -> Self {
        Self {
            count,
            len: count.max(1),
            is_shared: false,
        }
    }

    /// How many pieces there are: one, at least, which may have no elements.
    pub fn pieces(&self) -> u64 {
        self.count.div_ceil(self.len).max(1)
    }

    /// The elements of a piece.
    pub fn elements(&self, piece: u64) -> Range<u64> {
        let start = (piece * self.len).min(self.count);
        start..(start + self.len).min(self.count)
    }

    /// Whether a piece's result replaces its input in the slot.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Where a piece's result starts in its slot, behind an input of this many bytes.
    pub fn output_at(&self, input: usize) -> usize {
        if self.is_shared {
            0
        } else {
            input.next_multiple_of(GAP)
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }
}

/// The most blocks that a rank has.
pub(super) fn blocks(operation: Operation, side: Side, ranks: usize) -> Option<u64> {
    match operation.extent(side) {
        Extent::Count => Some(1),
        Extent::Blocks => Some(ranks as u64),
        Extent::Any | Extent::Nothing => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use spark_ccl_types::DType;

    use super::*;

    proptest! {
        #[test]
        fn pieces_have_all_elements_and_fit_into_slots(
            operation in proptest::sample::select(&Operation::ALL),
            dtype in proptest::sample::select(&DType::ALL),
            count in prop_oneof![0_u64..100, 0_u64..1 << 24],
            ranks in 1_usize..40,
        ) {
            let size = dtype.size();
            let Some(cut) = Cut::new(operation, size, count, ranks) else {
                let none = [Side::Input, Side::Output].map(|side| blocks(operation, side, ranks));
                prop_assert!(none.contains(&None));
                return Ok(());
            };
            let mut next = 0;
            for piece in 0..cut.pieces() {
                let elements = cut.elements(piece);
                prop_assert_eq!(elements.start, next);
                prop_assert!(elements.end > next || count == 0);
                next = elements.end;
                let block = (elements.end - elements.start) as usize * size;
                let bytes = |side| blocks(operation, side, ranks).unwrap() as usize * block;
                let output = cut.output_at(bytes(Side::Input));
                prop_assert!(bytes(Side::Input) <= SLOT && output + bytes(Side::Output) <= SLOT);
                prop_assert!(cut.is_shared() || output >= bytes(Side::Input));
            }
            prop_assert_eq!(next, count);
        }
    }

    proptest! {
        #[test]
        fn messages_are_cut_between_elements(bytes in 0_u64..1 << 26, ranks in 1_usize..2000) {
            let cut = Cut::of_message(bytes, ranks);
            let ranges: Vec<_> = (0..cut.pieces()).map(|piece| cut.elements(piece)).collect();
            prop_assert!(ranges.iter().all(|range| range.start % ALIGNMENT == 0));
            prop_assert!(ranges.iter().all(|range| range.end - range.start <= slot_of_messages(ranks) as u64));
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (0, bytes));
        }
    }

    #[test]
    fn a_result_replaces_its_input_where_both_are_as_long() {
        let is_shared = |operation| Cut::new(operation, 4, 100, 3).unwrap().is_shared();
        for operation in [
            Operation::AllReduce,
            Operation::Broadcast,
            Operation::Reduce,
        ] {
            assert!(is_shared(operation));
            assert!(Cut::new(operation, 4, 100, 1).unwrap().is_shared());
        }
        for operation in [
            Operation::AllGather,
            Operation::AllToAll,
            Operation::Scatter,
        ] {
            assert!(!is_shared(operation));
            assert!(!Cut::new(operation, 4, 100, 1).unwrap().is_shared());
        }
    }

    #[test]
    fn slots_have_room_for_a_block_of_each_rank() {
        assert_eq!(Cut::new(Operation::AllGather, 8, 1, 70_000), None);
        assert_eq!(
            Cut::new(Operation::AllGather, 8, 1, 1000).unwrap().pieces(),
            1
        );
    }
}
