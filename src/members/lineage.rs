//! Communicators that come from one another by leaving ranks out, and how their ranks agree on the
//! next one. `crates/control/src/agreement.rs` has the agreement, and why it holds; here it meets
//! the control plane and time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spark_ccl_bootstrap::{Cancel, Session};
use spark_ccl_control::{Agreement, Outcome, Rule, Sight, Step, Watch};
use spark_ccl_log::Mutex;

use super::hearing::Hearing;
use crate::error::Error;
use crate::host::push_all;

/// Marks the contexts of shrunk communicators. It is in the place of the number or color of `split`
/// and `restricted`, which have only 32 bits.
const SHRUNK: u64 = u64::MAX - 1;
/// How long a rank sleeps before it looks at the others' proposals again; the time grows.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);
/// How long it may take until this rank hears that another one has given up what it proposed.
const NEWS_WITHIN: Duration = Duration::from_millis(500);
/// How many ranks an error text lists.
const MAX_NAMED: usize = 8;

/// A lineage: what a communicator and all that were shrunk from it have in common.
pub(crate) struct Lineage {
    /// The watch of the first communicator, which was not made by shrinking. Proposals are made
    /// there.
    root: Arc<Watch>,
    context: u64,
    /// `None` while a thread shrinks. The lock is not held meanwhile: under it, nothing that the
    /// thread logs would be emitted.
    agreement: Mutex<Option<Agreement>>,
}

/// A rank's part in agreeing on who goes on. Ends with [`accept`](Self::accept), or takes its
/// proposal back.
pub(crate) struct Bid<'a> {
    lineage: &'a Lineage,
    session: &'a Session,
    wish: Wish<'a>,
    /// The lineage's agreement, which goes back to it.
    agreement: Agreement,
    hearing: Hearing,
    /// World ranks of the last agreement.
    survivors: Vec<u32>,
    is_accepted: bool,
}

/// A rank's wish to agree on something.
pub(crate) struct Wish<'a> {
    /// The function that it called.
    pub(crate) operation: &'static str,
    /// The watch of the communicator on which it called that.
    pub(crate) watch: &'a Watch,
    /// World ranks of that communicator.
    pub(crate) members: &'a [u32],
    /// Which of them go on.
    pub(crate) rule: Rule,
    /// How long a rank may answer nothing until the rule takes it for silent.
    pub(crate) silent_after: Duration,
    /// Ends it from another thread.
    pub(crate) cancel: &'a Cancel,
}

impl Lineage {
    pub(crate) fn new(root: &Arc<Watch>, context: u64, me: u32, members: &[u32]) -> Arc<Self> {
        Arc::new(Self {
            root: Arc::clone(root),
            context,
            agreement: Mutex::new(Some(Agreement::new(me, members))),
        })
    }

    /// Begins to agree. `None` while another thread agrees.
    pub(crate) fn bid<'a>(&'a self, session: &'a Session, wish: Wish<'a>) -> Option<Bid<'a>> {
        Some(Bid {
            lineage: self,
            session,
            hearing: Hearing::new(wish.silent_after),
            wish,
            agreement: self.agreement.lock().take()?,
            survivors: Vec::new(),
            is_accepted: false,
        })
    }

    /// The context of these survivors in this generation. All other survivors and generations have
    /// other contexts.
    fn context_of(&self, session: &Session, generation: u64, survivors: &[u32]) -> u64 {
        let start = session.derive_context(self.context, generation, SHRUNK);
        survivors.iter().fold(start, |context, &member| {
            session.derive_context(context, SHRUNK, u64::from(member))
        })
    }
}

