//! The inputs of a checked run, and the expected contents of the buffers afterwards.
//!
//! Knows what collectives do with data. Must not know in which memory the buffers are: only
//! `in_memory` touches any.

pub(crate) mod in_memory;

use std::ops::Range;

use spark_ccl::Element;

use crate::call::collective::Collective;
use crate::call::invocation::{BufferMode, Invocation};
use crate::exact::{Format, PERIOD, Reduction, from_bits, moved, to_bits};

/// The "rank" whose data fills receive buffers, and must still be there where nothing may be
/// written.
const BEFORE: usize = 1 << 23;

/// A checked run of a rank's call.
#[derive(Debug)]
pub(crate) struct Verification<'a, T> {
    call: &'a Invocation<T>,
    mode: BufferMode,
    seed: u64,
    format: Format,
    reduction: Reduction,
    base: usize,
}

/// A part of a buffer, and the values that belong there. These repeat after `PERIOD` elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The elements of the buffer.
    pub(crate) range: Range<usize>,
    values: Values,
    /// The index of the first element among the values.
    first: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Values {
    /// This rank's contribution.
    Input,
    /// The reduction of all inputs.
    Reduced,
    /// The data of a rank, for collectives that only move data.
    Of(usize),
}

/// The buffers that a rank writes before a checked run, in this order.
#[derive(Debug)]
pub(crate) struct Inputs {
    /// Written to the receive buffer.
    pub(crate) recv: Vec<Piece>,
    /// Written to the send buffer.
    pub(crate) send: Option<Piece>,
}

impl<'a, T: Element> Verification<'a, T> {
    /// `seed` differs between checks, so that the results of an earlier check are wrong.
    pub(crate) fn new(call: &'a Invocation<T>, mode: BufferMode, seed: u64, base: usize) -> Self {
        let reduction = Reduction::new(T::DTYPE, call.op, call.ranks, seed);
        Self {
            call,
            mode,
            seed,
            format: Format::of(T::DTYPE),
            reduction,
            base,
        }
    }

    /// This rank's input, and a known pattern everywhere else.
    pub(crate) fn inputs(&self) -> Inputs {
        let whole = self.call.recv_range(self.base, 0, self.mode);
        let mut recv = vec![piece(whole, Values::Of(BEFORE), 0)];
        let mut send = None;
        match self.mode {
            BufferMode::OutOfPlace => {
                send = Some(piece(self.call.send_range(self.base, 0), Values::Input, 0));
            }
            BufferMode::InPlace => {
                recv.push(self.received(self.in_place_input(), Values::Input, 0));
            }
        }
        Inputs { recv, send }
    }

    /// The expected contents of this rank's receive buffer afterwards.
    pub(crate) fn results(&self) -> Vec<Piece> {
        let result = self.result();
        if !self.has_result() {
            return self.untouched(result);
        }
        let call = self.call;
        let own = call.own_block().start;
        let whole = |values, first| vec![self.received(result.clone(), values, first)];
        match call.collective {
            Collective::AllReduce | Collective::Reduce => whole(Values::Reduced, 0),
            Collective::ReduceScatter => whole(Values::Reduced, own),
            Collective::Broadcast => whole(Values::Of(call.root), 0),
            Collective::Scatter => whole(Values::Of(call.root), own),
            Collective::SendRecv => whole(Values::Of(call.previous()), 0),
            Collective::AllGather | Collective::Gather | Collective::Hypercube => self.blocks(0),
            Collective::AllToAll => self.blocks(own),
            Collective::AllToAllV => self.uneven_blocks(),
        }
    }

    /// The first values of a piece, at most `PERIOD`.
    pub(crate) fn pattern(&self, piece: &Piece) -> Vec<T> {
        let value = |index: usize| match piece.values {
            Values::Input if self.call.collective.operation().reduces() => {
                self.reduction.input(self.call.rank, index)
            }
            Values::Input => moved(self.format, self.seed, self.call.rank, index),
            Values::Reduced => self.reduction.expected(index),
            Values::Of(source) => moved(self.format, self.seed, source, index),
        };
        (piece.first..piece.first + piece.range.len().min(PERIOD))
            .map(|index| from_bits(value(index)))
            .collect()
    }

    /// The most by which the bits of a result may differ from the pattern.
    pub(crate) fn tolerance(&self, piece: &Piece) -> u64 {
        match piece.values {
            Values::Reduced => self.reduction.tolerance(),
            _ => 0,
        }
    }

    /// The index of element `index` of the result in the receive buffer; `None` if the result is
    /// shorter.
    pub(crate) fn result_index(&self, index: usize) -> Option<usize> {
        let result = self.result();
        (index < result.len()).then_some(self.base + result.start + index)
    }

    /// A wrong value for an element.
    pub(crate) fn spoiled(&self, element: &T) -> T {
        // Flips the second highest bit, which exceeds any tolerance.
        from_bits(to_bits(element) ^ 1 << (self.format.bits() - 2))
    }

