//! Recursive doubling: partners at distance 1, 2, 4, ... exchange and reduce whole vectors.
//!
//! Ranks beyond the largest power of two first send their vector to a proxy, which reduces it into
//! its own, and receive the result from it at the end.

use crate::rounds::{Piece, Rounds};
use crate::shape::Shape;
use crate::step::{Rank, Span, Step};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Doubling {
    rank: Rank,
    /// The number of ranks beyond the power of two: the first ranks are their proxies.
    extras: u32,
    part: Part,
    rounds: Rounds,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// A rank beyond the power of two, and its proxy.
    Extra(Rank),
    /// A rank that exchanges, possibly as the proxy of an extra rank.
    Core { extra: Option<Rank>, phases: u32 },
}

impl Doubling {
    pub(crate) fn new(shape: &Shape) -> Self {
        let phases = shape.size.ilog2();
        let core = 1 << phases;
        let (part, steps) = if shape.rank >= core {
            (Part::Extra(shape.rank - core), 2)
        } else if shape.rank < shape.size - core {
            let extra = Some(shape.rank + core);
            (Part::Core { extra, phases }, 2 * phases + 2)
        } else {
            let extra = None;
            (Part::Core { extra, phases }, 2 * phases)
        };
        Self {
            rank: shape.rank,
            extras: shape.size - core,
            part,
            rounds: Rounds {
                total: shape.count,
                piece: shape.chunk,
                steps: u64::from(steps),
            },
        }
    }

    pub(crate) fn step(&self, index: u64) -> Option<Step> {
        let (Piece { offset, len }, place) = self.rounds.locate(index)?;
        let place = place as u32;
        let input = Span::input(offset, len);
        let output = Span::output(offset, len);
        Some(match self.part {
            Part::Extra(proxy) if place == 0 => Step::send(self.rank, proxy, input),
            Part::Extra(proxy) => Step::recv(self.rank, proxy, output),
            Part::Core { extra: None, .. } => self.exchange(place, input, output, true),
            Part::Core {
                extra: Some(extra),
                phases,
            } => {
                if place == 0 {
                    Step::recv_reduce(self.rank, extra, input, output).of_contribution(true)
                } else if place <= 2 * phases {
                    self.exchange(place - 1, input, output, false)
                } else {
                    Step::send(self.rank, extra, output)
                }
            }
        })
    }

    fn exchange(&self, place: u32, input: Span, output: Span, fresh: bool) -> Step {
        let phase = place / 2;
        let partner = self.rank ^ (1 << phase);
        let partial = if fresh && phase == 0 { input } else { output };
        if place.is_multiple_of(2) {
            Step::send(self.rank, partner, partial)
        } else {
            Step::recv_reduce(self.rank, partner, partial, output)
                .of_contribution(phase == 0 && partner >= self.extras)
        }
    }
}
