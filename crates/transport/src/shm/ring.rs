//! The lock-free protocol of one ring, apart from where its words and cells are.
//!
//! Messages are numbered from 1; message `n` goes into cell `(n - 1) % cells`. The sender fills the
//! cell, then stores `n` into the cell's `filled` word; the receiver reads the cell once it sees
//! `n` there, then stores `n` into `released`, and the cell may be filled again.
//!
//! What a message needs beyond its cell is there for the last few messages only: then at most so
//! many may be on their way, with it, and that is its depth.
//!
//! Pairings:
//! - `filled`: Release in [`Producer::publish`], Acquire in [`Consumer::poll`]: who sees the
//!   number, sees the message.
//! - `released`: Release in [`Consumer::release`], Acquire in [`Producer::poll`] and
//!   [`has_returned`]: who sees that a cell is free, or lent memory has returned, overwrites
//!   it after its message was read.
//! - `sender_closed`: Release in [`close`], Acquire in [`Consumer::poll`]: who sees that the sender
//!   is gone, sees all that it published.
//! - `sender_closed` again, for memory that is lent instead of copied into a slot, and for registered memory of
//!   the sender's that the receiver reads: the Release fence in [`close`] and the Acquire fence in
//!   [`was_lent`]: who has read anything that was written after the sender closed sees that it closed.
//! - `receiver_closed`: Release in [`close`], Acquire in [`has_returned`]: who sees that the
//!   receiver is gone, sees all that it released.

#[cfg(all(test, loom))]
use loom::sync::atomic::fence;
use std::sync::atomic::Ordering;
#[cfg(not(all(test, loom)))]
use std::sync::atomic::fence;

use crate::LinkError;

/// A word that both sides of a ring see.
pub(super) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
}

impl Word for std::sync::atomic::AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
}

/// The words of a ring, all zero at first.
pub(super) trait Words {
    type Word: Word;

    fn filled(&self, cell: Cell) -> &Self::Word;
    fn released(&self) -> &Self::Word;
    fn sender_closed(&self) -> &Self::Word;
    fn receiver_closed(&self) -> &Self::Word;
}

/// The index of a cell; less than the number of cells that its producer or consumer was made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cell(usize);

impl Cell {
    #[inline]
    pub(super) fn index(self) -> usize {
        self.0
    }
}

/// Says that an end of a direction is gone. A sender says so before anyone writes to memory that it
/// has lent.
pub(super) fn close(word: &impl Word) {
    word.store(1, Ordering::Release);
    // The store's own order holds back nothing that is written after it.
    fence(Ordering::Release);
}

/// Whether the receiver is done with the message of that number.
pub(super) fn has_returned(words: &impl Words, number: u64) -> Result<bool, LinkError> {
    let is_released = || words.released().load(Ordering::Acquire) >= number;
    if !is_released() && words.receiver_closed().load(Ordering::Acquire) == 0 {
        return Ok(false);
    }
    // The receiver may have released it, and gone, between the two looks.
    if is_released() {
        Ok(true)
    } else {
        Err(LinkError::Closed)
    }
}

/// Whether what was read from lent or registered memory until now is what the sender meant.
pub(super) fn was_lent(sender_closed: &impl Word) -> bool {
    fence(Ordering::Acquire);
    sender_closed.load(Ordering::Relaxed) == 0
}

/// The sender's side of a ring.
#[derive(Debug)]
pub(super) struct Producer {
    next: Cursor,
    /// Messages up to this number are known to be read.
    released: u64,
}

impl Producer {
    pub(super) fn new(cells: usize) -> Self {
        Self {
            next: Cursor::new(cells),
            released: 0,
        }
    }

    /// The cell for the next message, if one of this depth (at most the number of cells) may go.
    #[inline]
    pub(super) fn poll(
        &mut self,
        words: &impl Words,
        depth: usize,
    ) -> Result<Option<Cell>, LinkError> {
        let depth = depth as u64;
        if self.next.number - self.released <= depth || self.refresh(words, depth)? {
            Ok(Some(self.next.cell))
        } else {
            Ok(None)
        }
    }

    /// Hands the cell that [`poll`](Self::poll) answered, now filled, to the receiver; the
    /// message's number.
    #[inline]
    pub(super) fn publish(&mut self, words: &impl Words) -> u64 {
        let number = self.next.number;
        words
            .filled(self.next.cell)
            .store(number, Ordering::Release);
        self.next.advance();
        number
    }

    fn refresh(&mut self, words: &impl Words, depth: u64) -> Result<bool, LinkError> {
        let released = words.released().load(Ordering::Acquire);
        let sent = self.next.number - 1;
        if !(self.released..=sent).contains(&released) {
            return Err(LinkError::Protocol(format!(
                "of {sent} messages, the peer says it has read {released}, and before {}",
                self.released
            )));
        }
        self.released = released;
        if sent - released < depth {
            return Ok(true);
        }
        if words.receiver_closed().load(Ordering::Relaxed) != 0 {
            return Err(LinkError::Closed);
        }
        Ok(false)
    }
}

/// The receiver's side of a ring.
#[derive(Debug)]
pub(super) struct Consumer {
    next: Cursor,
}

impl Consumer {
    pub(super) fn new(cells: usize) -> Self {
        Self {
            next: Cursor::new(cells),
        }
    }

    /// The cell of the next message, if it is there.
    #[inline]
    pub(super) fn poll(&mut self, words: &impl Words) -> Result<Option<Cell>, LinkError> {
        if self.is_filled(words) {
            return Ok(Some(self.next.cell));
        }
        if words.sender_closed().load(Ordering::Acquire) == 0 {
            return Ok(None);
        }
        // The sender may have published between the two looks.
        if self.is_filled(words) {
            Ok(Some(self.next.cell))
        } else {
            Err(LinkError::Closed)
        }
    }

    /// The number of the next message.
    #[inline]
    pub(super) fn number(&self) -> u64 {
        self.next.number
    }

    /// Gives the cell that [`poll`](Self::poll) answered, now read, back to the sender.
    #[inline]
    pub(super) fn release(&mut self, words: &impl Words) {
        words.released().store(self.next.number, Ordering::Release);
        self.next.advance();
    }

    #[inline]
    fn is_filled(&self, words: &impl Words) -> bool {
        words.filled(self.next.cell).load(Ordering::Acquire) == self.next.number
    }
}

/// The next message's number, and its cell.
#[derive(Debug)]
struct Cursor {
    cells: usize,
    cell: Cell,
    number: u64,
}

impl Cursor {
    fn new(cells: usize) -> Self {
        debug_assert!(cells > 0);
        Self {
            cells,
            cell: Cell(0),
            number: 1,
        }
    }

    #[inline]
    fn advance(&mut self) {
        self.number += 1;
        self.cell.0 += 1;
        if self.cell.0 == self.cells {
            self.cell.0 = 0;
        }
    }
}

#[cfg(all(test, loom))]
mod model;
#[cfg(test)]
mod tests;
