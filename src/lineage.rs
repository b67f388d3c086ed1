//! Communicators that come from one another by shrinking, and how their ranks agree on the next one.

use crate::error::Error;
use crate::host::push_all;
use spark_ccl_bootstrap::Session;
use spark_ccl_control::{Proposal, Watch};
use spark_ccl_log::{Mutex, MutexGuard};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Marks the contexts of shrunk communicators. It is in the place of the number or color of `split` and `restricted`,
/// which have only 32 bits.
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
    members: Vec<u32>,
    /// Locked while a thread shrinks.
    said: Mutex<Said>,
}

/// What this rank has told the others.
#[derive(Default)]
struct Said {
    /// Of its last proposal.
    generation: u64,
    /// The context of the last communicator that came of a proposal.
    accepted: Option<u64>,
}

/// A rank's part in agreeing on who goes on. Ends with [`accept`](Self::accept), or takes back what it has proposed.
pub(crate) struct Bid<'a> {
    lineage: &'a Lineage,
    session: &'a Session,
    /// Of the communicator that is shrunk.
    watch: &'a Watch,
    members: &'a [u32],
    /// World ranks that the new communicator leaves out.
    lost: BTreeSet<u32>,
    said: MutexGuard<'a, Said>,
    survivors: Vec<u32>,
    proposed: Option<Proposal>,
}

impl Lineage {
    pub(crate) fn new(root: &Arc<Watch>, context: u64, members: &[u32]) -> Arc<Self> {
        Arc::new(Self {
            root: Arc::clone(root),
            context,
            members: members.to_vec(),
            said: Mutex::default(),
        })
    }

    /// Begins to agree on a communicator of `members` without `lost`. `None` while another thread does so.
    pub(crate) fn bid<'a>(
        &'a self,
        session: &'a Session,
        watch: &'a Watch,
        members: &'a [u32],
        lost: BTreeSet<u32>,
    ) -> Option<Bid<'a>> {
        Some(Bid {
            lineage: self,
            session,
            watch,
            members,
            lost,
            said: self.said.try_lock()?,
            survivors: Vec::new(),
            proposed: None,
        })
    }

    /// The context of these survivors in this generation: no other survivors, and no other
    /// generation, have the same.
    fn context_of(&self, session: &Session, generation: u64, survivors: &[u32]) -> u64 {
        let start = session.derive_context(self.context, generation, SHRUNK);
        survivors.iter().fold(start, |context, &member| {
            session.derive_context(context, SHRUNK, u64::from(member))
        })
    }
}

