//! Boxes: memory of the host in which lanes have their counters, and slots or the heads of slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::layout::{CREDIT, FLAG, HEAD, RECORD};
use crate::{Counter, Error, Placement, Record, Shape, Slot};

/// Memory of the host that kernels, carriers and peers reach.
///
/// # Safety
/// The words never move; they begin at a multiple of 128 bytes, and are all 0 at first. Everything
/// that reaches them follows the protocol of this crate.
pub unsafe trait Memory: Send + Sync {
    /// The words of the memory.
    fn words(&self) -> &[AtomicU64];
}

/// An outbox or an inbox.
#[derive(Clone)]
pub struct PostBox {
    memory: Arc<dyn Memory>,
    shape: Shape,
    /// The address of the first slot.
    slots_at: u64,
}

impl PostBox {
    /// A box in memory that nothing else uses. A shape whose slots are [on a
    /// GPU](Placement::Device) needs their address there, and another shape has none; these are all
    /// 0 at first, too.
    ///
    /// # Errors
    /// The memory is too small, or there is an address of slots where the shape has none, or none
    /// where it has some.
    pub fn new(
        memory: Arc<dyn Memory>,
        shape: Shape,
        on_device: Option<u64>,
    ) -> Result<Self, Error> {
        let (bytes, needed) = (size_of_val(memory.words()), shape.bytes());
        if bytes < needed {
            return Err(Error::Memory { bytes, needed });
        }
        let placement = shape.placement();
        if on_device.is_some() != (placement == Placement::Device) {
            return Err(Error::Placement {
                placement,
                on_device,
            });
        }
        let within = start_of(&*memory) + shape.slots() as u64;
        Ok(Self {
            memory,
            shape,
            slots_at: on_device.unwrap_or(within),
        })
    }

    /// The address of the box.
    pub fn start(&self) -> u64 {
        start_of(&*self.memory)
    }

    /// The address of its first slot.
    pub fn slots_at(&self) -> u64 {
        self.slots_at
    }

    /// Its shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// A lane's counter.
    pub fn counter(&self, lane: usize, counter: Counter) -> &AtomicU64 {
        self.word_at(self.shape.counter(lane, counter))
    }

    /// Tells the kernel that polls for the slot's number that the slot is there.
    pub(crate) fn set_flag(&self, slot: Slot) {
        // Release pairs with `acquire_long` in the kernel's `Slots::has_come`: the kernel reads the
        // slot after it.
        self.flag(slot).store(slot.number, Ordering::Release);
    }

    pub(crate) fn flag(&self, slot: Slot) -> &AtomicU64 {
        self.word_at(self.shape.slot(slot) + FLAG)
    }

    /// The credit that goes with a slot: how many slots of the lane its sender has consumed.
    pub(crate) fn credit_with(&self, slot: Slot) -> &AtomicU64 {
        self.word_at(self.shape.slot(slot) + CREDIT)
    }

    /// The record of a slot that was published, or has come.
    pub fn record(&self, slot: Slot) -> Record {
        let at = self.shape.slot(slot) + RECORD;
        // Relaxed: the reader has acquired `Published`, or the slot's flag.
        let word = |place: usize| self.word_at(at + 8 * place).load(Ordering::Relaxed);
        Record {
            call: word(0),
            words: [word(1), word(2)],
            total: word(3),
            start: word(4),
            length: word(5),
        }
    }

    /// Copies credit, record and `payload` bytes of a slot into the slot of the same number in an
    /// inbox of the same shape.
    ///
    /// # Safety
    /// Until this returns, nothing may write the source slot, and nothing may use the destination
    /// slot.
    pub(crate) unsafe fn copy_slot(&self, to: &Self, slot: Slot, payload: usize) {
        assert!(self.shape == to.shape);
        let ((from, bytes), (to, _)) = (self.contents(slot, payload), to.contents(slot, payload));
        // SAFETY: `contents` has checked lane and payload, so credit, record and payload lie within
        // each box's words, of which `PostBox::new` has found enough, and which both borrows keep.
        // The words are atomics, so they may be written through
        // shared references. The caller lets nothing write the source, or use the target, until
        // this returns. Two boxes do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
    }

    /// The bytes of a filled slot that go to the peer: credit, record and payload.
    ///
    /// # Safety
    /// Nothing may write the slot as long as these are borrowed.
    #[cfg(not(all(test, loom)))]
    pub(crate) unsafe fn filled(&self, slot: Slot, payload: usize) -> &[u8] {
        let (start, bytes) = self.contents(slot, payload);
        // SAFETY: `contents` has checked lane and payload, so all of it lies within the box's
        // words, of which `PostBox::new` has found enough, and which live as long as the box. The
        // caller lets nothing write them while the result is borrowed.
        unsafe { std::slice::from_raw_parts(start, bytes) }
    }

    /// The room for credit, record and payload of a slot that comes from the peer.
    ///
    /// # Safety
    /// As long as the result is borrowed, nothing else may use the slot, except for its flag. A GPU
    /// may load the record, but use it only once the flag is set.
    #[cfg(not(all(test, loom)))]
    #[expect(
        clippy::mut_from_ref,
        reason = "words may be written through shared references"
    )]
    pub(crate) unsafe fn room(&self, slot: Slot, payload: usize) -> &mut [u8] {
        let (start, bytes) = self.contents(slot, payload);
        // SAFETY: `contents` has checked lane and payload, so all of it lies within the box's
        // words, of which `PostBox::new` has found enough. They live as long as the box and, being
        // atomic, may be written through shared references. While the
        // result is borrowed, the caller lets nothing else use them; a GPU that loads the record
        // loads it again after the flag.
        unsafe { std::slice::from_raw_parts_mut(start, bytes) }
    }

    /// Where credit, record and payload of a slot begin, and how many bytes they have.
    fn contents(&self, slot: Slot, payload: usize) -> (*mut u8, usize) {
        assert!(payload <= self.shape.payload() && self.shape.placement() == Placement::Host);
        assert!(slot.lane < self.shape.lanes());
        let start = self.bytes(self.shape.slot(slot) + CREDIT);
        (start, HEAD - CREDIT + payload)
    }

    pub(crate) fn word_at(&self, at: usize) -> &AtomicU64 {
        &self.memory.words()[at / size_of::<u64>()]
    }

    pub(crate) fn words_from(&self, at: usize, count: usize) -> &[AtomicU64] {
        &self.memory.words()[at / size_of::<u64>()..][..count]
    }

    /// A pointer to the byte at `at`, from which all later bytes may be reached.
    fn bytes(&self, at: usize) -> *mut u8 {
        let words = self.memory.words();
        words[at / size_of::<u64>()..].as_ptr().cast_mut().cast()
    }
}

fn start_of(memory: &dyn Memory) -> u64 {
    memory.words().as_ptr().expose_provenance() as u64
}

impl std::fmt::Debug for PostBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostBox")
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}
