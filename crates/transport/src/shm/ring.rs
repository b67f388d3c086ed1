//! The lock-free protocol of one ring, independent of where its words and cells are.
//!
//! Messages are numbered from 1; message `n` goes into cell `(n - 1) % cells`. The sender fills the
//! cell and then stores `n` in the cell's `filled` word. The receiver reads the cell once it sees
//! `n` there, and then stores `n` in `released`; the cell may now be filled again.
//!
//! A body or slot exists only for the last few messages. The depth of a message is how many
//! messages, including itself, may be in flight when it is sent.
//!
//! Pairings:
//! - `filled`: Release in [`Producer::publish`], Acquire in [`Consumer::poll`]: a receiver that
//!   sees the number sees the message. On x86, Release does not order stores past the caches, which
//!   fill the slots of a far peer. The job that makes them ends with a store fence
//!   (`spark_ccl_compute::Compute::start`). The fence comes before the publishing in the same
//!   thread, or is in a helper that the thread has waited for.
//! - `released`: Release in [`Consumer::release`], Acquire in [`Producer::poll`] and
//!   [`has_returned`]: a sender that sees that a cell is free, or that lent memory has returned,
//!   overwrites it only after its message was read.
//! - `sender_closed`: Release in [`close`], Acquire in [`Consumer::poll`]: a receiver that sees
//!   that the sender has closed sees everything that it published.
//! - `sender_closed` again, for memory of the sender that the receiver reads where it lies (lent or
//!   registered): the Release fence in [`close`] and the Acquire fence in [`was_lent`]. If the
//!   receiver has read a byte that was written after the sender closed, it sees that the sender has
//!   closed. What a helper has read has another Acquire fence, in the helper, before the receiver
//!   learns of it (`put_back` in `crates/compute/src/helpers/mailbox.rs`).
//! - `receiver_closed`: Release in [`close`], Acquire in [`has_returned`]: a sender that sees that
//!   the receiver has closed sees everything that it released. In `Producer::refresh`, which only
//!   says that nobody reads any more, relaxed is enough.

use std::sync::atomic::Ordering;
#[cfg(not(all(test, loom)))]
use std::sync::atomic::fence;

#[cfg(all(test, loom))]
use loom::sync::atomic::fence;

use crate::LinkError;

/// A word that both sides of a ring share.
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

/// The words of a ring; all are zero at first.
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

/// Announces that an end of a direction has closed. A sender calls this before memory that it has
/// lent is overwritten.
pub(super) fn close(word: &impl Word) {
    word.store(1, Ordering::Release);
    // A Release store does not order the writes that follow it.
    fence(Ordering::Release);
}

/// Whether the receiver has finished with this message.
pub(super) fn has_returned(words: &impl Words, number: u64) -> Result<bool, LinkError> {
    let is_released = || words.released().load(Ordering::Acquire) >= number;
    if !is_released() && words.receiver_closed().load(Ordering::Acquire) == 0 {
        return Ok(false);
    }
    // The receiver may have released it and closed between the two loads.
    if is_released() {
        Ok(true)
    } else {
        Err(LinkError::Closed)
    }
}

/// Whether what was read from lent or registered memory until now is valid.
pub(super) fn was_lent(sender_closed: &impl Word) -> bool {
    fence(Ordering::Acquire);
    sender_closed.load(Ordering::Relaxed) == 0
}

/// The sender's side of a ring.
#[derive(Debug)]
pub(super) struct Producer {
    next: Cursor,
    /// Messages up to this number are known to have been read.
    released: u64,
}

impl Producer {
    pub(super) fn new(cells: usize) -> Self {
        Self {
            next: Cursor::new(cells),
            released: 0,
        }
    }

    /// The cell for the next message, if a message of this depth (at most the number of cells) may
    /// be sent.
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

    /// Passes the cell that [`poll`](Self::poll) returned, now filled, to the receiver; returns the
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

    /// Loads how far the peer has read. Returns whether that is news: then the peer has written the
    /// line since it was last loaded here.
    pub(super) fn look(&mut self, words: &impl Words) -> Result<bool, LinkError> {
        let released = words.released().load(Ordering::Acquire);
        let sent = self.next.number - 1;
        if !(self.released..=sent).contains(&released) {
            return Err(LinkError::Protocol(format!(
                "of {sent} messages, the peer says it has read {released}, and before {}",
                self.released
            )));
        }
        let is_news = released != self.released;
        self.released = released;
        Ok(is_news)
    }

    fn refresh(&mut self, words: &impl Words, depth: u64) -> Result<bool, LinkError> {
        self.look(words)?;
        if self.next.number - 1 - self.released < depth {
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

    /// The cell of the next message, if it has arrived.
    #[inline]
    pub(super) fn poll(&mut self, words: &impl Words) -> Result<Option<Cell>, LinkError> {
        if self.is_filled(words) {
            return Ok(Some(self.next.cell));
        }
        if words.sender_closed().load(Ordering::Acquire) == 0 {
            return Ok(None);
        }
        // The sender may have published between the two loads.
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

    /// Returns the cell that [`poll`](Self::poll) returned, now read, to the sender.
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
