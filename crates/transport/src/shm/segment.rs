//! The shared memory of one link, and its rings as seen from either side.

// The layout's offsets and the start of a mapping are aligned for everything that is read there.
#![allow(clippy::cast_ptr_alignment)]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::doorbell::words as doorbell;
use super::layout::{
    self, BODY_BYTES, BODY_STRIDE, Direction, FILLED, HEADER_STRIDE, INLINE, LEN, Layout, Side,
    Size, TAG, slot_stride,
};
use super::ring::{Cell, Words};
use super::{pieces, reach};
use crate::memory::{MemoryError, SharedMemory};

/// The first word of every segment; its last byte is the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"sparkln\x08");

/// Shared memory laid out as a link.
#[derive(Debug)]
pub(super) struct Segment {
    memory: SharedMemory,
    layout: Layout,
}

impl Segment {
    /// Lays out fresh memory of `layout.bytes()`, all zero.
    pub(super) fn create(memory: SharedMemory, layout: Layout) -> Self {
        let segment = Self { memory, layout };
        let words = identity(layout.size());
        // SAFETY: the segment begins with a line for these words, and nothing else uses it yet.
        unsafe { segment.at(0).cast::<[u64; 4]>().write(words) };
        segment
    }

    /// Opens memory of `layout.bytes()` bytes that a peer has laid out.
    pub(super) fn open(memory: SharedMemory, layout: Layout) -> Result<Self, MemoryError> {
        let segment = Self { memory, layout };
        // SAFETY: the segment begins with a line for these words. The peer wrote them before it
        // passed the memory on. If it writes to them now, any values are valid.
        let words = unsafe { segment.at(0).cast::<[u64; 4]>().read_volatile() };
        if words == identity(layout.size()) {
            Ok(segment)
        } else {
            Err(MemoryError::Refused(format!(
                "expected a link of {:?}, saw one marked {:#x} with slot_bytes {}, slots {}, \
                 bodies {}; run the same library and set the same slot sizes on all ranks",
                layout.size(),
                words[0],
                words[1],
                words[2],
                words[3],
            )))
        }
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    pub(super) fn size(&self) -> Size {
        self.layout.size()
    }

    /// Allocates the memory from `start` on, which lies within the segment.
    fn provide(&self, start: *const u8, bytes: usize) -> Result<(), MemoryError> {
        let offset = start as usize - self.memory.as_ptr() as usize;
        self.set_aside(offset..offset + bytes)
    }

    /// Allocates a part of the segment.
    pub(super) fn set_aside(&self, part: Range<usize>) -> Result<(), MemoryError> {
        self.memory.set_aside(part)
    }

    /// The word that is set when this end is closed.
    pub(super) fn closed(&self, direction: Direction, side: Side) -> &AtomicU64 {
        let word = self.at(Layout::closed(direction, side)).cast::<u64>();
        // SAFETY: the layout puts an aligned word there. It lives as long as the memory, and is
        // only accessed as an atomic.
        unsafe { AtomicU64::from_ptr(word) }
    }

    /// The doorbell words of the end that sends in this direction.
    #[inline]
    pub(super) fn doorbell(&self, direction: Direction) -> &doorbell::Words {
        let words = self
            .at(Layout::doorbell(direction))
            .cast::<doorbell::Words>();
        // SAFETY: the layout puts these words there, aligned. They live as long as the memory, and
        // are atomics, for which any bytes are valid.
        unsafe { &*words }
    }

    /// The words for reading the memory of the sender of this direction.
    pub(super) fn reach(&self, direction: Direction) -> &reach::Words {
        let words = self.at(Layout::reach(direction)).cast::<reach::Words>();
        // SAFETY: the layout puts these words there, aligned. They live as long as the memory, and
        // are atomics, for which any bytes are valid.
        unsafe { &*words }
    }

    /// The address of an offset within the segment, or of its end.
    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.memory.len());
        // SAFETY: the layout's offsets lie within the memory, whose length was checked against the
        // layout.
        unsafe { self.memory.as_ptr().add(offset) }
    }
}

fn identity(size: Size) -> [u64; 4] {
    let geometry = size.geometry();
    [
        MAGIC,
        geometry.slot_bytes as u64,
        geometry.slots as u64,
        size.bodies_per_slot() as u64,
    ]
}

/// The header of the message in a cell.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) len: u32,
    pub(super) tag: u64,
    pub(super) place: PayloadLocation,
}

/// Where a message's payload is.
#[derive(Debug, Clone, Copy)]
pub(super) enum PayloadLocation {
    Slot,
    /// At this address of the sender's memory.
    Lent(u64),
}

