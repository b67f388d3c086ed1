//! Halving and doubling: partners at distance 1, 2, 4, ... exchange halves of what they still have,
//! so that each ends with one block; then, backwards, they give each other what they have.
//!
//! The most data goes to the nearest rank. Ranks from the largest power of two on first fold their
//! vector into that of a proxy, and get the result from it at the end.
//!
//! Partners exchange one chunk after the other, each receiving one before it sends the next, so a
//! link holds at most what two of them are.

use crate::rounds::{Piece, Rounds, Split};
use crate::shape::Shape;
use crate::step::{Rank, Span, Step};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Halving {
    rank: Rank,
    part: Part,
    /// Exchanges halve a round this many times.
    phases: u32,
    rounds: Rounds,
    full: Cut,
    last: Cut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Has a proxy.
    Extra(Rank),
    /// Exchanges; also for an extra rank, if it has one.
    Core { extra: Option<Rank> },
}

/// How a round is cut: into a block per rank that exchanges. A chunk has room for `1 << joined`
/// blocks; exchanges of more are cut into so many at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    blocks: Split,
    joined: u32,
}

impl Halving {
    pub(crate) fn new(shape: &Shape) -> Self {
        let phases = shape.size.ilog2();
        let core = 1 << phases;
        let part = if shape.rank >= core {
            Part::Extra(shape.rank - core)
        } else {
            let extra = (shape.rank < shape.size - core).then_some(shape.rank + core);
            Part::Core { extra }
        };
        let piece = u64::from(core) * shape.chunk;
        let cut = |len: u64| {
            let blocks = Split::new(len, core, shape.chunk);
            let fit = shape.chunk / blocks.longest().max(1);
            let joined = fit.ilog2().min(phases);
            Cut { blocks, joined }
        };
        let full = cut(piece);
        let steps = match part {
            Part::Extra(_) => 2,
            Part::Core { extra } => 4 * full.exchanges(phases) + 2 * u64::from(extra.is_some()),
        };
        Self {
            rank: shape.rank,
            part,
            phases,
            rounds: Rounds {
                total: shape.count,
                piece,
                steps,
            },
            full,
            last: cut(shape.count % piece),
        }
    }

    pub(crate) fn step(&self, index: u64) -> Option<Step> {
        let (round, place) = self.rounds.locate(index)?;
        let input = Span::input(round.offset, round.len);
        let output = Span::output(round.offset, round.len);
        let (extra, place) = match self.part {
            Part::Extra(proxy) if place == 0 => return Some(Step::send(self.rank, proxy, input)),
            Part::Extra(proxy) => return Some(Step::recv(self.rank, proxy, output)),
            Part::Core { extra: Some(extra) } if place == 0 => {
                return Some(Step::recv_reduce(self.rank, extra, input, output));
            }
            Part::Core { extra: Some(extra) } => (Some(extra), place - 1),
            Part::Core { extra: None } => (None, place),
        };
        // The last round has no more steps than the others, and is shorter where it has fewer.
        let exchanges = self.cut(round).exchanges(self.phases);
        let (exchange, is_send) = (place / 2, place.is_multiple_of(2));
        if exchange < exchanges {
            Some(self.halve(round, exchange, is_send))
        } else if exchange < 2 * exchanges {
            Some(self.double(round, 2 * exchanges - 1 - exchange, is_send))
        } else if place == 4 * exchanges {
            extra.map(|extra| Step::send(self.rank, extra, output))
        } else {
            None
        }
    }

    /// Sends a part of what the partner keeps, and receives one of what this rank keeps.
    fn halve(&self, round: Piece, exchange: u64, is_send: bool) -> Step {
        let (phase, place) = self.cut(round).locate(exchange, self.phases);
        let partner = self.rank ^ (1 << phase);
        let keeper = if is_send { partner } else { self.rank };
        let Piece { offset, len } = self.kept(round, keeper, phase, place);
        let output = Span::output(offset, len);
        let is_fresh = phase == 0 && self.part == Part::Core { extra: None };
        let partial = if is_fresh {
            Span::input(offset, len)
        } else {
            output
        };
        if is_send {
            Step::send(self.rank, partner, partial)
        } else {
            Step::recv_reduce(self.rank, partner, partial, output)
        }
    }

    /// The same exchange on the way back.
    fn double(&self, round: Piece, exchange: u64, is_send: bool) -> Step {
        let (phase, place) = self.cut(round).locate(exchange, self.phases);
        let partner = self.rank ^ (1 << phase);
        let keeper = if is_send { self.rank } else { partner };
        let Piece { offset, len } = self.kept(round, keeper, phase, place);
        let output = Span::output(offset, len);
        if is_send {
            Step::send(self.rank, partner, output)
        } else {
            Step::recv(self.rank, partner, output)
        }
    }

    /// Part `place` of what `keeper` keeps in `phase`.
    fn kept(&self, round: Piece, keeper: Rank, phase: u32, place: u32) -> Piece {
        let Cut { blocks, joined } = *self.cut(round);
        let left = self.phases - phase - 1;
        // A clear bit keeps the lower half, and each phase halves what the one before left.
        let choices = keeper & ((2 << phase) - 1);
        let first = choices.reverse_bits() >> (u32::BITS - self.phases);
        let first = first + (place << joined);
        let piece = blocks.run(first, first + (1 << joined.min(left)));
        Piece {
            offset: round.offset + piece.offset,
            ..piece
        }
    }

    fn cut(&self, round: Piece) -> &Cut {
        if round.len == self.rounds.piece {
            &self.full
        } else {
            &self.last
        }
    }
}

impl Cut {
    /// Exchanges in all phases: half of the chunks, a quarter, ..., one, and again one in each
    /// phase that has less than a chunk left.
    fn exchanges(&self, phases: u32) -> u64 {
        (1 << (phases - self.joined)) - 1 + u64::from(self.joined)
    }

    /// The phase of exchange `index`, and its place there.
    fn locate(&self, index: u64, phases: u32) -> (u32, u32) {
        let long = phases - self.joined;
        let chunks = 1_u64 << long;
        match (chunks - 1).checked_sub(index) {
            None | Some(0) => (long + (index - (chunks - 1)) as u32, 0),
            // What is left is halved once more in every phase.
            Some(left) => {
                let phase = long - left.ilog2() - 1;
                (phase, (index - (chunks - (chunks >> phase))) as u32)
            }
        }
    }
}
