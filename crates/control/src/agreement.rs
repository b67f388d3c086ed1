//! How the remaining ranks of a communicator agree on which of them go on. Knows proposals, and a
//! rank's view of the others; knows no clock, no stream and no communicator.
//!
//! A rank proposes members. When it sees all of them make this proposal, it *binds* itself to it. A
//! communicator is *formed* when a rank sees all its members bound to it. A bound rank admits no
//! members from outside, so the sets only shrink from there, and the others follow a rank that is
//! bound.
//!
//! **Why two communicators without a common rank never go on** (by [`Rule::Answering`]). A proposal
//! must have a majority of the communicator that was formed last. It also needs a majority of every
//! later proposal that a rank is bound to, because others may have formed that one. Exactly half is
//! a majority if it has the first rank. Ranks that have ended for sure do not count. A rank that is
//! silent or lost counts, and so does one whose host refuses connections: it may still work.
//!
//! Let X and Y be formed from the same communicator P. If they have a rank in common, it bound
//! itself to both, and the later one is a majority of the earlier one. If not, suppose Y's ranks
//! know that a member of X has ended. It bound itself to X and said so before its end, and the
//! control streams keep that order: Y's ranks know of X, and are left out. So neither knows of an
//! end within the other. Then both are majorities of a part of P that holds both, so both are
//! halves of the same part, and only one has its first rank. The streams keep no order for a rank
//! that ends while it announces its bond, after one neighbour and before the next. If a member of X
//! does, and the network between X and Y is cut at the same moment, both may go on.
//!
//! A rank's proposals are ordered (greater generations, then fewer members). So two ranks never
//! bind themselves to proposals A and B where one rank gave up A for B, and the other B for A.

use std::collections::{BTreeSet, HashMap};

use crate::proposal::{Bound, Proposal};

/// How many ranks a proposal can list.
pub(crate) const MAX_LISTED: usize = 300;

/// A rank's knowledge of the agreements in a lineage.
pub struct Agreement {
    me: u32,
    /// World ranks of the first communicator's members, in order.
    all: Vec<u32>,
    /// The generation of the latest proposal.
    generation: u64,
    /// The communicator that was formed last.
    formed: Bond,
    /// Later proposals that this rank is bound to: others may have formed them.
    bonds: Vec<Bond>,
    /// The last proposal.
    last: Option<Bond>,
    /// Whether this rank still makes it.
    proposes: bool,
    /// The proposal that was sent last.
    told: Proposal,
    /// Whether `told` has changed since it was sent.
    has_news: bool,
}

/// A proposal and its members.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bond {
    generation: u64,
    context: u64,
    members: BTreeSet<u32>,
}

/// Which members go on.
#[derive(Debug, Clone)]
pub enum Rule {
    /// All but these, and the ranks that are gone.
    Named(BTreeSet<u32>),
    /// All but the ranks that are gone, or silent for all others, if the rest is a majority.
    Answering,
}

/// A rank's view of the others, by world ranks.
#[derive(Debug, Clone, Default)]
pub struct Sight {
    /// Members of the communicator that the agreement follows.
    pub members: BTreeSet<u32>,
    /// Ranks that have ended, or cannot be reached.
    pub gone: BTreeSet<u32>,
    /// The ranks of `gone` that have ended for sure: see [`Watch::ended`](crate::Watch::ended).
    pub ended: BTreeSet<u32>,
    /// Members that do not answer this rank.
    pub silent: BTreeSet<u32>,
    /// The latest proposals of the other ranks.
    pub theirs: HashMap<u32, Proposal>,
}

/// The result of [`Agreement::step`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The context of a proposal that this rank has given up.
    pub renounced: Option<u64>,
    /// The proposal to send to all others, before acting on the outcome.
    pub tell: Option<Proposal>,
    /// How the agreement ended, if it has.
    pub outcome: Option<Outcome>,
}

/// How an agreement ends.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All members are bound to this communicator.
    Formed {
        /// Its context.
        context: u64,
        /// World ranks of its members, in order.
        members: Vec<u32>,
    },
    /// A rank is bound to a communicator without this one.
    LeftOut {
        /// That rank.
        by: u32,
    },
    /// There is no greater generation.
    Exhausted,
}

impl Agreement {
    /// For rank `me` of the world, in a communicator of the world ranks `all`.
    pub fn new(me: u32, all: &[u32]) -> Self {
        Self {
            me,
            all: all.to_vec(),
            generation: 0,
            formed: Bond {
                generation: 0,
                context: 0,
                members: all.iter().copied().collect(),
            },
            bonds: Vec::new(),
            last: None,
            proposes: false,
            told: Proposal::default(),
            has_news: false,
        }
    }

