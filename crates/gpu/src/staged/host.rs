//! What a stage has in the host's memory, which kernels reach, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use spark_ccl_cuda::PinnedWords;
use spark_ccl_cuda::cudarc::driver::CudaContext;

use super::layout::{LINE, SLOT, SLOTS, STAGE_CTAS, StageLayout};
use crate::Error;
use crate::mailbox::nanoseconds;

/// Where everything starts, in words of 64 bits: `StageControl`, what has expired, bells, answers, slots.
const CONTROL: usize = 0;
const EXPIRED: usize = LINE;
const BELLS: usize = 2 * LINE;
const ANSWERS: usize = BELLS + STAGE_CTAS * SLOTS * LINE;
/// Slots have pages of their own.
const PAYLOAD: usize = (ANSWERS + STAGE_CTAS * SLOTS * LINE).next_multiple_of(512);
const WORDS: usize = PAYLOAD + STAGE_CTAS * SLOTS * SLOT / 8;

/// In `StageControl`.
const ABORT: usize = CONTROL;
const PATIENCE: usize = CONTROL + 1;
const PROGRESS: usize = CONTROL + 2;

/// The patience until [`Stage::set_patience`](super::Stage::set_patience) is called.
const AT_FIRST: Duration = Duration::from_secs(30);

/// What a kernel says of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rung {
    /// [`Call::words`](crate::Call::words) of its operation.
    pub words: [u64; 2],
    /// [`Call::factor`](crate::Call::factor).
    pub factor: u64,
}

#[derive(Debug)]
pub(super) struct HostPart {
    words: PinnedWords,
}

impl HostPart {
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self, Error> {
        let part = Self {
            words: PinnedWords::new(context, WORDS)?,
        };
        part.set_patience(AT_FIRST);
        Ok(part)
    }

    pub(super) const fn bytes() -> usize {
        WORDS * size_of::<u64>()
    }

    /// Where everything is for the kernels of a GPU.
    pub(super) fn layout(&self, context: &CudaContext, state: u64) -> Result<StageLayout, Error> {
        let start = self.words.address_for(context)?;
        let at = |place: usize| start + (place * size_of::<u64>()) as u64;
        Ok(StageLayout {
            slots: at(PAYLOAD),
            bells: at(BELLS),
            answers: at(ANSWERS),
            control: at(CONTROL),
            expired: at(EXPIRED),
            state,
        })
    }

    pub(super) fn abort(&self) {
        // Relaxed: kernels read nothing else that this thread has written before.
        self.word(ABORT).store(1, Ordering::Relaxed);
    }

    pub(super) fn set_patience(&self, patience: Duration) {
        // Relaxed: kernels read nothing else that this thread has written before.
        self.word(PATIENCE)
            .store(nanoseconds(patience), Ordering::Relaxed);
    }

    /// The patience that has ended, if it has.
    pub(super) fn expired(&self) -> Option<Duration> {
        // Relaxed: nothing else is read on its account.
        let ended = self.word(EXPIRED).load(Ordering::Relaxed);
        (ended != 0).then(|| Duration::from_nanos(ended))
    }

    pub(super) fn rung(&self, cta: u64, number: u64) -> Option<Rung> {
        let bell = BELLS + index(cta, number) * LINE;
        // Acquire pairs with the kernel's `release_long` of this word, which it writes last.
        if self.word(bell).load(Ordering::Acquire) != number {
            return None;
        }
        // Relaxed: they were written before, and are written again only after the answer.
        let word = |place: usize| self.word(bell + place).load(Ordering::Relaxed);
        Some(Rung {
            words: [word(1), word(2)],
            factor: word(3),
        })
    }

    pub(super) fn slot(&self, cta: u64, number: u64) -> *mut u8 {
        let place = PAYLOAD + index(cta, number) * (SLOT / size_of::<u64>());
        // The pointer is to all words behind it, too.
        self.words.words()[place..].as_ptr().cast_mut().cast()
    }

    pub(super) fn answer(&self, cta: u64, number: u64) {
        let answer = ANSWERS + index(cta, number) * LINE;
        // Release pairs with the kernel's `acquire_long`, after which it reads the slot.
        self.word(answer).store(number, Ordering::Release);
        // Relaxed: it is a sign of life, and only this thread counts.
        self.word(PROGRESS).fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn answered(&self) -> u64 {
        // Relaxed: nothing else is read on its account.
        self.word(PROGRESS).load(Ordering::Relaxed)
    }

    fn word(&self, place: usize) -> &AtomicU64 {
        &self.words.words()[place]
    }
}

/// Which slot, bell and answer a CTA's piece has.
fn index(cta: u64, number: u64) -> usize {
    cta as usize % STAGE_CTAS * SLOTS + number as usize % SLOTS
}