const IN_SLOT: u64 = 0;
const LENT: u64 = 1;

/// The part of a ring that holds a payload.
enum Room {
    /// Part of its cell's header.
    Header,
    /// Its cell's body.
    Body,
    /// The slot that its cell shares with others.
    Slot,
}

impl Room {
    #[inline]
    fn of(len: usize) -> Self {
        if len <= super::INLINE_BYTES {
            Self::Header
        } else if len <= BODY_BYTES {
            Self::Body
        } else {
            Self::Slot
        }
    }
}

/// One ring of a segment.
///
/// Its cells, each with its body and slot, belong alternately to the sender's and the receiver's
/// side, as `ring` decides.
#[derive(Debug)]
pub(super) struct Ring {
    headers: NonNull<u8>,
    bodies: NonNull<u8>,
    slots: NonNull<u8>,
    size: Size,
    released: NonNull<u64>,
    wanted: NonNull<u64>,
    given: NonNull<u64>,
    direction: Direction,
    segment: Arc<Segment>,
}

// SAFETY: the pointers point into the segment, which is `Send` and `Sync` and kept alive by the
// ring. Another thread may use them: what is atomic is accessed as such, and a cell only by the
// side to which it belongs, as the methods that access one require.
unsafe impl Send for Ring {}

impl Ring {
    pub(super) fn new(segment: &Arc<Segment>, direction: Direction) -> Self {
        let pointer = |offset| {
            // SAFETY: `segment.at` returns an address within a mapping, and no mapping begins at 0
            // or wraps around to it.
            unsafe { NonNull::new_unchecked(segment.at(offset)) }
        };
        Self {
            headers: pointer(segment.layout.headers(direction)),
            bodies: pointer(segment.layout.bodies(direction)),
            slots: pointer(segment.layout.slots(direction)),
            size: segment.size(),
            released: pointer(Layout::released(direction)).cast(),
            wanted: pointer(Layout::wanted(direction)).cast(),
            given: pointer(Layout::given(direction)).cast(),
            direction,
            segment: Arc::clone(segment),
        }
    }

    /// Brings the headers, which are still zero, into the cache, so that the first lap is hardly
    /// slower than later ones.
    ///
    /// # Safety
    /// The caller is the sender's side, and has sent nothing yet.
    pub(super) unsafe fn warm_up(&self) {
        let headers = self.headers.as_ptr();
        for cell in 0..layout::cells(self.size.geometry()) {
            // The first word stays as it is: the receiver may poll it already.
            // SAFETY: `headers` points to this many headers of this stride. This is the sender's
            // side before its first message, as this function requires, so all but the first word
            // belongs to it. Any bytes may be written there.
            unsafe {
                headers
                    .add(cell * HEADER_STRIDE + TAG)
                    .write_bytes(0, HEADER_STRIDE - TAG);
            }
        }
    }

    /// Allocates the memory for `len` bytes, at most `slot_bytes`, in the cell's body or, if that
    /// is too short, in its slot. Writing there then raises no signal for lack of memory.
    pub(super) fn provide(&self, cell: Cell, len: usize) -> Result<(), MemoryError> {
        // A piece of a lent message goes into the body, however short it is.
        let start = if len <= BODY_BYTES {
            self.body(cell)
        } else {
            self.slot(cell)
        };
        self.segment.provide(start, len)
    }

    /// The index, among the bodies followed by the slots, of the payload of a message that is not
    /// inline.
    #[inline]
    pub(super) fn room(&self, cell: Cell, len: usize) -> usize {
        let bodies = self.size.bodies();
        if len <= BODY_BYTES {
            cell.index() % bodies
        } else {
            bodies + cell.index() % self.size.geometry().slots
        }
    }

    /// How many messages may be in flight when one of `len` bytes is sent.
    #[inline]
    pub(super) fn depth(&self, len: usize) -> usize {
        match Room::of(len) {
            Room::Header => layout::cells(self.size.geometry()),
            Room::Body => self.size.bodies(),
            Room::Slot => self.size.geometry().slots,
        }
    }

    /// The address of the payload of a message of `len` bytes, at most `slot_bytes`; 64-byte
    /// aligned unless inline.
    #[inline]
    pub(super) fn payload(&self, cell: Cell, len: usize) -> *mut u8 {
        match Room::of(len) {
            // SAFETY: `INLINE` is less than `HEADER_STRIDE`, so the address lies within the cell's
            // header.
            Room::Header => unsafe { self.header(cell).add(INLINE) },
            Room::Body => self.body(cell),
            Room::Slot => self.slot(cell),
        }
    }