    /// Starts a new agreement: its proposals are later than all before. Returns the context of a
    /// proposal that this gives up.
    ///
    /// # Errors
    /// [`Outcome::Exhausted`] where there is no greater generation.
    pub fn begin(&mut self) -> Result<Option<u64>, Outcome> {
        let next = self.generation.checked_add(1);
        self.generation = next.ok_or(Outcome::Exhausted)?;
        let proposed = self.proposed().map(|proposed| proposed.context);
        self.proposes = false;
        Ok(proposed)
    }

    /// Ends an agreement: the proposed communicator was made.
    pub fn accept(&mut self) {
        self.proposes = false;
    }

    /// Gives up. The step has the messages to the others.
    pub fn give_up(&mut self) -> Step {
        let renounced = self.proposed().map(|proposed| proposed.context);
        self.proposes = false;
        let without = self.told.without.clone();
        Step {
            renounced,
            tell: self.telling(without, Vec::new()),
            outcome: None,
        }
    }

    /// The proposal that was sent last.
    pub fn told(&self) -> &Proposal {
        &self.told
    }

    /// World ranks of the members that this rank proposes.
    pub fn members(&self) -> BTreeSet<u32> {
        let proposed = self.proposed();
        proposed.map_or_else(BTreeSet::new, |proposed| proposed.members.clone())
    }

    /// Adapts the proposal to what this rank sees. `context_of` derives a context from a generation
    /// and members in order, a different one for each pair.
    pub fn step(
        &mut self,
        rule: &Rule,
        sight: &Sight,
        context_of: impl Fn(u64, &[u32]) -> u64,
    ) -> Step {
        if self.advance(&sight.theirs) {
            let (without, silent) = (self.told.without.clone(), self.told.silent.clone());
            return Step {
                renounced: None,
                tell: self.telling(without, silent),
                outcome: Some(self.form()),
            };
        }
        if let Some(by) = self.follow(rule, sight) {
            return Step {
                outcome: Some(Outcome::LeftOut { by }),
                ..Step::default()
            };
        }
        let wanted = self.wanted(rule, sight);
        let before = self.proposed().map(|proposed| proposed.context);
        let outcome = self.propose(&wanted, rule, sight, context_of).err();
        let now = self.proposed().map(|proposed| proposed.context);
        let without = self.all.iter().copied();
        let without = without.filter(|rank| !wanted.contains(rank)).collect();
        let silent = match rule {
            Rule::Named(lost) => lost,
            Rule::Answering => &sight.silent,
        };
        Step {
            renounced: before.filter(|_| before != now),
            tell: self.telling(without, silent.iter().copied().collect()),
            outcome,
        }
    }

    /// Whether these members are a majority of the communicator that was formed last, and of all
    /// that others may have formed since.
    pub fn is_majority(&self, members: &BTreeSet<u32>, ended: &BTreeSet<u32>) -> bool {
        self.bases().all(|base| {
            let left = self.ordered(&(&base.members - ended));
            let here = left.iter().filter(|rank| members.contains(rank)).count();
            let has_first = left.first().is_some_and(|first| members.contains(first));
            2 * here > left.len() || (2 * here == left.len() && has_first)
        })
    }

    /// The subset of `members` that may still go on.
    pub fn scope(&self, members: &BTreeSet<u32>) -> BTreeSet<u32> {
        self.bases()
            .fold(members.clone(), |scope, base| &scope & &base.members)
    }

    fn bases(&self) -> impl Iterator<Item = &Bond> {
        std::iter::once(&self.formed).chain(&self.bonds)
    }

    fn proposed(&self) -> Option<&Bond> {
        self.last.as_ref().filter(|_| self.proposes)
    }

    fn ordered(&self, members: &BTreeSet<u32>) -> Vec<u32> {
        let all = self.all.iter().copied();
        all.filter(|rank| members.contains(rank)).collect()
    }

    /// Binds this rank to its proposal once all members make it. Returns whether all are bound to
    /// it.
    ///
    /// The bond stays when this rank gives up, also by [`Rule::Named`]: others may have formed the
    /// communicator, and a later agreement must not go on beside it. So `recover` may leave out a
    /// rank that a `shrink` has left out, although that `shrink` has failed.
    fn advance(&mut self, theirs: &HashMap<u32, Proposal>) -> bool {
        let Some(proposed) = self.proposed() else {
            return false;
        };
        let context = proposed.context;
        let all = |holds: fn(&Proposal, u64) -> bool| {
            let mut others = proposed.members.iter().filter(|&&rank| rank != self.me);
            others.all(|rank| theirs.get(rank).is_some_and(|it| holds(it, context)))
        };
        let (are_agreed, are_bound) = (all(Proposal::agrees_with), all(Proposal::is_bound_to));
        if are_agreed && !self.told.is_bound_to(context) {
            let bond = proposed.clone();
            self.told.bound = Some(Bound {
                generation: bond.generation,
                context,
                without: self.told.without.clone(),
            });
            self.has_news = true;
            self.bonds.push(bond);
        }
        are_agreed && are_bound
    }