    /// The part of the receive range that is checked.
    fn result(&self) -> Range<usize> {
        match (self.mode, self.call.collective) {
            // In place, only the own block is defined afterwards.
            (BufferMode::InPlace, Collective::ReduceScatter | Collective::Scatter) => {
                self.call.own_block()
            }
            _ => 0..self.call.layout.recv,
        }
    }

    fn has_result(&self) -> bool {
        !matches!(
            self.call.collective,
            Collective::Reduce | Collective::Gather
        ) || self.call.rank == self.call.root
    }

    /// The expected buffer of a rank without a result. In place, it contains the rank's input.
    fn untouched(&self, whole: Range<usize>) -> Vec<Piece> {
        let input = match self.mode {
            BufferMode::InPlace => self.in_place_input(),
            BufferMode::OutOfPlace => 0..0,
        };
        let before = |range: Range<usize>| {
            let first = range.start;
            self.received(range, Values::Of(BEFORE), first)
        };
        vec![
            before(0..input.start),
            self.received(input.clone(), Values::Input, 0),
            before(input.end..whole.end),
        ]
    }

    /// The range of the input in the buffer of an in-place call; empty on ranks without an input.
    fn in_place_input(&self) -> Range<usize> {
        match self.call.collective {
            Collective::AllGather | Collective::Gather | Collective::Hypercube => {
                self.call.own_block()
            }
            Collective::Broadcast | Collective::Scatter if self.call.rank != self.call.root => 0..0,
            _ => 0..self.call.layout.send,
        }
    }

    /// One block of each rank: the part of that rank's data that starts at `first`.
    fn blocks(&self, first: usize) -> Vec<Piece> {
        let count = self.call.layout.count;
        (0..self.call.ranks)
            .map(|source| {
                let start = source * count;
                self.received(start..start + count, Values::Of(source), first)
            })
            .collect()
    }

    fn uneven_blocks(&self) -> Vec<Piece> {
        let side = self.call.uneven_receives();
        let blocks = side.begins().iter().zip(side.counts()).enumerate();
        blocks
            .map(|(source, (&start, &len))| {
                let first = self.call.uneven_offset(source);
                self.received(start..start + len, Values::Of(source), first)
            })
            .collect()
    }

    /// A piece of the received data; `range` is relative to the start of that data.
    fn received(&self, range: Range<usize>, values: Values, first: usize) -> Piece {
        piece(
            self.base + range.start..self.base + range.end,
            values,
            first,
        )
    }
}

fn piece(range: Range<usize>, values: Values, first: usize) -> Piece {
    Piece {
        range,
        values,
        first,
    }
}

#[cfg(test)]
mod tests {
    use spark_ccl::ReduceOp;

    use super::*;
    use crate::call::invocation::Case;

    fn call(collective: Collective, rank: usize) -> Invocation<f32> {
        let case = Case {
            collective,
            bytes: 16 * 1024 * 1024,
            op: ReduceOp::Sum,
            root: 1,
            ranks: 3,
        };
        Invocation::new(&case, rank)
    }

    #[test]
    fn patterns_are_what_every_element_asks_for() {
        let call = call(Collective::ReduceScatter, 2);
        let check = Verification::new(&call, BufferMode::OutOfPlace, 5, 7);
        let piece = &check.results()[0];
        let pattern = check.pattern(piece);
        assert_eq!((piece.range.start, pattern.len()), (7, PERIOD));
        let reduction = Reduction::new(f32::DTYPE, ReduceOp::Sum, 3, 5);
        let own = call.own_block().start;
        for index in [
            0,
            50,
            PERIOD - 1,
            PERIOD,
            PERIOD + 99,
            piece.range.len() - 1,
        ] {
            let expected = reduction.expected(own + index);
            assert_eq!(to_bits(&pattern[index % PERIOD]), expected);
        }
    }

    #[test]
    fn nothing_is_left_out_and_nothing_counted_twice() {
        for collective in <Collective as clap::ValueEnum>::value_variants() {
            for (rank, mode) in [
                (0, BufferMode::OutOfPlace),
                (1, BufferMode::InPlace),
                (2, BufferMode::InPlace),
            ] {
                let call = call(*collective, rank);
                let check = Verification::new(&call, mode, 1, 3);
                let mut pieces = check.results();
                pieces.retain(|piece| !piece.range.is_empty());
                pieces.sort_by_key(|piece| piece.range.start);
                let first = check.result_index(0).unwrap();
                let end = pieces.iter().fold(first, |end, piece| {
                    assert_eq!(piece.range.start, end, "{collective:?} {rank} {mode:?}");
                    piece.range.end
                });
                assert_eq!(check.result_index(end - first), None);
                assert!(check.result_index(end - first - 1).is_some());
            }
        }
    }
}
