//! The layout of a segment: the offsets of its words, headers, bodies and slots. Arithmetic only:
//! no memory is touched here.

use std::ops::Range;

use crate::Geometry;
use crate::memory::MemoryError;

/// The longest payload that travels in a cell's header.
pub const INLINE_BYTES: usize = HEADER_STRIDE - INLINE;

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;
/// The distance between words that different processes write: two lines, because processors fetch
/// lines in pairs.
const APART: usize = 2 * LINE;
/// The size of the part before the first ring: the segment's identity, which ends have closed or
/// sleep, and how to read their memory.
const PROLOGUE: usize = 4 * APART;
const CLOSED: usize = APART;
/// On the line of the `closed` words, which a waiter has read anyway.
const DOORBELL: usize = CLOSED + 4 * 8;
const REACH: usize = 2 * APART;

/// Within a cell's header: the number of the message in it.
pub(super) const FILLED: usize = 0;
/// Within a cell's header: the tag.
pub(super) const TAG: usize = 8;
/// Within a cell's header: the length of the payload, 32 bits, and where it is, 32 bits.
pub(super) const LEN: usize = 16;
/// Within a cell's header: the payload if it is small, or its address if it is lent.
pub(super) const INLINE: usize = 24;

/// From one cell's header to the next.
pub(super) const HEADER_STRIDE: usize = APART;
/// The longest payload that fits into the body of its cell.
pub(super) const BODY_BYTES: usize = 8 << 10;
/// From one cell's body to the next. Not a power of two, so that bodies do not all map to the same
/// cache sets.
pub(super) const BODY_STRIDE: usize = LINE + BODY_BYTES;
/// Enough that a sender that is ahead fills lines which the receiver finished long ago: that takes
/// half the time of lines that both are using.
const CELLS_PER_SLOT: usize = 8;
/// The memory that is allocated when a link is made ends at a multiple of this, and so does each
/// ring.
const PAGE: usize = 4 << 10;

/// How many bodies all links of a rank share, as long as each link has one per slot: 17 MB.
const BODIES_OF_ALL: usize = 2 << 10;

const MAX_SLOTS: usize = 1 << 20;
const MAX_SLOT_BYTES: usize = 1 << 30;

/// The size of a link. Both ends must use the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    geometry: Geometry,
    /// Bodies of cells for each slot; a power of two.
    bodies_per_slot: usize,
}

impl Size {
    /// The size for a rank with this many peers on shared memory. The more peers there are, the
    /// fewer messages of some kilobytes may be in flight on each link.
    pub fn among(peers: usize, geometry: Geometry) -> Self {
        let share = BODIES_OF_ALL / geometry.slots.max(1) / peers.max(1);
        let most = share.clamp(1, CELLS_PER_SLOT);
        Self {
            geometry,
            bodies_per_slot: 1 << most.ilog2(),
        }
    }

    pub(super) fn geometry(self) -> Geometry {
        self.geometry
    }

    /// How many messages in bodies may be in flight.
    #[inline]
    pub(super) fn bodies(self) -> usize {
        self.bodies_per_slot * self.geometry.slots
    }

    pub(super) fn bodies_per_slot(self) -> usize {
        self.bodies_per_slot
    }

    /// The distance from a ring's first body to its first slot. The first slots start near the
    /// middle of a page: a load may wait for an earlier store with the same page offset, and
    /// callers' buffers often start near the beginning of a page.
    fn before_slots(self) -> usize {
        (self.bodies() * BODY_STRIDE).next_multiple_of(PAGE) + PAGE / 2
    }
}

impl From<Geometry> for Size {
    /// The size for a rank with one peer.
    fn from(geometry: Geometry) -> Self {
        Self::among(1, geometry)
    }
}

/// A direction through a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the end that made the segment.
    Forth,
    /// To that end.
    Back,
}

impl Direction {
    pub(super) fn reverse(self) -> Self {
        match self {
            Self::Forth => Self::Back,
            Self::Back => Self::Forth,
        }
    }
}

