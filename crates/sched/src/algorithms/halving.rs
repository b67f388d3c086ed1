//! Halving and doubling. Partners at distance 1, 2, 4, ... exchange halves of their remaining part,
//! until each has one block. Then they exchange their blocks in reverse order.
//!
//! Most of the data goes to the nearest rank. Ranks beyond the largest power of two first send
//! their vector to a proxy, which reduces it into its own, and receive the result from it at the
//! end.
//!
//! Partners exchange one chunk after the other, and receive each before they send the next, so a
//! link holds at most two chunks.

use crate::rounds::{Piece, Rounds, Split};
use crate::shape::Shape;
use crate::step::{Rank, Span, Step};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Halving {
    rank: Rank,
    /// The number of ranks beyond the power of two: the first ranks are their proxies.
    extras: u32,
    part: Part,
    /// How many times exchanges halve a round.
    phases: u32,
    rounds: Rounds,
    full: Cut,
    last: Cut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// A rank beyond the power of two, and its proxy.
    Extra(Rank),
    /// A rank that exchanges, possibly as the proxy of an extra rank.
    Core { extra: Option<Rank> },
}

/// The division of a round: into one block per exchanging rank. A chunk holds `1 << joined` blocks;
/// an exchange of more blocks is done in parts of that many.
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
            extras: shape.size - core,
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
                let step = Step::recv_reduce(self.rank, extra, input, output);
                return Some(step.of_contribution(true));
            }
            Part::Core { extra: Some(extra) } => (Some(extra), place - 1),
            Part::Core { extra: None } => (None, place),
        };
        // The last round has at most as many steps as the others; if it has fewer, it simply ends
        // earlier.
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

    /// Sends a part of what the partner keeps, and receives a part of what this rank keeps.
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
                .of_contribution(phase == 0 && partner >= self.extras)
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
        // A clear bit keeps the lower half, and each phase halves what the previous one left.
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
    /// The number of exchanges in all phases: half of the chunks, a quarter, ..., one; and then one
    /// in each phase in which less than a chunk is left.
    fn exchanges(&self, phases: u32) -> u64 {
        (1 << (phases - self.joined)) - 1 + u64::from(self.joined)
    }

    /// The phase of exchange `index`, and its index within the phase.
    fn locate(&self, index: u64, phases: u32) -> (u32, u32) {
        let long = phases - self.joined;
        let chunks = 1_u64 << long;
        match (chunks - 1).checked_sub(index) {
            None | Some(0) => (long + (index - (chunks - 1)) as u32, 0),
            // Each phase halves what is left.
            Some(left) => {
                let phase = long - left.ilog2() - 1;
                (phase, (index - (chunks - (chunks >> phase))) as u32)
            }
        }
    }
}