impl Bid<'_> {
    /// Waits until all survivors propose the same; returns the new context and its members. May be called again after
    /// an error.
    ///
    /// A rank proposes each context at most once, and the generations of those that wait rise to the greatest. So a
    /// context has proposals of all its members only where all of them mean the same call.
    pub(crate) fn agree(&mut self, deadline: Instant) -> Result<(u64, Vec<u32>), Error> {
        let since = Instant::now();
        let next = self.said.generation.checked_add(1);
        // Else the next context would be one that was used before.
        let mut generation = next.ok_or_else(|| Error::Shrink {
            problem: "another rank has sent the last number of an agreement that there is, which only a damaged or \
                foreign program does; have all ranks meet anew"
                .to_owned(),
        })?;
        let mut pause = FIRST_PAUSE;
        let mut excluded: Option<Instant> = None;
        self.renounce();
        loop {
            // Checked before the proposals: a rank that is gone by now has sent all its proposals, and may have
            // accepted and left in order.
            let gone = self.lineage.root.gone();
            let theirs = self.lineage.root.proposals();
            if let Some(context) = self.agreed(&theirs) {
                return Ok((context, self.survivors.clone()));
            }
            let survivors = self.members.iter().copied();
            let survivors: Vec<u32> = survivors
                .filter(|member| !self.lost.contains(member) && !gone.contains(member))
                .collect();
            self.check_presence(&survivors)?;
            match self.excluding(&survivors, &theirs) {
                None => excluded = None,
                Some(by) if excluded.get_or_insert_with(Instant::now).elapsed() >= NEWS_WITHIN => {
                    return Err(self.excluded(by));
                }
                Some(_) => {}
            }
            let latest = self
                .others(&survivors)
                .filter_map(|member| theirs.get(&member))
                .map(|theirs| theirs.generation);
            generation = latest.max().unwrap_or(0).max(generation);
            self.propose(generation, survivors);
            if Instant::now() >= deadline {
                return Err(self.disagreement(&theirs, since.elapsed()));
            }
            // Others may wait for what this rank has in flight, here or in other communicators.
            push_all();
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// The context that all survivors propose, or have accepted before they went on, if they do.
    fn agreed(&self, theirs: &HashMap<u32, Proposal>) -> Option<u64> {
        let own = self.proposed.as_ref()?.context?;
        let agrees = |member| {
            let theirs = theirs.get(&member);
            theirs.is_some_and(|theirs| theirs.agrees_with(own))
        };
        self.others(&self.survivors).all(agrees).then_some(own)
    }

    /// Whether a rank of the last agreement is gone.
    pub(crate) fn has_lost_survivor(&self) -> bool {
        let gone = self.lineage.root.gone();
        self.survivors.iter().any(|member| gone.contains(member))
    }

    /// Leaves the proposal as it is: this rank is in the communicator that came of it.
    pub(crate) fn accept(mut self) {
        let proposed = self.proposed.take();
        self.said.accepted = proposed.and_then(|proposed| proposed.context);
    }

    fn own(&self) -> u32 {
        self.session.rank()
    }

    fn others<'b>(&self, survivors: &'b [u32]) -> impl Iterator<Item = u32> + use<'b> {
        let own = self.own();
        let survivors = survivors.iter().copied();
        survivors.filter(move |&member| member != own)
    }

    /// Proposes a communicator of these ranks, once.
    fn propose(&mut self, generation: u64, survivors: Vec<u32>) {
        let proposed = self.proposed.as_ref();
        if proposed.is_some_and(|proposed| proposed.generation == generation)
            && survivors == self.survivors
        {
            return;
        }
        self.renounce();
        let context = self
            .lineage
            .context_of(self.session, generation, &survivors);
        let all = self.lineage.members.iter().copied();
        let proposal = Proposal {
            generation,
            context: Some(context),
            accepted: self.said.accepted,
            without: all.filter(|member| !survivors.contains(member)).collect(),
        };
        self.said.generation = generation;
        self.survivors = survivors;
        self.lineage.root.propose(proposal.clone());
        self.proposed = Some(proposal);
    }

    /// Others may already have agreed to this rank's proposal. This tells them that it does not
    /// come.
    fn renounce(&mut self) -> Option<Proposal> {
        let proposed = self.proposed.take()?;
        if let Some(context) = proposed.context {
            self.lineage.root.renounce(context);
            // Streams that they have opened for it are closed.
            self.session.dismiss(context);
        }
        Some(proposed)
    }

    /// The error if the others go on without this process.
    fn check_presence(&self, survivors: &[u32]) -> Result<(), Error> {
        if survivors.contains(&self.own()) {
            return Ok(());
        }
        Err(Error::Shrink {
            problem: "the other ranks have lost the connection to this process, and go on without it; end it, or \
                have all ranks meet anew"
                .to_owned(),
        })
    }

    /// One of the survivors that goes on without this rank.
    fn excluding(&self, survivors: &[u32], theirs: &HashMap<u32, Proposal>) -> Option<u32> {
        let own = self.own();
        self.others(survivors).find(|member| {
            let theirs = theirs.get(member);
            theirs.is_some_and(|theirs| theirs.context.is_some() && theirs.without.contains(&own))
        })
    }

    fn excluded(&self, by: u32) -> Error {
        Error::Shrink {
            problem: format!(
                "{} goes on without this rank, which it was told is lost; end this process, or have all ranks meet \
                anew",
                self.name(by)
            ),
        }
    }

    /// What keeps the ranks from agreeing.
    fn disagreement(&self, theirs: &HashMap<u32, Proposal>, waited: Duration) -> Error {
        let own = self.proposed.as_ref();
        let describe = |member| {
            let name = self.name(member);
            let (own, theirs) = (own?, theirs.get(&member));
            let context = own.context?;
            if theirs.is_some_and(|theirs| theirs.agrees_with(context)) {
                return None;
            }
            match theirs.filter(|theirs| theirs.generation == own.generation) {
                None => Some(format!("{name} has not called it")),
                Some(theirs) if theirs.without != own.without => {
                    Some(format!("{name} goes on {}", self.without(&theirs.without)))
                }
                Some(_) => Some(format!("{name} no longer waits")),
            }
        };
        let mut named: Vec<String> = self.others(&self.survivors).filter_map(describe).collect();
        let more = named.len().saturating_sub(MAX_NAMED);
        named.truncate(MAX_NAMED);
        if more > 0 {
            named.push(format!("and {more} more ranks"));
        }
        let named = named.join("; ");
        let own = self.without(own.map_or(&[], |own| &own.without));
        Error::Shrink {
            problem: format!(
                "no agreement within {waited:.1?}: this rank goes on {own}; {named}; call it on all ranks that are \
                left, and name the same ranks as lost"
            ),
        }
    }

    /// These world ranks, by their ranks in the communicator that is shrunk.
    fn without(&self, worlds: &[u32]) -> String {
        let ranks = (0..self.members.len()).filter(|&rank| worlds.contains(&self.members[rank]));
        let ranks: Vec<String> = ranks.map(|rank| rank.to_string()).collect();
        match &ranks[..] {
            [] => "with all ranks".to_owned(),
            [one] => format!("without rank {one}"),
            _ => format!("without ranks {}", ranks.join(", ")),
        }
    }

    fn name(&self, world: u32) -> String {
        let rank = self.members.iter().position(|&member| member == world);
        let rank = rank.map_or(u32::MAX, |rank| rank as u32);
        self.watch.member(rank).to_string()
    }
}