    fn form(&mut self) -> Outcome {
        if let Some(formed) = self.proposed().cloned() {
            self.bonds.clear();
            self.formed = formed;
        }
        Outcome::Formed {
            context: self.formed.context,
            members: self.ordered(&self.formed.members),
        }
    }

    /// Binds this rank to the proposal that others are bound to. Returns a rank that is bound to a
    /// communicator without this one.
    fn follow(&mut self, rule: &Rule, sight: &Sight) -> Option<u32> {
        if matches!(rule, Rule::Named(_)) {
            return None;
        }
        loop {
            let scope = self.scope(&sight.members);
            let mut bounds = scope.iter().filter_map(|&rank| {
                let bound = sight.theirs.get(&rank)?.bound.as_ref()?;
                let is_old = bound.generation < self.formed.generation
                    || self.bases().any(|base| base.context == bound.context);
                (!is_old && rank != self.me).then_some((rank, bound))
            });
            let (by, bound) = bounds.next()?;
            let members = self.all.iter().copied();
            let members = members.filter(|rank| !bound.without.contains(rank));
            let bond = Bond {
                generation: bound.generation,
                context: bound.context,
                members: members.collect(),
            };
            if !bond.members.contains(&self.me) {
                return Some(by);
            }
            self.bonds.push(bond);
        }
    }

    /// The members with which this rank would go on.
    fn wanted(&self, rule: &Rule, sight: &Sight) -> BTreeSet<u32> {
        match rule {
            Rule::Named(lost) => &(&sight.members - &sight.gone) - lost,
            Rule::Answering => {
                let candidates = &self.scope(&sight.members) - &sight.gone;
                let heard = &candidates - &sight.silent;
                // Silent for this rank, and for all others that it hears.
                let mut silent = &candidates & &sight.silent;
                for other in heard.iter().filter(|&&rank| rank != self.me) {
                    let theirs = sight.theirs.get(other);
                    let theirs = theirs.map_or(&[][..], |theirs| &theirs.silent);
                    silent.retain(|rank| theirs.contains(rank));
                }
                &candidates - &silent
            }
        }
    }

    /// Proposes these members, unless they are too few.
    fn propose(
        &mut self,
        wanted: &BTreeSet<u32>,
        rule: &Rule,
        sight: &Sight,
        context_of: impl Fn(u64, &[u32]) -> u64,
    ) -> Result<(), Outcome> {
        let left_out = self.all.len() - wanted.len();
        let may_go_on = left_out <= MAX_LISTED && self.is_majority(wanted, &sight.ended);
        if matches!(rule, Rule::Answering) && !may_go_on {
            self.proposes = false;
            return Ok(());
        }
        let others = wanted.iter().filter_map(|rank| sight.theirs.get(rank));
        let latest = others.map(|theirs| theirs.generation).max();
        let mut generation = latest.unwrap_or(0).max(self.generation);
        if let Some(last) = &self.last {
            let is_same = last.generation == generation;
            if is_same && self.proposes && last.members == *wanted {
                return Ok(());
            }
            let follows = wanted.is_subset(&last.members) && *wanted != last.members;
            if is_same && !follows {
                generation = generation.checked_add(1).ok_or(Outcome::Exhausted)?;
            }
        }
        self.generation = generation;
        self.proposes = true;
        self.last = Some(Bond {
            generation,
            context: context_of(generation, &self.ordered(wanted)),
            members: wanted.clone(),
        });
        Ok(())
    }

    /// The proposal to send to the others; `None` if they have it.
    fn telling(&mut self, mut without: Vec<u32>, mut silent: Vec<u32>) -> Option<Proposal> {
        without.truncate(MAX_LISTED);
        silent.truncate(MAX_LISTED);
        let proposal = Proposal {
            generation: self.generation,
            context: self.proposed().map(|proposed| proposed.context),
            bound: self.told.bound.clone(),
            without,
            silent,
        };
        let is_news = std::mem::take(&mut self.has_news) || proposal != self.told;
        self.told = proposal;
        is_news.then(|| self.told.clone())
    }
}

#[cfg(test)]
mod tests;
