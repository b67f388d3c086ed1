//! How a lent message arrives that its receiver cannot read: in pieces, through the body of its cell.
//!
//! The receiver asks for a piece by a word, `wanted`, that says which message and from which byte on.
//! The sender copies it into the body of the message's cell, and answers by the same value in `given`.
//! There is one piece on its way at a time. When the receiver has taken the last one, it releases the
//! message, as always.
//!
//! Pairings:
//! - `wanted`: Release in [`ask`], Acquire in [`asked`]: who sees that a piece is wanted overwrites the
//!   body after the piece before was read.
//! - `given`: Release in [`give`], Acquire in [`has_come`]: who sees that a piece is given sees the piece.
//! - `sender_closed`: Release in [`close`](ring::close), Acquire in [`has_come`]: who sees that the sender
//!   is gone sees all that it gave.

use std::sync::atomic::Ordering;

use super::ring::{self, Word};
use crate::{LEND_MOST, LinkError};

/// The words of a ring, with those about pieces; all zero at first.
pub(super) trait Words: ring::Words {
    fn wanted(&self) -> &Self::Word;
    fn given(&self) -> &Self::Word;
}

/// A piece: of which message, and from which of its bytes on. No two have the same word, and none 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece(u64);

/// The low bits of a piece's word hold the byte.
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

/// Asks for a piece, unless that has been done; whether it was done now.
pub(super) fn ask(words: &impl Words, piece: Piece) -> bool {
    // Nobody else stores this word.
    let is_new = words.wanted().load(Ordering::Relaxed) != piece.0;
    if is_new {
        words.wanted().store(piece.0, Ordering::Release);
    }
    is_new
}

/// Whether the piece that was asked for stands in the body.
pub(super) fn has_come(words: &impl Words, piece: Piece) -> Result<bool, LinkError> {
    let is_given = || words.given().load(Ordering::Acquire) == piece.0;
    if is_given() {
        return Ok(true);
    }
    if words.sender_closed().load(Ordering::Acquire) == 0 {
        return Ok(false);
    }
    // The sender may have given it, and gone, between the two looks.
    if is_given() {
        Ok(true)
    } else {
        Err(LinkError::Closed)
    }
}

/// The piece that is wanted, if one is.
pub(super) fn asked(words: &impl Words) -> Option<Piece> {
    let wanted = words.wanted().load(Ordering::Acquire);
    // Nobody else stores the other word.
    (wanted != words.given().load(Ordering::Relaxed)).then_some(Piece(wanted))
}

/// Says that the piece stands in the body.
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
