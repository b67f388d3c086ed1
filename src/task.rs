//! The untyped core of a call: an operation and its memory.
//!
//! A [`Spec`] is a call without its buffers. With them it becomes a [`Task`](Spec::task), which is
//! [checked](Spec::check) once; [`Spec::checked`] does both. Nothing here knows communicators,
//! plans or engines.

mod check;
pub(crate) mod names;
mod spec;

use std::sync::Arc;
use std::time::Duration;

use spark_ccl_sched::Rank;
use spark_ccl_types::{DType, Operation, Reduction, Side, Signature};
pub(crate) use spec::{Spec, Tables};

use crate::memory::buffer::Region;

/// The error text for a timeout of 0.
pub(crate) const NO_TIME: &str = "a timeout of 0: no call could be done in time";

/// In calls of at least this many bytes, several threads copy and reduce.
const LONG_BYTES: u64 = 1 << 20;
/// Several threads read what is lent in calls of at least this many bytes. The kernel looks up the
/// sender's pages for each of them; in shorter calls that takes longer than one thread does.
pub(crate) const DIVIDED_BYTES: u64 = 32 << 20;

/// Whether it pays to divide the work of a call among threads, if its longer buffer has these
/// elements.
#[inline]
pub(crate) fn is_long(dtype: DType, elements: u64) -> bool {
    bytes(dtype, elements) >= LONG_BYTES
}

#[inline]
pub(crate) fn bytes(dtype: DType, elements: u64) -> u64 {
    elements.saturating_mul(dtype.size() as u64)
}

/// This rank, and how many there are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ranks {
    pub(crate) own: usize,
    pub(crate) size: usize,
}

/// A call with its buffers.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    pub(crate) signature: Signature,
    pub(crate) input: Region,
    pub(crate) output: Region,
    pub(crate) reduction: Reduction,
    /// Where its factor is, if it is in memory of a device.
    #[cfg(feature = "cuda")]
    pub(crate) factor_at: Option<u64>,
    /// The caller passed one buffer. [`Signature::in_place`] says so only where all ranks must
    /// agree on it.
    pub(crate) in_place: bool,
    /// In place, with each rank's input in its block of the output: elements of a block.
    pub(crate) input_block: Option<u64>,
    /// The zero-copy path is not demanded of this call, whatever the settings say.
    pub(crate) by_any_path: bool,
    /// The library itself makes it, and not the program.
    pub(crate) is_internal: bool,
    /// Its timeout; `None` for the one that its engine has when it begins.
    pub(crate) limit: Option<Duration>,
    /// For messages: the rank that they go to, and the one that they come from.
    pub(crate) to: Rank,
    pub(crate) from: Rank,
    /// The blocks of an `all_to_all_v`.
    pub(crate) tables: Option<Arc<Tables>>,
}

impl Task {
    pub(crate) fn operation(&self) -> Operation {
        self.signature.operation
    }

    /// Whether it pays to divide its work among threads.
    #[inline]
    pub(crate) fn is_long(&self) -> bool {
        self.has_bytes(LONG_BYTES)
    }

    /// Whether its longer buffer has at least this number of bytes.
    #[inline]
    pub(crate) fn has_bytes(&self, least: u64) -> bool {
        let elements = self.input.len.max(self.output.len) as u64;
        bytes(self.signature.dtype, elements) >= least
    }

    pub(crate) fn is_on_device(&self) -> bool {
        self.input.site.is_some() || self.output.site.is_some()
    }

    /// The regions that are read and written, as the caller passed them.
    #[cfg(feature = "cuda")]
    pub(crate) fn regions(&self) -> [&Region; 2] {
        [&self.input, &self.output]
    }

    /// Whether peers may write to its output, which takes registered buffers on all ranks.
    pub(crate) fn is_written_by_peers(&self) -> bool {
        self.signature.place != 0 && self.operation().writes_to_peers(self.in_place)
    }

    /// Narrows the caller's buffers to what this rank reads and writes.
    #[inline]
    pub(crate) fn narrow(&mut self, own: Rank) {
        let operation = self.operation();
        let count = self.signature.count as usize;
        let bytes = self.signature.dtype.size();
        let block = |all: &Region| all.part(own as usize * count, count, bytes);
        match operation.own_block() {
            Some(Side::Input) if self.in_place => {
                self.input = block(&self.output);
                self.input_block = Some(count as u64);
                return;
            }
            Some(Side::Output) if self.in_place => {
                self.output = block(&self.output);
                return;
            }
            _ => {}
        }
        let is_root = self.signature.root == own;
        // In place, a rank reads its own output in any case.
        if !self.in_place && !operation.uses(Side::Input, is_root) {
            self.input = Region::empty();
        }
        if !operation.uses(Side::Output, is_root) {
            self.output = Region::empty();
        }
    }
}
