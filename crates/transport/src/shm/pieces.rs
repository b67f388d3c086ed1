//! Transfers a lent message that its receiver cannot read in place: in pieces, through the body of
//! its cell.
//!
//! The receiver asks for a piece by the word `wanted`, which holds the message's number and the
//! first byte. The sender copies the piece into the body of the message's cell, and stores the same
//! value in `given`. One piece is in flight at a time. After the last one, the receiver releases
//! the message as usual.
//!
//! Pairings:
//! - `wanted`: Release in [`ask`], Acquire in [`asked`]: a sender that sees the request overwrites
//!   the body only after the previous piece was read.
//! - `given`: Release in [`give`], Acquire in [`has_come`]: a receiver that sees that a piece was
//!   given sees the piece.
//! - `sender_closed`: Release in [`close`](ring::close), Acquire in [`has_come`]: a receiver that
//!   sees that the sender has closed sees everything that it gave.

use std::sync::atomic::Ordering;

use super::ring::{self, Word};
use crate::{LEND_MOST, LinkError};

/// The words of a ring, including those for pieces; all are zero at first.
pub(super) trait Words: ring::Words {
    fn wanted(&self) -> &Self::Word;
    fn given(&self) -> &Self::Word;
}

/// A piece: the number of its message and its first byte. The words of all pieces differ, and none
/// is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece(u64);

/// The low bits of a piece's word hold the first byte.
const BYTE_BITS: u32 = 20;
const _: () = assert!(LEND_MOST <= 1 << BYTE_BITS);

impl Piece {
    pub(super) fn new(message: u64, byte: usize) -> Self {
        Self(message << BYTE_BITS | byte as u64)
    }

    pub(super) fn message(self) -> u64 {
        self.0 >> BYTE_BITS
    }

    pub(super) fn byte(self) -> usize {
        (self.0 & ((1 << BYTE_BITS) - 1)) as usize
    }
}

/// Asks for a piece, unless it has been asked for; returns whether this call has asked.
pub(super) fn ask(words: &impl Words, piece: Piece) -> bool {
    // Only this side stores the word.
    let is_new = words.wanted().load(Ordering::Relaxed) != piece.0;
    if is_new {
        words.wanted().store(piece.0, Ordering::Release);
    }
    is_new
}

/// Whether the requested piece is in the body.
pub(super) fn has_come(words: &impl Words, piece: Piece) -> Result<bool, LinkError> {
    let is_given = || words.given().load(Ordering::Acquire) == piece.0;
    if is_given() {
        return Ok(true);
    }
    if words.sender_closed().load(Ordering::Acquire) == 0 {
        return Ok(false);
    }
    // The sender may have given it and closed between the two loads.
    if is_given() {
        Ok(true)
    } else {
        Err(LinkError::Closed)
    }
}

/// The requested piece, if there is one.
pub(super) fn asked(words: &impl Words) -> Option<Piece> {
    let wanted = words.wanted().load(Ordering::Acquire);
    // Only this side stores `given`.
    (wanted != words.given().load(Ordering::Relaxed)).then_some(Piece(wanted))
}

/// Announces that the piece is in the body.
pub(super) fn give(words: &impl Words, piece: Piece) {
    words.given().store(piece.0, Ordering::Release);
}

#[cfg(all(test, loom))]
mod model;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_found_again_in_its_word() {
        for message in [1, 2, 77, 1 << 43] {
            for byte in [0, 1, 8192, LEND_MOST - 1] {
                let piece = Piece::new(message, byte);
                assert_eq!((piece.message(), piece.byte()), (message, byte));
                assert_ne!(piece, Piece(0));
            }
        }
    }
}
