//! Boxes: memory of the host in which lanes have their counters and slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::layout::{CREDIT, FLAG, HEAD, RECORD};
use crate::{Counter, Error, Record, Shape, Slot};

/// Memory of the host that kernels, carriers and peers reach.
///
/// # Safety
/// The words are always the same ones: they never move, from a multiple of 128 bytes on, and all
/// are 0 at first. All that reaches them uses them as this crate says.
pub unsafe trait Memory: Send + Sync {
    /// All of it.
    fn words(&self) -> &[AtomicU64];
}

/// An outbox or an inbox.
#[derive(Clone)]
pub struct PostBox {
    memory: Arc<dyn Memory>,
    shape: Shape,
}

impl PostBox {
    /// A box in memory that nothing else uses.
    ///
    /// # Errors
    /// The memory is too small.
    pub fn new(memory: Arc<dyn Memory>, shape: Shape) -> Result<Self, Error> {
        let (bytes, needed) = (size_of_val(memory.words()), shape.bytes());
        if bytes < needed {
            return Err(Error::Memory { bytes, needed });
        }
        Ok(Self { memory, shape })
    }

    /// Its shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// A lane's counter.
    pub fn counter(&self, lane: usize, counter: Counter) -> &AtomicU64 {
        self.word_at(self.shape.counter(lane, counter))
    }

    /// Says that a slot is there, to the kernel that polls for its number.
    pub(crate) fn set_flag(&self, slot: Slot) {
        // Release pairs with `acquire_long` in the kernel's `Slots::has_come`: the kernel reads the
        // slot after it.
        self.flag(slot).store(slot.number, Ordering::Release);
    }

    pub(crate) fn flag(&self, slot: Slot) -> &AtomicU64 {
        self.word_at(self.shape.slot(slot) + FLAG)
    }

    /// How many slots of the lane were consumed where this one is from, or comes from.
    pub(crate) fn credit_with(&self, slot: Slot) -> &AtomicU64 {
        self.word_at(self.shape.slot(slot) + CREDIT)
    }

    /// The record of a slot that was published, or has come.
    pub fn record(&self, slot: Slot) -> Record {
        let at = self.shape.slot(slot) + RECORD;
        // Relaxed: who reads it has acquired `Published`, or the slot's flag.
        let word = |place: usize| self.word_at(at + 8 * place).load(Ordering::Relaxed);
        Record {
            call: word(0),
            words: [word(1), word(2)],
            total: word(3),
            start: word(4),
            length: word(5),
        }
    }

    /// Copies what goes to the peer of a slot, with `payload` bytes of it, into the slot of the
    /// same number in an inbox of the same shape.
    ///
    /// # Safety
    /// Until this returns, nothing may write the slot, and nothing may use the other one.
    pub(crate) unsafe fn copy_slot(&self, to: &Self, slot: Slot, payload: usize) {
        assert!(self.shape == to.shape);
        let ((from, bytes), (to, _)) = (self.contents(slot, payload), to.contents(slot, payload));
        // SAFETY: both boxes have the slot within their memory, whose words may be written through
        // shared references; the payload fits. Nothing else writes the source or uses the
        // destination meanwhile: this function requires that.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
    }

    /// What goes to the peer of a slot that was filled: credit, record and payload.
    ///
    /// # Safety
    /// Nothing may write the slot as long as these are borrowed.
    #[cfg(not(all(test, loom)))]
    pub(crate) unsafe fn filled(&self, slot: Slot, payload: usize) -> &[u8] {
        let (start, bytes) = self.contents(slot, payload);
        // SAFETY: `contents` has checked that all of it lies within the box's words, which live as
        // long as the box. Nobody writes them as long as the result is borrowed, which the
        // caller has promised.
        unsafe { std::slice::from_raw_parts(start, bytes) }
    }

    /// Where these go.
    ///
    /// # Safety
    /// Nothing else may use the slot, but for its flag, as long as these are borrowed. A GPU may
    /// read the record, and use it only once the flag is set.
    #[cfg(not(all(test, loom)))]
    #[expect(
        clippy::mut_from_ref,
        reason = "words may be written through shared references"
    )]
    pub(crate) unsafe fn room(&self, slot: Slot, payload: usize) -> &mut [u8] {
        let (start, bytes) = self.contents(slot, payload);
        // SAFETY: `contents` has checked that all of it lies within the box's words, which live as
        // long as the box and, being atomic, may be written through shared references.
        // Nobody else uses them as long as the result is borrowed, which the caller has promised.
        unsafe { std::slice::from_raw_parts_mut(start, bytes) }
    }

    /// Where these are, and their bytes.
    fn contents(&self, slot: Slot, payload: usize) -> (*mut u8, usize) {
        assert!(payload <= self.shape.payload());
        let start = self.bytes(self.shape.slot(slot) + CREDIT);
        (start, HEAD - CREDIT + payload)
    }

    pub(crate) fn word_at(&self, at: usize) -> &AtomicU64 {
        &self.memory.words()[at / size_of::<u64>()]
    }

    pub(crate) fn words_from(&self, at: usize, count: usize) -> &[AtomicU64] {
        &self.memory.words()[at / size_of::<u64>()..][..count]
    }

    /// A pointer to the bytes from `at` on, which reaches all that follow.
    fn bytes(&self, at: usize) -> *mut u8 {
        let words = self.memory.words();
        words[at / size_of::<u64>()..].as_ptr().cast_mut().cast()
    }
}

impl std::fmt::Debug for PostBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostBox")
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}
