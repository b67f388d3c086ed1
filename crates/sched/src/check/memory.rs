//! The memory of one rank, in which each element records its origin.

use std::ops::Range;

use super::goal::Layout;
use super::value::Value;
use crate::defect::Problem;
use crate::lockstep::Slice;
use crate::step::{Buf, Rank, Span};

/// One element.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Cell<V> {
    /// The index of the input element that it was.
    pub(super) index: u64,
    pub(super) value: V,
    /// Whether it is unchanged since the collective began.
    pub(super) is_fresh: bool,
    /// Whether it was reduced, and so multiplied by a factor that all ranks share.
    pub(super) is_reduced: bool,
}

/// The index of an element within a step, and what is wrong with it.
pub(super) type ElementProblem = (u64, Problem);

pub(super) struct RankMemory<V> {
    cells: Vec<Option<Cell<V>>>,
    layout: Layout,
    scratch: (u64, u64),
    /// The channels that have read and that have written each element, as bits.
    readers: Vec<u8>,
    writers: Vec<u8>,
    /// Whether contributions must be read as input.
    reduces: bool,
}

impl<V: Value> RankMemory<V> {
    pub(super) fn new(rank: Rank, layout: Layout, scratch: u64, reduces: bool) -> Self {
        let (start, len) = layout.input;
        let user = (start + len).max(layout.output.0 + layout.output.1);
        let len_in_all = (user + scratch) as usize;
        let mut cells = vec![None; len_in_all];
        for index in 0..len {
            cells[(start + index) as usize] = Some(Cell {
                index,
                value: V::input(rank, index),
                is_fresh: true,
                is_reduced: false,
            });
        }
        Self {
            cells,
            layout,
            scratch: (user, scratch),
            readers: vec![0; len_in_all],
            writers: vec![0; len_in_all],
            reduces,
        }
    }

    pub(super) fn output(&self, index: u64) -> Option<Cell<V>> {
        self.cells[(self.layout.output.0 + index) as usize]
    }

    /// The position of a slice of a span.
    pub(super) fn range(&self, span: Span, slice: Slice) -> Result<Range<usize>, ElementProblem> {
        let (start, len) = match span.buf {
            Buf::Input => self.layout.input,
            Buf::Output => self.layout.output,
            Buf::Scratch => self.scratch,
        };
        let first = span.offset + slice.offset;
        if first + slice.len > len {
            return Err((slice.offset, Problem::OutOfBounds));
        }
        let first = (start + first) as usize;
        Ok(first..first + slice.len as usize)
    }

    /// Reads the elements of a slice of a span, to be sent or reduced.
    pub(super) fn read(
        &mut self,
        channel: u32,
        span: Span,
        slice: Slice,
    ) -> Result<Vec<Cell<V>>, ElementProblem> {
        let range = self.range(span, slice)?;
        self.touch(channel, range.clone(), false, slice)?;
        let cells = &self.cells[range];
        let read = |(element, cell): (u64, &Option<Cell<V>>)| {
            let wrong = |problem| (slice.offset + element, problem);
            let cell = cell.ok_or(wrong(Problem::ReadNothing))?;
            match span.buf {
                Buf::Input if !cell.is_fresh => Err(wrong(Problem::ReadOverwrittenInput)),
                Buf::Output | Buf::Scratch if cell.is_fresh && self.reduces => {
                    Err(wrong(Problem::ReadUnscaled))
                }
                _ => Ok(Cell {
                    is_fresh: false,
                    ..cell
                }),
            }
        };
        (0..).zip(cells).map(read).collect()
    }

    pub(super) fn write(
        &mut self,
        channel: u32,
        span: Span,
        slice: Slice,
        data: &[Cell<V>],
    ) -> Result<(), ElementProblem> {
        if span.buf == Buf::Input {
            return Err((slice.offset, Problem::WroteInput));
        }
        let range = self.range(span, slice)?;
        self.touch(channel, range.clone(), true, slice)?;
        for (cell, new) in self.cells[range].iter_mut().zip(data) {
            *cell = Some(*new);
        }
        Ok(())
    }

    /// Records an access. Channels run concurrently, so none may write what another uses.
    fn touch(
        &mut self,
        channel: u32,
        range: Range<usize>,
        is_write: bool,
        slice: Slice,
    ) -> Result<(), ElementProblem> {
        let own = 1 << channel;
        for (element, at) in (slice.offset..).zip(range) {
            let others = if is_write {
                self.writers[at] |= own;
                self.writers[at] | self.readers[at]
            } else {
                self.readers[at] |= own;
                self.writers[at]
            };
            if others & !own != 0 {
                return Err((element, Problem::SharedByChannels));
            }
        }
        Ok(())
    }
}

/// Checks that operands about to be reduced are multiplied exactly once: contributions by this
/// step, if `is_scaled_here`, and all else before.
pub(super) fn check_scaling<V>(
    cells: &[Cell<V>],
    is_scaled_here: bool,
    slice: Slice,
) -> Result<(), ElementProblem> {
    let mut all = (slice.offset..).zip(cells);
    match all.find(|(_, cell)| cell.is_reduced == is_scaled_here) {
        Some((element, _)) if is_scaled_here => Err((element, Problem::ScaledTwice)),
        Some((element, _)) => Err((element, Problem::Unscaled)),
        None => Ok(()),
    }
}

/// Reduces element by element; `left` is that of the lower rank.
pub(super) fn reduce<V: Value>(
    left: &[Cell<V>],
    right: &[Cell<V>],
    slice: Slice,
) -> Result<Vec<Cell<V>>, ElementProblem> {
    let reduce = |(element, (left, right)): (u64, (&Cell<V>, &Cell<V>))| {
        let wrong = |problem| (slice.offset + element, problem);
        if left.index != right.index {
            return Err(wrong(Problem::MixedElements));
        }
        let value = V::reduce(left.value, right.value).ok_or(wrong(Problem::ReducedTwice))?;
        Ok(Cell {
            value,
            is_reduced: true,
            ..*left
        })
    };
    (0..).zip(left.iter().zip(right)).map(reduce).collect()
}