/// One of the two ends of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Sender,
    Receiver,
}

/// The offsets, in bytes, of everything in a segment of a given size.
///
/// In order: the prologue; two lines for each of the two rings, one with the receiver's words (how
/// far it has read) and one with the sender's; the headers of both rings. Memory up to here is
/// allocated when the link is made. Then each ring's bodies, padding, and its slots, which are
/// allocated on first use. Headers, bodies and slots start at multiples of 64, and everything lies
/// within [`bytes`](Self::bytes).
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    size: Size,
    /// The size of the bodies and slots of one ring with their padding, in bytes.
    room: usize,
    bytes: usize,
}

impl Layout {
    pub(super) fn new(size: Size) -> Result<Self, MemoryError> {
        let geometry = size.geometry;
        let Geometry { slot_bytes, slots } = geometry;
        let possible = slot_bytes % LINE == 0
            && (LINE..=MAX_SLOT_BYTES).contains(&slot_bytes)
            && (1..=MAX_SLOTS).contains(&slots);
        if !possible {
            return Err(MemoryError::Geometry(format!(
                "{geometry:?}; slot_bytes must be a multiple of {LINE} up to {MAX_SLOT_BYTES}, \
                 slots 1 to {MAX_SLOTS}"
            )));
        }
        let too_large =
            || MemoryError::Geometry(format!("{geometry:?}; more than the address space holds"));
        let room = slots
            .checked_mul(slot_stride(geometry))
            .and_then(|slots| slots.checked_add(size.before_slots()))
            .and_then(|room| room.checked_next_multiple_of(PAGE))
            .ok_or_else(too_large)?;
        let bytes = room
            .checked_mul(2)
            .and_then(|rooms| rooms.checked_add(at_once(geometry)))
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(too_large)?;
        Ok(Self { size, room, bytes })
    }

    pub(super) fn size(&self) -> Size {
        self.size
    }

    /// The size of the whole segment.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The size of what is allocated at once: everything except bodies and slots.
    pub(super) fn at_once(&self) -> usize {
        at_once(self.size.geometry)
    }

    /// The word that is set when this end is closed.
    pub(super) fn closed(direction: Direction, side: Side) -> usize {
        CLOSED + 8 * (2 * direction as usize + side as usize)
    }

    /// The doorbell words of the end that sends in this direction.
    pub(super) fn doorbell(direction: Direction) -> usize {
        DOORBELL + 16 * direction as usize
    }

    /// The words for reading the memory of the sender of this direction.
    pub(super) fn reach(direction: Direction) -> usize {
        REACH + APART * direction as usize
    }

    /// The word with the number of released messages of the ring.
    pub(super) fn released(direction: Direction) -> usize {
        PROLOGUE + APART * direction as usize
    }

    /// The word with the piece of a lent message that the receiver asks for.
    pub(super) fn wanted(direction: Direction) -> usize {
        Self::released(direction) + 8
    }

    /// The word with the piece of a lent message that was given, on the sender's line.
    pub(super) fn given(direction: Direction) -> usize {
        Self::released(direction) + LINE
    }

    /// The header of the ring's first cell.
    pub(super) fn headers(&self, direction: Direction) -> usize {
        let geometry = self.size.geometry;
        let rings = PROLOGUE + APART * 2;
        rings + cells(geometry) * HEADER_STRIDE * direction as usize
    }

    /// The body of the ring's first cell.
    pub(super) fn bodies(&self, direction: Direction) -> usize {
        self.at_once() + self.room * direction as usize
    }

    /// All bodies of the ring.
    pub(super) fn all_bodies(&self, direction: Direction) -> Range<usize> {
        let start = self.bodies(direction);
        start..start + self.size.bodies() * BODY_STRIDE
    }

    /// The first `bytes`, or fewer, of each slot of the ring.
    pub(super) fn heads_of_slots(
        &self,
        direction: Direction,
        bytes: usize,
    ) -> impl Iterator<Item = Range<usize>> {
        let (geometry, first) = (self.size.geometry, self.slots(direction));
        let starts = (0..geometry.slots).map(move |slot| first + slot * slot_stride(geometry));
        starts.map(move |start| start..start + bytes.min(geometry.slot_bytes))
    }