    /// The body of a cell, of [`BODY_BYTES`]; cells may share one.
    #[inline]
    pub(super) fn body(&self, cell: Cell) -> *mut u8 {
        let body = cell.index() % self.size.bodies();
        // SAFETY: the ring has `bodies` bodies of this stride from `self.bodies` on, and `body` is
        // less than that, so the address lies within them.
        unsafe { self.bodies.as_ptr().add(body * BODY_STRIDE) }
    }

    /// The slot of a cell, which it shares with others.
    #[inline]
    fn slot(&self, cell: Cell) -> *mut u8 {
        let geometry = self.size.geometry();
        let slot = cell.index() % geometry.slots;
        // SAFETY: the ring has as many slots of this stride from `self.slots` on as its geometry
        // says, and `slot` is less than that, so the address lies within them.
        unsafe { self.slots.as_ptr().add(slot * slot_stride(geometry)) }
    }

    /// Writes the header of a message.
    ///
    /// # Safety
    /// The caller is the sender's side, and the cell belongs to it.
    #[inline]
    pub(super) unsafe fn write_header(&self, cell: Cell, header: Header) {
        let line = self.header(cell);
        let (place, address) = match header.place {
            PayloadLocation::Slot => (IN_SLOT, None),
            PayloadLocation::Lent(address) => (LENT, Some(address)),
        };
        let len_and_place = u64::from(header.len) | place << 32;
        // SAFETY: a header begins at a line of the cache, and all fields lie within it, aligned.
        // This is the sender's side, and the cell belongs to it, as this function requires, so the
        // receiver does not read it yet.
        unsafe {
            line.add(TAG).cast::<u64>().write(header.tag);
            line.add(LEN).cast::<u64>().write(len_and_place);
            if let Some(address) = address {
                line.add(INLINE).cast::<u64>().write(address);
            }
        }
    }

    /// Reads a message's header, once.
    ///
    /// # Safety
    /// The caller is the receiver's side, and the cell belongs to it.
    #[inline]
    pub(super) unsafe fn read_header(&self, cell: Cell) -> Header {
        let line = self.header(cell);
        // SAFETY: a header begins at a line of the cache, and all fields lie within it, aligned.
        // This is the receiver's side, and the cell belongs to it, as this function requires. A
        // peer that violates the protocol may still write to them; volatile reads ensure that the
        // value checked is the value used.
        unsafe {
            let len_and_place = line.add(LEN).cast::<u64>().read_volatile();
            Header {
                len: len_and_place as u32,
                tag: line.add(TAG).cast::<u64>().read_volatile(),
                place: if len_and_place >> 32 == IN_SLOT {
                    PayloadLocation::Slot
                } else {
                    PayloadLocation::Lent(line.add(INLINE).cast::<u64>().read_volatile())
                },
            }
        }
    }

    #[inline]
    fn header(&self, cell: Cell) -> *mut u8 {
        // SAFETY: a cell's index is less than the geometry's number of cells, with which the
        // ring's producer or consumer was made, so its header lies within the ring.
        unsafe { self.headers.as_ptr().add(cell.index() * HEADER_STRIDE) }
    }
}

impl Words for Ring {
    type Word = AtomicU64;

    #[inline]
    fn filled(&self, cell: Cell) -> &AtomicU64 {
        // SAFETY: the header begins with this word, aligned. It lives as long as the segment, and
        // is only accessed as an atomic.
        unsafe { AtomicU64::from_ptr(self.header(cell).add(FILLED).cast()) }
    }

    #[inline]
    fn released(&self) -> &AtomicU64 {
        // SAFETY: the layout puts an aligned word there. It lives as long as the segment, and is
        // only accessed as an atomic.
        unsafe { AtomicU64::from_ptr(self.released.as_ptr()) }
    }

    #[inline]
    fn sender_closed(&self) -> &AtomicU64 {
        self.segment.closed(self.direction, Side::Sender)
    }

    #[inline]
    fn receiver_closed(&self) -> &AtomicU64 {
        self.segment.closed(self.direction, Side::Receiver)
    }
}

impl pieces::Words for Ring {
    #[inline]
    fn wanted(&self) -> &AtomicU64 {
        // SAFETY: the layout puts an aligned word there. It lives as long as the segment, and is
        // only accessed as an atomic.
        unsafe { AtomicU64::from_ptr(self.wanted.as_ptr()) }
    }

    #[inline]
    fn given(&self) -> &AtomicU64 {
        // SAFETY: the layout puts an aligned word there. It lives as long as the segment, and is
        // only accessed as an atomic.
        unsafe { AtomicU64::from_ptr(self.given.as_ptr()) }
    }
}
