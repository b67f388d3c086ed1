//! A stage's memory of the host, which kernels reach, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use spark_ccl_cuda::PinnedWords;
use spark_ccl_cuda::cudarc::driver::CudaContext;

use super::cut::slot_of_messages;
use super::layout::{LINE, Manner, OPERATIONS, ROUNDS, SLOT, SLOTS, STAGE_CTAS, StageLayout};
use crate::mailbox::nanoseconds;
use crate::{Error, MessageDirection};

/// Where the parts start, in words of 64 bits: `StageControl`, the patience that has expired,
/// bells; then answers, and slots.
const CONTROL: usize = 0;
const EXPIRED: usize = LINE;
const BELLS: usize = 2 * LINE;
/// The words of a page: slots have pages of their own.
const PAGE: usize = 512;

/// The words of `StageControl`.
const ABORT: usize = CONTROL;
const PATIENCE: usize = CONTROL + 1;
const PROGRESS: usize = CONTROL + 2;
const RELEASE: usize = CONTROL + 3;

/// The patience until [`Stage::set_patience`](super::Stage::set_patience) is called.
const AT_FIRST: Duration = Duration::from_secs(30);

/// A sequence of pieces: of a CTA of operations, or of the messages to a rank, or from a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lane(usize);

impl Lane {
    /// The lane of a CTA of operations.
    pub fn of_cta(cta: u64) -> Self {
        Self(cta as usize % STAGE_CTAS)
    }

    /// The lane of messages to a rank, or from it.
    pub fn of_messages(way: MessageDirection, peer: usize) -> Self {
        Self(STAGE_CTAS + 2 * peer + way as usize)
    }

    /// How many lanes there are.
    fn all(ranks: usize) -> usize {
        STAGE_CTAS + 2 * ranks
    }

    /// The lane's number among the lanes of messages, as the kernel counts them.
    pub(super) fn in_kernel(self) -> u32 {
        (self.0 - STAGE_CTAS) as u32
    }

    /// The index of the slot, bell and answer of its piece `number`.
    fn index(self, number: u64) -> usize {
        self.0 * SLOTS + number as usize % SLOTS
    }
}

/// A kernel's report on a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rung {
    /// The words of the piece's [operation](crate::Call::words) or
    /// [message](crate::Message::words).
    pub words: [u64; 2],
    /// [`Call::factor`](crate::Call::factor); 0 for messages.
    pub factor: u64,
    /// The operation's buffers, if the host works on them directly; otherwise the piece is in its
    /// slot.
    pub buffers: Option<Buffers>,
}

/// Where the buffers of an operation are for the kernels, as in [`Call`](crate::Call).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffers {
    /// Where the input starts.
    pub input: u64,
    /// Where the output starts.
    pub output: u64,
    /// Whether the shorter buffer is this rank's block of the other one.
    pub in_place: bool,
}

#[derive(Debug)]
pub(super) struct HostPart {
    words: PinnedWords,
    ranks: usize,
}

