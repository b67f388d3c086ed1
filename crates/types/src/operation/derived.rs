//! Properties of operations that are derived from the table.

use super::{Operation, Row};
use crate::buffers::{Extent, Side};

impl Operation {
    /// Whether it moves elements, rather than only synchronising ranks.
    #[inline]
    pub const fn moves_data(self) -> bool {
        !matches!(
            (self.row().input, self.row().output),
            (Extent::Nothing, Extent::Nothing)
        )
    }

    /// Whether a rank uses a buffer: ranks other than the root ignore the buffer that only the root
    /// has.
    #[inline]
    pub const fn uses(self, side: Side, is_root: bool) -> bool {
        match self.at_root() {
            Some(only) => is_root || only as u8 != side as u8,
            None => true,
        }
    }

    /// Whether ranks write to each other's outputs if these are registered. If each rank shares a
    /// single buffer, it is only read.
    #[inline]
    pub const fn writes_to_peers(self, in_place: bool) -> bool {
        matches!(self.shared(in_place), Some([Side::Input, Side::Output]))
    }

    /// Whether a buffer is divided among the ranks.
    #[inline]
    pub const fn is_divided(self) -> bool {
        matches!(self.row().input, Extent::Blocks) || matches!(self.row().output, Extent::Blocks)
    }

    /// The buffer whose length is the count: the one that all ranks have, else the shorter one,
    /// else the input.
    #[inline]
    pub const fn counted(self) -> Side {
        match self.row() {
            Row {
                at_root: Some(Side::Input),
                ..
            }
            | Row {
                input: Extent::Blocks,
                output: Extent::Count,
                ..
            } => Side::Output,
            _ => Side::Input,
        }
    }

    /// The buffer that, in place, is the rank's own block of the other one; `None` if both have the
    /// same length.
    #[inline]
    pub const fn own_block(self) -> Option<Side> {
        match (self.row().input, self.row().output) {
            (Extent::Count, Extent::Blocks) => Some(Side::Input),
            (Extent::Blocks, Extent::Count) => Some(Side::Output),
            _ => None,
        }
    }
}
