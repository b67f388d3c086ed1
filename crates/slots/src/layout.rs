//! Where the words and slots of a box are. `kernels/slots_layout.h` has the same numbers.

use crate::error::Error;
use crate::slot::{Counter, Placement, Slot};

/// The bytes between words that different processors write.
pub(crate) const LINE: usize = 128;
/// Within a slot, in one cache line of the host: the flag, the credit that goes with the slot, and
/// the record. The payload follows.
pub(crate) const FLAG: usize = 64;
pub(crate) const CREDIT: usize = 72;
pub(crate) const RECORD: usize = 80;
/// The bytes of a slot before its payload.
pub(crate) const HEAD: usize = 128;
/// Slots begin at a page of the host.
const PAGE: usize = 4096;
/// In a slot of packets: the words of the record, and the bytes of the block.
pub(crate) const RECORD_OF_PACKETS: usize = 4;
pub(crate) const BLOCK: usize = 1024;
/// The words of a slot of packets (each is a packet), and the number of these slots in a box.
pub(crate) const PACKETS: usize = RECORD_OF_PACKETS + BLOCK / size_of::<u64>();
pub(crate) const PACKET_SLOTS: usize = 2;
/// Every so often, counted in slots, all packets of a slot are written.
pub(crate) const RENEWED_EACH: u64 = 1 << 16;
/// The bytes of all packets, behind a line with the number that kernels wait for.
const PACKET_BYTES: usize = LINE + PACKET_SLOTS * PACKETS * 2 * size_of::<u64>();
/// The most slots of a lane: a word has a bit for each.
pub const MAX_DEPTH: usize = 64;

/// How many counters a lane has.
const COUNTERS: usize = 5;

/// The shape of the boxes of a pair, the same at both ends. All lanes have equal slots.
///
/// ```
/// use spark_ccl_slots::Shape;
///
/// let shape = Shape::new(2, 4, 8192)?;
/// assert!(shape.bytes() >= 2 * 4 * 8192);
/// # Ok::<(), spark_ccl_slots::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    lanes: usize,
    depth: usize,
    payload: usize,
    placement: Placement,
}

impl Shape {
    /// `lanes` lanes of `depth` slots with `payload` bytes each.
    ///
    /// # Errors
    /// There are no lanes, no slots or more than [`MAX_DEPTH`], or the payload is no positive
    /// multiple of 128.
    pub fn new(lanes: usize, depth: usize, payload: usize) -> Result<Self, Error> {
        let is_whole = payload > 0 && payload.is_multiple_of(LINE);
        if lanes == 0 || !(1..=MAX_DEPTH).contains(&depth) || !is_whole {
            return Err(Error::Shape {
                lanes,
                depth,
                payload,
            });
        }
        Ok(Self {
            lanes,
            depth,
            payload,
            placement: Placement::Host,
        })
    }

    /// The same, with its slots elsewhere.
    #[must_use]
    pub fn placed(self, placement: Placement) -> Self {
        Self { placement, ..self }
    }

    /// Where its slots are.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// How many lanes there are.
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// The slots of a lane.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// The bytes of a slot's payload.
    pub fn payload(&self) -> usize {
        self.payload
    }

    /// The bytes of a box.
    pub fn bytes(&self) -> usize {
        self.packets() + PACKET_BYTES
    }

    /// The bytes of a box's slots on the GPU.
    pub fn bytes_on_device(&self) -> usize {
        match self.placement {
            Placement::Host => 0,
            Placement::Device => self.lanes * self.depth * self.stride(),
        }
    }

    /// Where the slots begin, or, if they are elsewhere, their heads.
    pub fn slots(&self) -> usize {
        (self.lanes * COUNTERS * LINE).next_multiple_of(PAGE)
    }

    /// Where the packets begin, behind the slots.
    pub fn packets(&self) -> usize {
        self.slots() + self.lanes * self.depth * self.heads()
    }

    pub(crate) fn counter(&self, lane: usize, counter: Counter) -> usize {
        debug_assert!(lane < self.lanes);
        (lane * COUNTERS + counter as usize) * LINE
    }

    /// Where the slot of a number is in a box, or its head. Numbers begin at 1 and never restart.
    pub(crate) fn slot(&self, slot: Slot) -> usize {
        self.slots() + self.index(slot) * self.heads()
    }

    /// Where the slot of a number is, counted from the first slot.
    pub(crate) fn whole_slot(&self, slot: Slot) -> usize {
        self.index(slot) * self.stride()
    }

    fn index(&self, Slot { lane, number }: Slot) -> usize {
        debug_assert!(lane < self.lanes);
        lane * self.depth + number as usize % self.depth
    }

    /// The bytes from a slot's head in a box to the next one of its lane.
    pub fn heads(&self) -> usize {
        match self.placement {
            Placement::Host => self.stride(),
            Placement::Device => HEAD,
        }
    }

    /// The bytes from a slot to the next one of its lane.
    pub fn stride(&self) -> usize {
        HEAD + self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_counters_do_not_overlap() {
        let shape = Shape::new(3, 4, 256).unwrap();
        assert_eq!(shape.bytes_on_device(), 0);
        does_not_overlap(shape, HEAD + 256);
        let shape = shape.placed(Placement::Device);
        assert_eq!(shape.bytes_on_device(), 12 * (HEAD + 256));
        does_not_overlap(shape, HEAD);
    }

    fn does_not_overlap(shape: Shape, slot: usize) {
        let mut ranges = Vec::new();
        for lane in 0..3 {
            use Counter::{Consumed, Credit, Published, Sent, Wanted};
            ranges.extend([Published, Sent, Credit, Consumed, Wanted].map(|counter| {
                let at = shape.counter(lane, counter);
                at..at + LINE
            }));
            ranges.extend((8..12).map(|number| {
                let at = shape.slot(Slot { lane, number });
                at..at + slot
            }));
        }
        ranges.push(shape.packets()..shape.packets() + PACKET_BYTES);
        ranges.sort_by_key(|range| range.start);
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
        assert_eq!(ranges.last().unwrap().end, shape.bytes());
    }

    #[test]
    fn a_number_has_the_slot_of_the_one_that_is_depth_older() {
        let shape = Shape::new(2, 3, 128).unwrap();
        for shape in [shape, shape.placed(Placement::Device)] {
            let slot = |number| Slot { lane: 1, number };
            let at = |number| (shape.slot(slot(number)), shape.whole_slot(slot(number)));
            assert_eq!(at(7), at(4));
            assert_ne!(at(7).0, at(5).0);
            assert_ne!(at(7).1, at(5).1);
        }
    }

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        for (lanes, depth, payload) in [(0, 1, 128), (1, 0, 128), (1, 65, 128), (1, 1, 100)] {
            let said = Shape::new(lanes, depth, payload).unwrap_err();
            assert_eq!(
                said,
                Error::Shape {
                    lanes,
                    depth,
                    payload
                }
            );
        }
    }
}