impl HostPart {
    pub(super) fn new(context: &Arc<CudaContext>, ranks: usize) -> Result<Self, Error> {
        let of_messages = 2 * ranks * SLOTS * slot_of_messages(ranks);
        let words = payload(ranks) + (STAGE_CTAS * SLOTS * SLOT + of_messages) / size_of::<u64>();
        let part = Self {
            words: PinnedWords::new(context, words)?,
            ranks,
        };
        part.set_patience(AT_FIRST);
        Ok(part)
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.words.words())
    }

    /// The bytes, in device memory, of `failed`, and of the counts of operations and of pieces.
    pub(super) fn state_bytes(ranks: usize) -> usize {
        ROUNDS as usize + Lane::all(ranks) * size_of::<u64>()
    }

    /// Where the lanes of operations and of messages are for the kernels of a GPU.
    pub(super) fn layout(
        &self,
        context: &CudaContext,
        state: u64,
    ) -> Result<[StageLayout; 2], Error> {
        let start = self.words.address_for(context)?;
        let at = |place: usize| start + (place * size_of::<u64>()) as u64;
        let of_messages = Lane::of_messages(MessageDirection::Receive, 0);
        Ok([Lane(0), of_messages].map(|first| StageLayout {
            slots: at(self.place_of_slot(first.index(0))),
            slot: self.slot_bytes(first) as u64,
            bells: at(BELLS + first.index(0) * LINE),
            answers: at(answers(self.ranks) + first.index(0) * LINE),
            control: at(CONTROL),
            expired: at(EXPIRED),
            rounds: state + ROUNDS + (first.0 * size_of::<u64>()) as u64,
            operations: state + OPERATIONS,
            failed: state,
        }))
    }

    pub(super) fn abort(&self) {
        // Relaxed: kernels read nothing else that this thread has written before.
        self.word(ABORT).store(1, Ordering::Relaxed);
    }

    pub(super) fn release(&self) {
        // Release pairs with the kernel's `acquire_long`: the host's writes to buffers, which this
        // thread has seen, come before it.
        self.word(RELEASE).store(1, Ordering::Release);
    }

    pub(super) fn set_patience(&self, patience: Duration) {
        // Relaxed: kernels read nothing else that this thread has written before.
        self.word(PATIENCE)
            .store(nanoseconds(patience), Ordering::Relaxed);
    }

    /// The patience that has run out, if it has.
    pub(super) fn expired(&self) -> Option<Duration> {
        // Relaxed: no other read depends on it.
        let ended = self.word(EXPIRED).load(Ordering::Relaxed);
        (ended != 0).then(|| Duration::from_nanos(ended))
    }

    pub(super) fn rung(&self, lane: Lane, number: u64) -> Option<Rung> {
        let bell = BELLS + lane.index(number) * LINE;
        // Acquire pairs with the kernel's `release_long` of this word, which it writes last.
        if self.word(bell).load(Ordering::Acquire) != number {
            return None;
        }
        // Relaxed: they were written before, and are written again only after the answer.
        let word = |place: usize| self.word(bell + place).load(Ordering::Relaxed);
        let manner = word(4);
        let is_on_buffers = manner != Manner::InSlots as u64;
        Some(Rung {
            words: [word(1), word(2)],
            factor: word(3),
            buffers: is_on_buffers.then(|| Buffers {
                input: word(5),
                output: word(6),
                in_place: manner == Manner::InPlace as u64,
            }),
        })
    }

    pub(super) fn slot(&self, lane: Lane, number: u64) -> *mut u8 {
        let place = self.place_of_slot(lane.index(number));
        self.bytes_from(place)
    }

    /// Where all slots begin, and how many bytes they have.
    pub(super) fn slots(&self) -> (*mut u8, usize) {
        let place = payload(self.ranks);
        let bytes = self.bytes() - place * size_of::<u64>();
        (self.bytes_from(place), bytes)
    }

    /// A pointer to the words from `place` on, which reaches all that follow.
    fn bytes_from(&self, place: usize) -> *mut u8 {
        self.words.words()[place..].as_ptr().cast_mut().cast()
    }

    pub(super) fn answer(&self, lane: Lane, number: u64) {
        let answer = answers(self.ranks) + lane.index(number) * LINE;
        // Release pairs with the kernel's `acquire_long`, after which it reads the slot.
        self.word(answer).store(number, Ordering::Release);
        // Relaxed: it is a sign of life, and only this thread counts.
        self.word(PROGRESS).fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn answered(&self) -> u64 {
        // Relaxed: no other read depends on it.
        self.word(PROGRESS).load(Ordering::Relaxed)
    }

    fn word(&self, place: usize) -> &AtomicU64 {
        &self.words.words()[place]
    }

    fn slot_bytes(&self, lane: Lane) -> usize {
        if lane.0 < STAGE_CTAS {
            SLOT
        } else {
            slot_of_messages(self.ranks)
        }
    }

    /// Where a slot is, in words: those of operations come first.
    fn place_of_slot(&self, index: usize) -> usize {
        let of_operations = index.min(STAGE_CTAS * SLOTS);
        let of_messages = index - of_operations;
        let bytes = of_operations * SLOT + of_messages * slot_of_messages(self.ranks);
        payload(self.ranks) + bytes / size_of::<u64>()
    }
}

/// Where answers and slots start, in words.
fn answers(ranks: usize) -> usize {
    BELLS + Lane::all(ranks) * SLOTS * LINE
}

fn payload(ranks: usize) -> usize {
    (answers(ranks) + Lane::all(ranks) * SLOTS * LINE).next_multiple_of(PAGE)
}