impl Bid<'_> {
    /// Waits until all survivors agree; returns the new context and its members. May be called
    /// again after an error.
    pub(crate) fn agree(&mut self, deadline: Instant) -> Result<(u64, Vec<u32>), Error> {
        let since = Instant::now();
        let given_up = self.agreement.begin().map_err(|_| self.exhausted())?;
        self.renounce(given_up);
        let mut pause = FIRST_PAUSE;
        let mut excluded: Option<Instant> = None;
        loop {
            self.wish.cancel.check()?;
            let sight = self.sight();
            self.check_presence(&sight)?;
            let (lineage, session) = (self.lineage, self.session);
            let step = self
                .agreement
                .step(&self.wish.rule, &sight, |generation, members| {
                    lineage.context_of(session, generation, members)
                });
            self.carry_out(&step);
            match step.outcome {
                Some(Outcome::Formed { context, members }) => {
                    self.survivors.clone_from(&members);
                    return Ok((context, members));
                }
                Some(Outcome::LeftOut { by }) => return Err(self.left_out(by)),
                Some(Outcome::Exhausted) => return Err(self.exhausted()),
                None => {}
            }
            match self.excluding(&sight) {
                None => excluded = None,
                Some(by) if excluded.get_or_insert_with(Instant::now).elapsed() >= NEWS_WITHIN => {
                    return Err(self.left_out(by));
                }
                Some(_) => {}
            }
            if Instant::now() >= deadline {
                return Err(self.disagreement(&sight, since.elapsed()));
            }
            // Others may wait for operations that this rank has in flight, here or in other
            // communicators.
            push_all();
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Whether a rank of the last agreement is gone.
    pub(crate) fn has_lost_survivor(&self) -> bool {
        let gone = self.lineage.root.gone();
        self.survivors.iter().any(|member| gone.contains(member))
    }

    /// Leaves the proposal as it is: this rank is in the resulting communicator.
    pub(crate) fn accept(mut self) {
        self.agreement.accept();
        self.is_accepted = true;
    }

    fn own(&self) -> u32 {
        self.session.rank()
    }

    /// The other ranks, as far as this one knows.
    fn sight(&mut self) -> Sight {
        let root = &self.lineage.root;
        // Before the proposals: a rank that is gone by now has sent all its proposals.
        let (ended, gone) = (root.ended(), root.gone());
        let mut sight = Sight {
            members: self.wish.members.iter().copied().collect(),
            gone,
            ended,
            silent: BTreeSet::new(),
            theirs: root.proposals(),
        };
        if matches!(self.wish.rule, Rule::Answering) {
            let awaited = self.awaited(&sight);
            sight.silent = self.hearing.silent(root, &awaited, Instant::now());
        }
        sight
    }

    /// The ranks that this one waits for.
    fn awaited(&self, sight: &Sight) -> BTreeSet<u32> {
        let told = self.agreement.told();
        let has_agreed = |rank: &u32| {
            let (Some(context), Some(theirs)) = (told.context, sight.theirs.get(rank)) else {
                return false;
            };
            if told.is_bound_to(context) {
                theirs.is_bound_to(context)
            } else {
                theirs.agrees_with(context)
            }
        };
        let candidates = &self.agreement.scope(&sight.members) - &sight.gone;
        let others = candidates.into_iter().filter(|&rank| rank != self.own());
        others.filter(|rank| !has_agreed(rank)).collect()
    }

    fn carry_out(&self, step: &Step) {
        self.renounce(step.renounced);
        if let Some(proposal) = &step.tell {
            self.lineage.root.propose(proposal.clone());
        }
    }

    /// Others may already have agreed to this rank's proposal. This tells them that it does not
    /// come.
    fn renounce(&self, context: Option<u64>) {
        if let Some(context) = context {
            self.lineage.root.renounce(context);
            // Streams that they have opened for it are closed.
            self.session.dismiss(context);
        }
    }

    /// The error if the others go on without this process.
    fn check_presence(&self, sight: &Sight) -> Result<(), Error> {
        if !sight.gone.contains(&self.own()) {
            return Ok(());
        }
        Err(Error::LeftOut {
            operation: self.wish.operation,
            problem: "the other ranks have lost the connection to this process, and go on without it; end it, or \
                have all ranks meet anew"
                .to_owned(),
        })
    }

    /// A survivor that goes on without this rank, because it was told that this rank is lost.
    fn excluding(&self, sight: &Sight) -> Option<u32> {
        if matches!(self.wish.rule, Rule::Answering) {
            return None;
        }
        let own = self.own();
        let survivors = self.agreement.members();
        let mut others = survivors.into_iter().filter(|&member| member != own);
        others.find(|member| {
            let theirs = sight.theirs.get(member);
            theirs.is_some_and(|theirs| theirs.context.is_some() && theirs.without.contains(&own))
        })
    }
}

impl Drop for Bid<'_> {
    fn drop(&mut self) {
        if !self.is_accepted {
            let step = self.agreement.give_up();
            self.carry_out(&step);
        }
        let nothing = Agreement::new(self.own(), &[]);
        let agreement = std::mem::replace(&mut self.agreement, nothing);
        *self.lineage.agreement.lock() = Some(agreement);
    }
}

