//! Compares this rank's calls of device memory with another rank's claims. Finds the first call
//! that differs by bisection: each rank claims the call in the middle of the range that contains
//! it. Pure functions.

use crate::ledger::{Entry, Ledger};

/// A rank's statement about one of its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) context: u64,
    /// The number of the call; 0 if the rank has made none.
    pub(crate) number: u64,
    pub(crate) entry: Entry,
    /// Up to this call, both ranks' calls are known to be the same.
    pub(crate) agreed: u64,
    /// They are known to differ at this call or before; 0 if that is not known.
    pub(crate) differs: u64,
    /// The number of the question that is asked, or answered.
    pub(crate) question: u64,
    /// Whether this claim asks it.
    pub(crate) asks: bool,
}

/// The known state of another rank's calls.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Comparison {
    /// Up to this call, they are the same as this rank's.
    pub(crate) agreed: u64,
    /// They differ at this call or before.
    differs: Option<u64>,
    /// The last question of this rank that the other one has answered.
    pub(crate) answered: u64,
    /// The other rank's claim about a call that this rank has not made yet.
    pub(crate) pending: Option<Claim>,
}

/// The result of comparing a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compared {
    /// There is nothing to reply.
    Noted,
    /// This rank replies with a claim of its own.
    Reply(Claim),
    /// The first call that differs, and its signature on both ranks, as far as this one still has
    /// it.
    Mismatch {
        number: u64,
        own: Option<[u64; 2]>,
        theirs: Option<[u64; 2]>,
    },
}

impl Comparison {
    /// This rank's claim about one of its calls, for the other rank.
    pub(crate) fn claim(&self, context: u64, ledger: &Ledger, number: u64) -> Claim {
        let entry = ledger.get(number);
        Claim {
            context,
            number: entry.map_or(0, |_| number),
            entry: entry.unwrap_or_default(),
            agreed: self.agreed,
            differs: self.differs.unwrap_or(0),
            question: 0,
            asks: false,
        }
    }

    /// Compares a claim of the other rank.
    pub(crate) fn compare(&mut self, claim: &Claim, ledger: &Ledger) -> Compared {
        self.take(claim, ledger);
        if let Some(differs) = self.differs {
            return self.search(differs, claim, ledger);
        }
        if !claim.asks {
            return Compared::Noted;
        }
        // If this rank is not as far, it claims its last call.
        let number = claim.number.min(ledger.count());
        Compared::Reply(Claim {
            question: claim.question,
            ..self.claim(claim.context, ledger, number)
        })
    }

    /// Notes what a claim says.
    fn take(&mut self, claim: &Claim, ledger: &Ledger) {
        self.agreed = self.agreed.max(claim.agreed);
        if !claim.asks {
            self.answered = self.answered.max(claim.question);
        }
        let differs = self.differs.into_iter();
        self.differs = differs
            .chain((claim.differs > 0).then_some(claim.differs))
            .min();
        match ledger.get(claim.number) {
            Some(own) if own.digest == claim.entry.digest => {
                self.agreed = self.agreed.max(claim.number);
            }
            Some(_) => {
                let differs = self.differs.unwrap_or(claim.number);
                self.differs = Some(differs.min(claim.number));
            }
            None if claim.number > ledger.count() => self.pending = Some(*claim),
            // Forgotten: looks for the first difference in what is left.
            None if self.differs.is_some() => self.agreed = self.agreed.max(claim.number),
            None => {}
        }
    }

    /// Continues the search for the first call that differs, which is `differs` or an earlier one.
    fn search(&self, differs: u64, claim: &Claim, ledger: &Ledger) -> Compared {
        let is_found = self.agreed.saturating_add(1) >= differs;
        let own = ledger.get(differs);
        let theirs = Some(claim.entry).filter(|_| claim.number == differs);
        if own.is_none() || is_found && theirs.is_some() {
            let signature = |entry: Entry| entry.signature;
            return Compared::Mismatch {
                number: differs,
                own: own.map(signature),
                theirs: theirs.map(signature),
            };
        }
        let number = if is_found {
            differs
        } else {
            self.agreed + (differs - self.agreed) / 2
        };
        // This rank cannot claim a call that it has forgotten.
        let number = if ledger.get(number).is_some() {
            number
        } else {
            differs
        };
        Compared::Reply(self.claim(claim.context, ledger, number))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ledger(calls: &[u64]) -> Ledger {
        let mut ledger = Ledger::default();
        for &call in calls {
            ledger.add([call, 0]);
        }
        ledger
    }

    /// The first rank asks about its last call; replies go to and fro until none comes.
    fn exchange(ledgers: [&Ledger; 2]) -> (Compared, [Comparison; 2]) {
        let mut known = [Comparison::default(); 2];
        let asked = known[0].claim(1, ledgers[0], ledgers[0].count());
        let mut claim = Claim {
            question: 1,
            asks: true,
            ..asked
        };
        for turn in 1..100 {
            let hears = turn % 2;
            match known[hears].compare(&claim, ledgers[hears]) {
                Compared::Reply(reply) => claim = reply,
                other => return (other, known),
            }
        }
        panic!("no end: {known:?}");
    }

    proptest! {
        /// Whichever calls differ, the first of them is found; if none does, both know that.
        #[test]
        fn the_first_difference_is_found(
            calls in prop::collection::vec(0_u64..3, 0..300),
            place in any::<prop::sample::Index>(),
            change in 0_u64..2,
            missing in 0_usize..3,
        ) {
            let mut others = calls.clone();
            let mut first = None;
            if !calls.is_empty() && change > 0 {
                let place = place.index(calls.len());
                others[place] += 3;
                first = Some(place as u64 + 1);
            }
            others.truncate(others.len().saturating_sub(missing));
            let far = others.len() as u64;
            let ledgers = [&ledger(&calls), &ledger(&others)];
            let (compared, known) = exchange(ledgers);
            match first.filter(|&first| first <= far) {
                None => {
                    prop_assert_eq!(compared, Compared::Noted);
                    prop_assert_eq!(known[0].agreed, far);
                    prop_assert_eq!(known[0].answered, 1);
                }
                Some(first) => {
                    let Compared::Mismatch { number, own, theirs } = compared else {
                        panic!("{compared:?}");
                    };
                    prop_assert_eq!(number, first);
                    prop_assert!(own.is_some() && theirs.is_some());
                    prop_assert_ne!(own, theirs);
                }
            }
        }
    }

    /// A rank that has not made a claimed call yet keeps the claim, and compares it then.
    #[test]
    fn what_is_claimed_ahead_is_compared_later() {
        let (far, mut near) = (ledger(&[1, 2]), ledger(&[1]));
        let mut known = Comparison::default();
        let claim = Comparison::default().claim(1, &far, 2);
        assert_eq!(known.compare(&claim, &near), Compared::Noted);
        let pending = known.pending.take().unwrap();
        near.add([3, 0]);
        // The other one is asked where the difference is.
        let Compared::Reply(reply) = known.compare(&pending, &near) else {
            panic!("{known:?}");
        };
        assert_eq!((reply.number, reply.differs), (1, 2));
    }

    #[test]
    fn a_difference_that_one_rank_has_forgotten_is_found_as_well() {
        let calls: Vec<u64> = (0..5000).collect();
        let mut others = calls.clone();
        others[3] = 9;
        others.truncate(4200);
        let (compared, _) = exchange([&ledger(&calls), &ledger(&others)]);
        assert!(
            matches!(compared, Compared::Mismatch { .. }),
            "{compared:?}"
        );
    }
}
