//! How many slots a lane needs, so that no rank waits for room that never comes.
//!
//! A lane's rows at the sender and at the receiver both hold slots: a slot that the peer has no
//! room for stays in the outbox, where it is in nobody's way until that is full.

/// How an `all_reduce` goes through slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Each rank gets all of the others' input.
    Direct,
    /// Rank i reduces share i, and passes on the result.
    Shared,
}

impl Form {
    /// The smallest depth of lanes that fill `ahead` rounds before they consume the first.
    ///
    /// Before a lane fills a slot, up to `ahead` rounds are on their way to each peer: of results
    /// as well, where there are any. Peers that wait for room, too, have consumed no more. Both
    /// rows of `depth` slots hold that and one slot more.
    ///
    /// ```
    /// use spark_ccl_slots::Form;
    ///
    /// assert_eq!(Form::Direct.depth(4), 3);
    /// assert_eq!(Form::Shared.depth(4), 5);
    /// ```
    pub fn depth(self, ahead: usize) -> usize {
        let under_way = match self {
            Self::Direct => ahead,
            Self::Shared => 2 * ahead,
        };
        under_way / 2 + 1
    }

    /// The most rounds that lanes of this depth may fill before they consume the first.
    pub(crate) fn ahead(self, depth: usize) -> usize {
        match self {
            Self::Direct => 2 * depth - 1,
            Self::Shared => depth - 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a lane does, in order, with all peers at once.
    #[derive(Clone, Copy)]
    enum Step {
        Fill,
        Consume,
    }

    /// As `AllReduce::direct` and `AllReduce::shared`.
    fn steps(form: Form, rounds: usize, ahead: usize) -> Vec<Step> {
        let (fill, take) = ([Step::Fill].as_slice(), [Step::Consume].as_slice());
        let has = |round: usize, behind| round >= behind && round - behind < rounds;
        let last = match form {
            Form::Direct => rounds + ahead,
            Form::Shared => rounds + 2 * ahead,
        };
        let of_round = |round| match form {
            Form::Direct => vec![(has(round, 0), fill), (has(round, ahead), take)],
            Form::Shared => vec![
                (has(round, 0), fill),
                (has(round, ahead), &[Step::Consume, Step::Fill]),
                (has(round, 2 * ahead), take),
            ],
        };
        let all = (0..last).flat_map(of_round);
        all.filter(|step| step.0)
            .flat_map(|step| step.1)
            .copied()
            .collect()
    }

    /// What is between two ranks, one way.
    #[derive(Clone, Copy, Default)]
    struct Edge {
        filled: usize,
        arrived: usize,
        consumed: usize,
    }

    impl Edge {
        /// A slot is posted once the peer has room, and then its source is free. A carrier that
        /// takes its time does so in the end.
        fn carry(&mut self, depth: usize) {
            self.arrived = self.filled.min(self.consumed + depth);
        }
    }

    /// Whether all ranks come to their end. Ranks wait for single slots only, in an order of their
    /// own, and each slot has one sender and one receiver: so if one order of running them comes to
    /// the end, all do.
    fn ends(form: Form, ranks: usize, ahead: usize, depth: usize) -> bool {
        let steps = steps(form, 6 * ahead + 3, ahead);
        let mut next = vec![0; ranks];
        let mut edges = vec![vec![Edge::default(); ranks]; ranks];
        loop {
            let mut moved = false;
            for rank in 0..ranks {
                while let Some(step) = steps.get(next[rank]) {
                    let peers = || (0..ranks).filter(|&peer| peer != rank);
                    let may = match step {
                        Step::Fill => peers().all(|peer| {
                            let edge = edges[rank][peer];
                            edge.filled - edge.arrived < depth
                        }),
                        Step::Consume => peers().all(|peer| {
                            let edge = edges[peer][rank];
                            edge.arrived > edge.consumed
                        }),
                    };
                    if !may {
                        break;
                    }
                    for peer in peers() {
                        match step {
                            Step::Fill => edges[rank][peer].filled += 1,
                            Step::Consume => edges[peer][rank].consumed += 1,
                        }
                        edges[rank][peer].carry(depth);
                        edges[peer][rank].carry(depth);
                    }
                    next[rank] += 1;
                    moved = true;
                }
            }
            if !moved {
                return next.iter().all(|&next| next == steps.len());
            }
        }
    }

    #[test]
    fn no_more_rounds_fit_into_a_depth() {
        for form in [Form::Direct, Form::Shared] {
            for depth in 1..=8 {
                let ahead = form.ahead(depth);
                assert_eq!(
                    [ahead, ahead + 1].map(|ahead| form.depth(ahead)),
                    [depth, depth + 1]
                );
            }
        }
    }

    #[test]
    fn the_smallest_depth_suffices_and_one_less_does_not() {
        for form in [Form::Direct, Form::Shared] {
            for ranks in 2..=8 {
                for ahead in 1..=8 {
                    let depth = form.depth(ahead);
                    assert!(
                        ends(form, ranks, ahead, depth),
                        "{form:?} {ranks} {ahead} {depth}"
                    );
                    // A depth of none is no lane.
                    let is_less = depth > 1 && ends(form, ranks, ahead, depth - 1);
                    assert!(!is_less, "{form:?} {ranks} {ahead} {depth}");
                }
            }
        }
    }
}