impl Drop for Bid<'_> {
    fn drop(&mut self) {
        if let Some(proposed) = self.renounce() {
            self.lineage.root.propose(Proposal {
                context: None,
                ..proposed
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::Communicator;
    use crate::deadline::deadline_in;
    use spark_ccl_bootstrap::{Attendant, Delivery, Kind, Purpose, Via};
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn the_last_generation_is_followed_by_an_error() {
        let comm = Communicator::local(1).unwrap().remove(0);
        comm.inner.lineage.said.lock().generation = u64::MAX - 1;
        let shrunk = comm.shrink(&[]).unwrap();
        let error = shrunk.shrink(&[]).err().unwrap();
        assert!(error.to_string().contains("the last number"), "{error}");
    }

    /// Otherwise nobody would ever close them.
    #[test]
    fn streams_of_a_communicator_that_a_rank_renounces_are_dropped() {
        let comms = Communicator::local(2).unwrap();
        let [caller, called] = [0, 1].map(|rank| &comms[rank].inner);
        let session = &called.world.session;
        let members = &called.members;
        let bid = called
            .lineage
            .bid(session, &called.watch, members, BTreeSet::new());
        let mut bid = bid.unwrap();
        bid.propose(1, members.clone());
        let context = bid.proposed.as_ref().unwrap().context.unwrap();
        let purpose = Purpose {
            context,
            kind: Kind::Tcp,
            number: 0,
        };
        let soon = deadline_in(Duration::from_secs(10));
        caller
            .world
            .session
            .reach(1, purpose, &[Via::Unix], soon)
            .unwrap();
        drop(bid);
        let kept = Arc::new(AtomicU32::new(0));
        let attendant: Attendant = {
            let kept = Arc::clone(&kept);
            Arc::new(move |_: Delivery| {
                // Looked at by the same thread.
                kept.fetch_add(1, Ordering::Relaxed);
                None
            })
        };
        session.attend(context, &attendant);
        assert_eq!(kept.load(Ordering::Relaxed), 0);
    }
}
