//! The accesses to a rank's memory with which a later access may still race.

use std::ops::Range;

use super::clocks::Event;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) by: Event,
    /// The first element.
    pub(super) start: usize,
    /// The number of the access to the rank's memory.
    pub(super) index: u32,
    pub(super) is_write: bool,
    /// The owner waits for it before it ends.
    pub(super) is_awaited: bool,
}

#[derive(Default)]
pub(super) struct Open {
    pieces: Vec<Piece>,
    /// The index of the piece of each element.
    piece_of: Vec<u32>,
}

/// A range of elements with the same accesses.
struct Piece {
    range: Range<usize>,
    accesses: Vec<Access>,
}

impl Open {
    /// Calls `on_race` with the earlier accesses that `access` races with, possibly repeatedly. It
    /// may omit an access that comes before another one to the same element.
    pub(super) fn add(
        &mut self,
        access: Access,
        range: Range<usize>,
        is_before: impl Fn(Event) -> bool,
        mut on_race: impl FnMut(&Access),
    ) {
        self.extend(range.end);
        let mut start = range.start;
        while start < range.end {
            let piece = self.cut(start..range.end);
            start = piece.range.end;
            piece.accesses.retain(|earlier| {
                let is_before = is_before(earlier.by);
                if !is_before && (earlier.is_write || access.is_write) {
                    on_race(earlier);
                }
                !(is_before && access.closes(earlier))
            });
            piece.accesses.push(access);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Access> {
        self.pieces.iter().flat_map(|piece| &piece.accesses)
    }

    fn extend(&mut self, end: usize) {
        let start = self.piece_of.len();
        if start < end {
            self.piece_of.resize(end, self.pieces.len() as u32);
            self.pieces.push(Piece {
                range: start..end,
                accesses: Vec::new(),
            });
        }
    }

    /// The piece that starts where `range` does, and that ends with it or earlier.
    fn cut(&mut self, range: Range<usize>) -> &mut Piece {
        let piece_at_start = |open: &Self| open.piece_of[range.start] as usize;
        for at in [range.start, range.end] {
            let index = piece_at_start(self);
            let piece = &self.pieces[index].range;
            if piece.start < at && at < piece.end {
                self.split(index, at);
            }
        }
        let index = piece_at_start(self);
        &mut self.pieces[index]
    }

    /// Makes the shorter part the new piece, so that each element changes its piece only rarely,
    /// however finely a long piece is divided.
    fn split(&mut self, index: usize, at: usize) {
        let new = self.pieces.len() as u32;
        let piece = &mut self.pieces[index];
        let (left, right) = (piece.range.start..at, at..piece.range.end);
        let (short, long) = if left.len() < right.len() {
            (left, right)
        } else {
            (right, left)
        };
        piece.range = long;
        let accesses = piece.accesses.clone();
        self.piece_of[short.clone()].fill(new);
        self.pieces.push(Piece {
            range: short,
            accesses,
        });
    }
}

impl Access {
    pub(super) fn place(&self) -> (usize, u32) {
        (self.start, self.index)
    }

    /// Whether `earlier`, which comes before this access, can be dropped: whatever comes after this
    /// access also comes after `earlier`, so whatever races with `earlier` later races with this
    /// one as well.
    fn closes(&self, earlier: &Self) -> bool {
        let races_alike = self.is_write || !earlier.is_write;
        // Only accesses that are not awaited are compared with the owner's end.
        let ends_alike = earlier.is_awaited || !self.is_awaited;
        races_alike && ends_alike
    }
}
