//! How an `all_reduce` is cut into slots: a pure function of what all ranks have alike.

use crate::{Form, Shape};

/// The largest input that more than two ranks exchange directly, in bytes. Two always do: what each
/// sends is the same either way, and comes in one step.
const DIRECT_MOST: u64 = 64 << 10;
/// The largest input of the kernel that leaves room for others.
const SMALL_MOST: u64 = 256 << 10;
/// The shortest piece of a longer call, in bytes, and how many each CTA then has.
const LEAST: u64 = 16 << 10;
const PIECES: u64 = 4;
/// What pieces and shares begin at multiples of, in bytes.
const WORD: u64 = 16;

/// How an `all_reduce` is done.
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
    /// The bytes that are cut into pieces: all, or a rank's share.
    extent: u64,
}

impl Plan {
    /// The plan for this many bytes of each of the ranks, through such boxes.
    ///
    /// ```
    /// use spark_ccl_slots::{Form, Plan, Shape};
    ///
    /// let shape = Shape::new(8, 8, 64 << 10)?;
    /// let plan = Plan::new(1 << 20, 4, shape);
    /// assert_eq!((plan.form, plan.ctas, plan.piece), (Form::Shared, 8, 16 << 10));
    /// # Ok::<(), spark_ccl_slots::Error>(())
    /// ```
    pub fn new(bytes: u64, ranks: usize, shape: Shape) -> Self {
        let is_direct = ranks <= 2 || bytes <= DIRECT_MOST;
        let form = if is_direct {
            Form::Direct
        } else {
            Form::Shared
        };
        let extent = match form {
            Form::Direct => bytes,
            // As `AllReduce::share`.
            Form::Shared => bytes.div_ceil(ranks as u64).next_multiple_of(WORD),
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
            extent,
        }
    }

    /// How many slots a lane passes to each peer, and from each.
    pub fn slots(&self, lane: usize) -> u64 {
        let (lane, ctas) = (lane as u64, u64::from(self.ctas));
        // As `AllReduce::rounds_of`.
        let all = self.extent.div_ceil(self.piece).max(1);
        if lane >= ctas.min(all) {
            return 0;
        }
        let rounds = (all - lane - 1) / ctas + 1;
        match self.form {
            Form::Direct => rounds,
            Form::Shared => 2 * rounds,
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
                let plan = Plan::new(bytes, ranks, shape);
                assert!(plan.piece.is_multiple_of(WORD) && plan.piece <= payload as u64);
                assert!((1..=lanes as u32).contains(&plan.ctas), "{plan:?}");
                assert!(plan.form.depth(plan.ahead as usize) <= depth, "{plan:?}");
                // Each CTA has a round, or its lane would be another call behind.
                let slots: Vec<_> = (0..lanes).map(|lane| plan.slots(lane)).collect();
                let (used, unused) = slots.split_at(plan.ctas as usize);
                assert!(used.iter().all(|&slots| slots > 0), "{plan:?}");
                assert!(unused.iter().all(|&slots| slots == 0), "{plan:?}");
            }
        }
    }
}
