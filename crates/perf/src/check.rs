//! Fills buffers for a checked run and counts what came out wrong.

use std::ops::Range;

use spark_ccl::Element;

use crate::buffer::Buffer;
use crate::collective::Collective;
use crate::exact::{Format, PERIOD, Reduction, from_bits, moved, to_bits};
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
        let same = |got, expected| got == expected;
        if !self.has_result() {
            // In place, a non-root's input is part of what its buffer held.
            let input = if self.way == Way::InPlace {
                self.in_place_input()
            } else {
                0..0
            };
            let tail = input.end;
            return count(&result[..input.start], |index| self.before(index), same)
                + count(&result[input], |index| self.input(index), same)
                + count(&result[tail..], |index| self.before(tail + index), same);
        }
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

/// Writes values that repeat after `PERIOD` elements.
fn write<T: Element>(part: &mut [T], value: impl Fn(usize) -> u64) {
    let (pattern, rest) = part.split_at_mut(part.len().min(PERIOD));
    for (index, element) in pattern.iter_mut().enumerate() {
        *element = from_bits(value(index));
    }
    for copy in rest.chunks_mut(PERIOD) {
        copy.copy_from_slice(&pattern[..copy.len()]);
    }
}

/// Counts the elements that are not as expected; what is expected repeats after `PERIOD` elements.
fn count<T: Element>(
    part: &[T],
    expected: impl Fn(usize) -> u64,
    accepts: impl Fn(u64, u64) -> bool,
) -> u64 {
    let pattern: Vec<T> = (0..part.len().min(PERIOD))
        .map(|index| from_bits(expected(index)))
        .collect();
    let wrong = |chunk: &[T]| {
        let pattern = &pattern[..chunk.len()];
        // As bytes: floats of different bits can be equal.
        if bytemuck::cast_slice::<T, u8>(chunk) == bytemuck::cast_slice::<T, u8>(pattern) {
            return 0;
        }
        let pairs = chunk.iter().zip(pattern);
        pairs
            .filter(|(got, expected)| !accepts(to_bits(*got), to_bits(*expected)))
            .count() as u64
    };
    part.chunks(PERIOD).map(wrong).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_elements_are_counted_in_every_period() {
        let value = |index: usize| moved(Format::of(f32::DTYPE), 3, 1, 7 + index);
        let mut memory = vec![0f32; 3 * PERIOD + 10];
        write(&mut memory, value);
        let same = |got, expected| got == expected;
        assert_eq!(count(&memory, value, same), 0);
        for index in [0, 2, PERIOD - 1, PERIOD, 2 * PERIOD + 5, 3 * PERIOD + 9] {
            memory[index] = -memory[index];
        }
        assert_eq!(count(&memory, value, same), 6);
        // Data that is off by one message.
        memory.rotate_left(1 << 14);
        assert!(count(&memory, value, same) > PERIOD as u64);
    }

    #[test]
    fn patterns_are_what_every_element_asks_for() {
        let reduction = Reduction::new(f32::DTYPE, crate::op::Op::Sum, 3, 5);
        for own in [0, 11, PERIOD + 3] {
            let value = |index| reduction.expected(own + index);
            let mut memory = vec![0f32; PERIOD + 100];
            write(&mut memory, value);
            for index in [0, 50, PERIOD - 1, PERIOD, PERIOD + 99] {
                assert_eq!(to_bits(&memory[index]), value(index));
            }
        }
    }
}