    /// The first slot of the ring.
    pub(super) fn slots(&self, direction: Direction) -> usize {
        self.bodies(direction) + self.size.before_slots()
    }
}

/// The offset of the end of all headers.
fn at_once(geometry: Geometry) -> usize {
    let ring = APART + cells(geometry) * HEADER_STRIDE;
    (PROLOGUE + 2 * ring).next_multiple_of(PAGE)
}

/// The number of a ring's cells: a multiple of its number of bodies and of its number of slots.
#[inline]
pub(super) fn cells(geometry: Geometry) -> usize {
    CELLS_PER_SLOT * geometry.slots
}

/// From one slot of a ring to the next. Not a power of two, so that slots do not all map to the
/// same cache sets.
#[inline]
pub(super) fn slot_stride(geometry: Geometry) -> usize {
    LINE + geometry.slot_bytes
}

#[cfg(test)]
mod tests {
    use super::super::{doorbell, reach};
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_lie_within_the_segment() {
        let geometry = Geometry {
            slot_bytes: 192,
            slots: 3,
        };
        for peers in [1, 400] {
            check_parts(Size::among(peers, geometry));
        }
    }

    fn check_parts(size: Size) {
        let layout = Layout::new(size).unwrap();
        let mut parts = vec![(0, 4 * 8)];
        for direction in [Direction::Forth, Direction::Back] {
            for side in [Side::Sender, Side::Receiver] {
                parts.push((Layout::closed(direction, side), 8));
            }
            parts.push((
                Layout::doorbell(direction),
                size_of::<doorbell::words::Words>(),
            ));
            parts.push((Layout::reach(direction), size_of::<reach::Words>()));
            parts.push((Layout::released(direction), 8));
            parts.push((Layout::wanted(direction), 8));
            parts.push((Layout::given(direction), 8));
            parts.push((layout.headers(direction), 24 * 128));
            parts.push((layout.bodies(direction), size.bodies() * (64 + 8192)));
            parts.push((layout.slots(direction), 3 * (64 + 192)));
            assert_eq!(layout.slots(direction) % PAGE, PAGE / 2);
        }
        parts.sort_unstable();
        for pair in parts.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
        }
        let (last, length) = *parts.last().unwrap();
        assert_eq!((last + length).next_multiple_of(PAGE), layout.bytes());
        let first = parts.partition_point(|part| part.0 < layout.at_once());
        assert!(parts[first - 1].0 + parts[first - 1].1 <= layout.at_once());
        assert_eq!(parts[first].0, layout.bodies(Direction::Forth));
        assert!(
            parts
                .iter()
                .filter(|part| part.1 > 16)
                .all(|part| part.0 % LINE == 0)
        );
    }

    #[test]
    fn links_of_many_have_fewer_bodies() {
        let geometry = Geometry {
            slot_bytes: 64 << 10,
            slots: 8,
        };
        let bodies = |peers| Size::among(peers, geometry).bodies();
        let seen = [0, 1, 7, 32, 63, 255, 65_535].map(bodies);
        assert_eq!(seen, [64, 64, 64, 64, 32, 8, 8]);
    }

    #[test]
    fn impossible_geometries_are_refused() {
        let good = Geometry {
            slot_bytes: 64,
            slots: 1,
        };
        assert!(Layout::new(good.into()).is_ok());
        for bad in [
            Geometry {
                slot_bytes: 0,
                ..good
            },
            Geometry {
                slot_bytes: 65,
                ..good
            },
            Geometry {
                slot_bytes: usize::MAX & !63,
                ..good
            },
            Geometry { slots: 0, ..good },
            Geometry {
                slots: usize::MAX,
                ..good
            },
        ] {
            let error = Layout::new(bad.into()).unwrap_err();
            assert!(error.to_string().contains("slot_bytes must be"), "{error}");
        }
    }
}
