//! Cuts a call into slots: a pure function of arguments that are the same on all ranks.

use spark_ccl_types::Operation;

use crate::layout::BLOCK;
use crate::{Form, Shape};

/// The largest block, in bytes, that more than two ranks exchange directly if all need it. Two
/// ranks always do: each sends the same number of bytes in either form, and directly in one step.
const DIRECT_MOST: u64 = 64 << 10;
/// The largest block for the small kernel, in bytes.
const SMALL_MOST: u64 = 256 << 10;
/// The largest block that goes by packets, in bytes. On an H200 that two ranks share, 1 KiB took
/// 7.8 us (by pieces 8.5), and 4 KiB 11.8 (9.7): a thread reads and writes twice the bytes.
pub(crate) const MOST_BY_PACKETS: u64 = BLOCK as u64;
/// How many pieces each CTA has in a longer call.
const PIECES: u64 = 4;
/// The most rounds that a lane fills before it consumes the first. They are enough to keep all
/// ranks busy, and to have credits go with slots of the other direction. They are so few that the
/// data stay in caches.
const AHEAD: usize = 5;
/// The threads of a warp.
const WARP: u64 = 32;
/// Pieces and shares begin at multiples of this number of bytes.
const WORD: u64 = 16;

/// The kernel that fills and reads the slots of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// For short calls between all ranks: flags are among the data.
    Packets,
    /// Leaves room for other kernels beside it.
    Small,
    /// Has more loads on their way at once.
    Large,
}

impl Kernel {
    /// The most threads of a CTA, as in `slots.cu`: a multiprocessor has registers for two or more
    /// CTAs.
    ///
    /// ```
    /// assert_eq!(spark_ccl_slots::Kernel::Small.most_threads(), 256);
    /// ```
    pub fn most_threads(self) -> u32 {
        match self {
            Self::Packets => 160,
            Self::Small => 256,
            Self::Large => 384,
        }
    }
}

/// The way in which a call is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Whether ranks exchange data directly, or in shares.
    pub form: Form,
    /// The kernel that does the call.
    pub kernel: Kernel,
    /// The CTAs. Each has a lane.
    pub ctas: u32,
    /// The most bytes of a slot's payload.
    pub piece: u64,
    /// How many rounds a lane fills before it consumes the first.
    pub ahead: u32,
}

impl Plan {
    /// The plan for blocks of `bytes` bytes, through boxes of `shape`, in pieces of at least
    /// `least` bytes.
    ///
    /// ```
    /// use spark_ccl_slots::{Form, Plan, Shape};
    /// use spark_ccl_types::Operation;
    ///
    /// let shape = Shape::new(8, 8, 64 << 10)?;
    /// let plan = Plan::new(Operation::AllReduce, 1 << 20, 4, shape, 16 << 10);
    /// assert_eq!((plan.form, plan.ctas, plan.piece), (Form::Shared, 8, 16 << 10));
    /// let plan = Plan::new(Operation::AllGather, 1 << 20, 4, shape, 16 << 10);
    /// assert_eq!((plan.form, plan.ctas, plan.piece), (Form::Direct, 8, 32 << 10));
    /// # Ok::<(), spark_ccl_slots::Error>(())
    /// ```
    pub fn new(operation: Operation, bytes: u64, ranks: usize, shape: Shape, least: u64) -> Self {
        let is_long = ranks > 2 && bytes > DIRECT_MOST;
        let form = if is_long && Form::of(operation).contains(&Form::Shared) {
            Form::Shared
        } else {
            Form::Direct
        };
        let extent = match form {
            Form::Direct => bytes,
            // As `Exchange::share`.
            Form::Shared => {
                let sharers = form.sharers(operation, ranks) as u64;
                bytes.div_ceil(sharers).next_multiple_of(WORD)
            }
        };
        let kernel = match bytes {
            ..=MOST_BY_PACKETS if !operation.is_rooted() => Kernel::Packets,
            ..=SMALL_MOST => Kernel::Small,
            _ => Kernel::Large,
        };
        let lanes = shape.lanes() as u64;
        let piece = piece(extent / lanes, shape, least);
        Self {
            form,
            kernel,
            ctas: match kernel {
                Kernel::Packets => 1,
                _ => extent.div_ceil(piece).clamp(1, lanes) as u32,
            },
            piece,
            ahead: form.ahead(shape.depth()).min(AHEAD) as u32,
        }
    }

    /// The most bytes of a slot's payload in a message of this many bytes, through a lane of boxes
    /// of `shape`: at least `least`, if the message has that many.
    ///
    /// ```
    /// use spark_ccl_slots::{Plan, Shape};
    ///
    /// let shape = Shape::new(8, 8, 64 << 10)?;
    /// let piece = |bytes| Plan::piece_of_message(bytes, shape, 16 << 10);
    /// assert_eq!([0, 128 << 10, 1 << 30].map(piece), [16 << 10, 32 << 10, 64 << 10]);
    /// # Ok::<(), spark_ccl_slots::Error>(())
    /// ```
    pub fn piece_of_message(bytes: u64, shape: Shape, least: u64) -> u64 {
        piece(bytes, shape, least)
    }

    /// The threads of a CTA in a call of this many bytes.
    pub fn threads(&self, bytes: u64) -> u32 {
        let needed = match self.kernel {
            // One warp compares records.
            Kernel::Packets => WARP + bytes.div_ceil(8).max(1),
            _ => self.piece.min(bytes).div_ceil(WORD),
        };
        let most = u64::from(self.kernel.most_threads());
        needed.next_multiple_of(WARP).clamp(WARP, most) as u32
    }
}

/// The bytes of a piece, of all that a CTA passes.
fn piece(bytes: u64, shape: Shape, least: u64) -> u64 {
    let even = (bytes / PIECES).next_multiple_of(WORD);
    even.max(least).min(shape.payload() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_fit_into_their_boxes() {
        for (lanes, depth, payload) in [(1, 1, 128), (3, 2, 4096), (8, 8, 64 << 10)] {
            let shape = Shape::new(lanes, depth, payload).unwrap();
            for (bytes, ranks) in [0, 1, 16, 40_000, 1 << 20, 300 << 20]
                .into_iter()
                .flat_map(|bytes| (2..=8).map(move |ranks| (bytes, ranks)))
            {
                for operation in [Operation::AllReduce, Operation::Reduce, Operation::Scatter] {
                    let plan = Plan::new(operation, bytes, ranks, shape, 16 << 10);
                    assert!(plan.piece.is_multiple_of(WORD) && plan.piece <= payload as u64);
                    assert!((1..=lanes as u32).contains(&plan.ctas), "{plan:?}");
                    assert!(plan.form.depth(plan.ahead as usize) <= depth, "{plan:?}");
                }
            }
        }
    }

    #[test]
    fn shares_are_for_what_all_need_whole() {
        let shape = Shape::new(8, 8, 64 << 10).unwrap();
        for operation in Operation::ALL {
            use Operation::{AllReduce, Broadcast, Reduce};
            let of = |bytes, ranks| Plan::new(operation, bytes, ranks, shape, 16 << 10).form;
            let is_shared = matches!(operation, AllReduce | Broadcast | Reduce);
            assert_eq!(of(1 << 20, 3) == Form::Shared, is_shared, "{operation}");
            assert_eq!(of(64 << 10, 3), Form::Direct);
            assert_eq!(of(1 << 20, 2), Form::Direct);
        }
    }
}
