//! Fills buffers for a checked run and counts what came out wrong.

use std::ops::Range;

use spark_ccl::Element;

use crate::buffer::Buffer;
use crate::collective::Collective;
use crate::exact::{Format, Reduction, from_bits, moved, to_bits};
use crate::invocation::{Invocation, Way};

/// The "rank" whose data fills receive buffers, and must be found where nothing may be written.
const BEFORE: usize = 1 << 23;

/// A checked run: what each rank puts in and what must come out.
#[derive(Debug)]
pub(crate) struct Check<'a, T> {
    call: &'a Invocation<T>,
    way: Way,
    seed: u64,
    format: Format,
    reduction: Reduction,
    base: usize,
}

impl<'a, T: Element> Check<'a, T> {
    /// `seed` differs from check to check, so that results of an earlier one are wrong.
    pub(crate) fn new(call: &'a Invocation<T>, way: Way, seed: u64, base: usize) -> Self {
        let reduction = Reduction::new(T::DTYPE, call.op, call.ranks, seed);
        Self {
            call,
            way,
            seed,
            format: Format::of(T::DTYPE),
            reduction,
            base,
        }
    }

    /// Writes this rank's input, and a known pattern everywhere else.
    pub(crate) fn fill<B: Buffer<T>>(&self, send: &mut B, recv: &mut B) {
        let recv = &mut recv[self.call.recv_range(self.base, 0, self.way)];
        write(recv, |index| self.before(index));
        match self.way {
            Way::OutOfPlace => write(&mut send[self.call.send_range(self.base, 0)], |index| {
                self.input(index)
            }),
            Way::InPlace => write(&mut recv[self.in_place_input()], |index| self.input(index)),
        }
    }

    /// Spoils one element of the result, if there are that many.
    pub(crate) fn plant<B: Buffer<T>>(&self, recv: &mut B, index: usize) {
        let result = self.result();
        if index < result.len() {
            let element = &mut recv[self.base + result.start + index];
            // The second highest bit: far enough off for any tolerance.
            *element = from_bits(to_bits(element) ^ 1 << (self.format.bits() - 2));
        }
    }

    /// Counts this rank's wrong elements.
    pub(crate) fn wrong<B: Buffer<T>>(&self, recv: &B) -> u64 {
        let range = self.result();
        let result = &recv[self.base + range.start..self.base + range.end];
        let call = self.call;
        let own = call.own_block().start;
        if !self.has_result() {
            // In place, a non-root's input is part of what its buffer held.
            let input = if self.way == Way::InPlace {
                self.in_place_input()
            } else {
                0..0
            };
            let kept = |index: usize| {
                if input.contains(&index) {
                    self.input(index - input.start)
                } else {
                    self.before(index)
                }
            };
            return count(result, kept, |got, expected| got == expected);
        }
        let same = |got, expected| got == expected;
        match call.collective {
            Collective::AllReduce | Collective::Reduce => count(
                result,
                |index| self.reduction.expected(index),
                |got, expected| self.reduction.accepts(got, expected),
            ),
            Collective::ReduceScatter => count(
                result,
                |index| self.reduction.expected(own + index),
                |got, expected| self.reduction.accepts(got, expected),
            ),
            Collective::Broadcast => count(result, |index| self.moved(call.root, index), same),
            Collective::Scatter => count(result, |index| self.moved(call.root, own + index), same),
            Collective::SendRecv => count(result, |index| self.moved(call.previous(), index), same),
            Collective::AllGather | Collective::Gather | Collective::Hypercube => {
                self.blocks(result, |source, index| self.moved(source, index))
            }
            Collective::AllToAll => {
                self.blocks(result, |source, index| self.moved(source, own + index))
            }
            Collective::AllToAllV => self.uneven_blocks(result),
        }
    }

    /// The part of the receive range that is looked at.
    fn result(&self) -> Range<usize> {
        match (self.way, self.call.collective) {
            // In place, only the own block is defined afterwards.
            (Way::InPlace, Collective::ReduceScatter | Collective::Scatter) => {
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

    /// Element `index` of this rank's input.
    fn input(&self, index: usize) -> u64 {
        if self.call.collective.reduces() {
            self.reduction.input(self.call.rank, index)
        } else {
            self.moved(self.call.rank, index)
        }
    }

    /// Where the input lies within the buffer of an in-place call; empty for who has none.
    fn in_place_input(&self) -> Range<usize> {
        match self.call.collective {
            Collective::AllGather | Collective::Gather | Collective::Hypercube => {
                self.call.own_block()
            }
            Collective::Broadcast | Collective::Scatter if self.call.rank != self.call.root => 0..0,
            _ => 0..self.call.layout.send,
        }
    }

    fn before(&self, index: usize) -> u64 {
        self.moved(BEFORE, index)
    }

    fn moved(&self, source: usize, index: usize) -> u64 {
        moved(self.format, self.seed, source, index)
    }

    /// Compares one block of each rank.
    fn blocks(&self, result: &[T], expected: impl Fn(usize, usize) -> u64) -> u64 {
        if self.call.layout.count == 0 {
            return 0;
        }
        let blocks = result.chunks_exact(self.call.layout.count).enumerate();
        blocks
            .map(|(source, block)| {
                count(
                    block,
                    |index| expected(source, index),
                    |got, expected| got == expected,
                )
            })
            .sum()
    }

    fn uneven_blocks(&self, result: &[T]) -> u64 {
        let side = self.call.uneven_receives();
        let blocks = side.displacements.iter().zip(&side.counts).enumerate();
        blocks
            .map(|(source, (&start, &len))| {
                let offset = self.call.uneven_offset(source);
                count(
                    &result[start..start + len],
                    |index| self.moved(source, offset + index),
                    |got, expected| got == expected,
                )
            })
            .sum()
    }
}

fn write<T: Element>(part: &mut [T], value: impl Fn(usize) -> u64) {
    for (index, element) in part.iter_mut().enumerate() {
        *element = from_bits(value(index));
    }
}

fn count<T: Element>(
    part: &[T],
    expected: impl Fn(usize) -> u64,
    accepts: impl Fn(u64, u64) -> bool,
) -> u64 {
    part.iter()
        .enumerate()
        .map(|(index, element)| u64::from(!accepts(to_bits(element), expected(index))))
        .sum()
}