/// The errors of a rank that cannot go on.
impl Bid<'_> {
    fn exhausted(&self) -> Error {
        self.error(
            "another rank has sent the last number of an agreement that there is, \
             which only a damaged or foreign program does; have all ranks meet anew"
                .to_owned(),
        )
    }

    fn left_out(&self, by: u32) -> Error {
        let why = match self.wish.rule {
            Rule::Named(_) => "which it was told is lost",
            Rule::Answering => "which did not answer in time, or was called lost",
        };
        Error::LeftOut {
            operation: self.wish.operation,
            problem: format!(
                "{} goes on without this rank, {why}; end this process, \
                or have all ranks meet anew",
                self.name(by)
            ),
        }
    }

    /// The obstacle to an agreement of the ranks.
    fn disagreement(&self, sight: &Sight, waited: Duration) -> Error {
        let what = match self.wish.rule {
            Rule::Named(_) => format!(
                "this rank goes on {}; {}; call it on all ranks that are left, \
                and name the same ranks as lost",
                self.without(&self.agreement.told().without),
                self.list(self.agreement.members(), |member| self
                    .differs(sight, member))
            ),
            Rule::Answering => self.obstacles(sight),
        };
        self.error(format!("no agreement within {waited:.1?}: {what}"))
    }

    /// How another rank's proposal differs from this one's.
    fn differs(&self, sight: &Sight, member: u32) -> Option<String> {
        let name = self.name(member);
        let (own, theirs) = (self.agreement.told(), sight.theirs.get(&member));
        let context = own.context?;
        if theirs.is_some_and(|theirs| theirs.agrees_with(context)) {
            return None;
        }
        Some(
            match theirs.filter(|theirs| theirs.generation == own.generation) {
                None => format!("{name} has not called it"),
                Some(theirs) if theirs.without != own.without => {
                    format!("{name} goes on {}", self.without(&theirs.without))
                }
                Some(_) => format!("{name} no longer waits"),
            },
        )
    }

    /// Why the ranks that answer do not go on.
    fn obstacles(&self, sight: &Sight) -> String {
        let candidates = &self.agreement.scope(&sight.members) - &sight.gone;
        let heard = &candidates - &sight.silent;
        if !self.agreement.is_majority(&heard, &sight.ended) {
            return format!(
                "this rank hears {} of {} ranks that may still work, and the others may go on \
                 without it: {}; if they do not, name them as lost on all ranks that are left \
                 (shrink)",
                heard.len(),
                (&sight.members - &sight.ended).len(),
                self.list(&sight.members - &heard, |member| {
                    (!sight.ended.contains(&member)).then(|| self.name(member))
                })
            );
        }
        let obstacle = |member| {
            let name = self.name(member);
            if !sight.silent.contains(&member) {
                return self.differs(sight, member);
            }
            let hears = heard.iter().find(|other| {
                let theirs = sight.theirs.get(other);
                theirs.is_some_and(|theirs| !theirs.silent.contains(&member))
            });
            let hears = hears.map(|other| format!(", but answers {}", self.name(*other)));
            let hears = hears.unwrap_or_default();
            Some(format!("{name} does not answer this rank{hears}"))
        };
        format!(
            "{}; call it on all ranks that are left, \
             or name those that do not come as lost (shrink)",
            self.list(candidates, obstacle)
        )
    }

    /// Some of the other ranks, with what `describe` says of them.
    fn list(&self, ranks: BTreeSet<u32>, describe: impl Fn(u32) -> Option<String>) -> String {
        let others = ranks.into_iter().filter(|&rank| rank != self.own());
        let mut named: Vec<String> = others.filter_map(describe).collect();
        let more = named.len().saturating_sub(MAX_NAMED);
        named.truncate(MAX_NAMED);
        if more > 0 {
            named.push(format!("and {more} more ranks"));
        }
        named.join("; ")
    }

    /// These world ranks, by their ranks in the communicator that is shrunk.
    fn without(&self, worlds: &[u32]) -> String {
        let members = self.wish.members.iter().zip(0..);
        let ranks = members.filter(|(world, _)| worlds.contains(world));
        let ranks: Vec<String> = ranks.map(|(_, rank): (_, u32)| rank.to_string()).collect();
        match &ranks[..] {
            [] => "with all ranks".to_owned(),
            [one] => format!("without rank {one}"),
            _ => format!("without ranks {}", ranks.join(", ")),
        }
    }

    fn name(&self, world: u32) -> String {
        let mut members = self.wish.members.iter();
        let rank = members.position(|&member| member == world);
        let rank = rank.map_or(u32::MAX, |rank| rank as u32);
        self.wish.watch.member(rank).to_string()
    }

    fn error(&self, problem: String) -> Error {
        Error::Shrink {
            operation: self.wish.operation,
            problem,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use spark_ccl_bootstrap::{Delivery, StreamHandler, StreamId, StreamKind, Via};
    use spark_ccl_control::Proposal;
    use spark_ccl_testing::hearing;

    use super::*;
    use crate::api::communicator::Communicator;
    use crate::world::deadline::deadline_in;

    #[test]
    fn the_last_generation_is_followed_by_an_error() {
        let soon = Duration::from_millis(300);
        let comms = Communicator::builder().init_timeout(soon).local(2).unwrap();
        comms[1].inner.lineage.root.propose(Proposal {
            generation: u64::MAX,
            ..Proposal::default()
        });
        let error = comms[0].shrink(&[]).err().unwrap();
        assert!(error.to_string().contains("no longer waits"), "{error}");
        let error = comms[0].shrink(&[]).err().unwrap();
        assert!(error.to_string().contains("the last number"), "{error}");
    }

    /// Under a lock, log lines would be emitted only after the agreement.
    #[test]
    fn what_a_thread_says_while_it_agrees_is_said_at_once() {
        let comms = Communicator::local(1).unwrap();
        let own = &comms[0].inner;
        let cancel = Cancel::new();
        let wish = || Wish {
            operation: "shrink",
            watch: &own.watch,
            members: &own.members,
            rule: Rule::Named(BTreeSet::new()),
            silent_after: Duration::MAX,
            cancel: &cancel,
        };
        let bid = own.lineage.bid(&own.world.session, wish()).unwrap();
        let said = Rc::new(Cell::new(0));
        let count = Rc::clone(&said);
        let hear = move |_: &str| count.set(count.get() + 1);
        hearing(hear, || spark_ccl_log::warn!("it takes long"));
        assert_eq!(said.get(), 1);
        assert!(own.lineage.bid(&own.world.session, wish()).is_none());
        drop(bid);
        assert!(own.lineage.bid(&own.world.session, wish()).is_some());
    }

    /// Otherwise nobody would ever close them.
    #[test]
    fn streams_of_a_communicator_that_a_rank_renounces_are_dropped() {
        let comms = Communicator::local(2).unwrap();
        let [caller, called] = [0, 1].map(|rank| &comms[rank].inner);
        let session = &called.world.session;
        let members = &called.members;
        let wish = Wish {
            operation: "shrink",
            watch: &called.watch,
            members,
            rule: Rule::Named(BTreeSet::new()),
            silent_after: Duration::MAX,
            cancel: &Cancel::new(),
        };
        let mut bid = called.lineage.bid(session, wish).unwrap();
        assert!(bid.agree(Instant::now()).is_err());
        let context = bid.agreement.told().context.unwrap();
        let stream_id = StreamId {
            context,
            kind: StreamKind::Tcp,
            number: 0,
        };
        let soon = deadline_in(Duration::from_secs(10));
        caller
            .world
            .session
            .reach(1, stream_id, &[Via::Unix], soon)
            .unwrap();
        drop(bid);
        let kept = Arc::new(AtomicU32::new(0));
        let handler: StreamHandler = {
            let kept = Arc::clone(&kept);
            Arc::new(move |_: Delivery| {
                // Looked at by the same thread.
                kept.fetch_add(1, Ordering::Relaxed);
                None
            })
        };
        session.handle_streams(context, &handler);
        assert_eq!(kept.load(Ordering::Relaxed), 0);
    }
}
