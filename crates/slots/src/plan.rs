//! How a call is cut into slots: a pure function of what all ranks have alike.

use spark_ccl_types::Operation;

use crate::{Form, Shape};

/// The largest block that more than two ranks exchange directly where all need it, in bytes.
/// Two always do: what each sends is the same either way, and comes in one step.
const DIRECT_MOST: u64 = 64 << 10;
/// The largest block of the kernel that leaves room for others.
const SMALL_MOST: u64 = 256 << 10;
/// The shortest piece of a longer call, in bytes, and how many each CTA then has.
const LEAST: u64 = 16 << 10;
const PIECES: u64 = 4;
/// What pieces and shares begin at multiples of, in bytes.
const WORD: u64 = 16;

/// How a call is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Who reduces what.
    pub form: Form,
    /// Whether its kernel leaves room for what runs beside it.
    pub is_small: bool,
    /// The CTAs, each of which has a lane.
    pub ctas: u32,
    /// The most bytes of a slot's payload.
    pub piece: u64,
    /// How many rounds a lane fills before it consumes the first.
    pub ahead: u32,
}

impl Plan {
    /// The plan for blocks of this many bytes, through such boxes.
    ///
    /// ```
    /// use spark_ccl_slots::{Form, Plan, Shape};
    /// use spark_ccl_types::Operation;
    ///
    /// let shape = Shape::new(8, 8, 64 << 10)?;
    /// let plan = Plan::new(Operation::AllReduce, 1 << 20, 4, shape);
    /// assert_eq!((plan.form, plan.ctas, plan.piece), (Form::Shared, 8, 16 << 10));
    /// let plan = Plan::new(Operation::AllGather, 1 << 20, 4, shape);
    /// assert_eq!((plan.form, plan.ctas, plan.piece), (Form::Direct, 8, 32 << 10));
    /// # Ok::<(), spark_ccl_slots::Error>(())
    /// ```
    pub fn new(operation: Operation, bytes: u64, ranks: usize, shape: Shape) -> Self {
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
        let (lanes, payload) = (shape.lanes() as u64, shape.payload() as u64);
        let even = (extent / (lanes * PIECES)).next_multiple_of(WORD);
        let piece = even.max(LEAST).min(payload);
        Self {
            form,
            is_small: bytes <= SMALL_MOST,
            ctas: extent.div_ceil(piece).clamp(1, lanes) as u32,
            piece,
            ahead: form.ahead(shape.depth()) as u32,
        }
    }
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
                    let plan = Plan::new(operation, bytes, ranks, shape);
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
            let of = |bytes, ranks| Plan::new(operation, bytes, ranks, shape).form;
            let is_shared = matches!(operation, AllReduce | Broadcast | Reduce);
            assert_eq!(of(1 << 20, 3) == Form::Shared, is_shared, "{operation}");
            assert_eq!(of(64 << 10, 3), Form::Direct);
            assert_eq!(of(1 << 20, 2), Form::Direct);
        }
    }
}
