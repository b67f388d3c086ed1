//! Worlds whose ranks are threads of one process, connected by socket pairs.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use socket2::{Domain, Socket, Type};
use spark_ccl_fork::Unshared;
use spark_ccl_log::Mutex;
use spark_ccl_seal::Stream;

use crate::host::{self, HostId};
use crate::link_streams::{Contexts, Delivery, End};
use crate::negotiation::{RETRY_PAUSE, Talks};
use crate::secret::random;
use crate::stream_table::Mailbox;
use crate::{Error, PeerInfo, Purpose, Via, hello_check, net};

/// The most retries, in one call, of talks that the system holds up.
const MAX_ROUNDS: u32 = 2000;

/// A rank of a world within this process. Dropping it during initialisation fails the
/// initialisation of all ranks.
#[derive(Debug)]
pub(crate) struct LocalRank {
    rank: u32,
    world: Arc<LocalWorld>,
}

#[derive(Debug)]
struct LocalWorld {
    mailboxes: Vec<Arc<Mailbox>>,
    contexts: Vec<Arc<Contexts>>,
    /// The streams of links that exist or existed, as lower rank, higher rank, purpose.
    established: Mutex<HashSet<(u32, u32, Purpose)>>,
    /// The talks in progress, by rank. A thread that begins one advances them all.
    talks: Mutex<Vec<Talks>>,
    state: Mutex<State>,
}

/// The outcome of one attempt to advance all talks.
enum Advance {
    Progressed,
    /// Some can continue in a moment.
    Held,
    /// None can, until another rank attends.
    Nothing,
}

#[derive(Debug)]
struct State {
    /// By rank.
    reports: Vec<Option<Result<(), String>>>,
    departed: BTreeSet<u32>,
    /// The outcome of the initialisation, once there is one.
    outcome: Option<Result<(), Error>>,
}

impl LocalRank {
    /// Makes a world: its nonce, the table of its ranks, and the ranks.
    #[expect(clippy::type_complexity, reason = "used once")]
    pub(crate) fn all(size: u32) -> Result<([u8; 32], Vec<PeerInfo>, Vec<LocalRank>), Error> {
        let host = host::name();
        let host_id = HostId::of_this_process();
        let peers = (0..size)
            .map(|rank| PeerInfo {
                rank,
                host: host.clone(),
                host_id,
                pid: std::process::id(),
                addresses: Vec::new(),
                rdma_ports: 0,
                unix_name: String::new(),
            })
            .collect();
        let world = Arc::new(LocalWorld {
            mailboxes: (0..size).map(|_| Arc::default()).collect(),
            contexts: (0..size).map(|_| Arc::default()).collect(),
            established: Mutex::default(),
            talks: Mutex::new((0..size).map(|_| Talks::default()).collect()),
            state: Mutex::new(State {
                reports: vec![None; size as usize],
                departed: BTreeSet::new(),
                outcome: None,
            }),
        });
        let local_ranks = (0..size)
            .map(|rank| LocalRank {
                rank,
                world: world.clone(),
            })
            .collect();
        Ok((random()?, peers, local_ranks))
    }

    pub(crate) fn mailbox(&self) -> &Arc<Mailbox> {
        &self.world.mailboxes[self.rank as usize]
    }

    pub(crate) fn contexts(&self) -> &Arc<Contexts> {
        &self.world.contexts[self.rank as usize]
    }

    /// Makes a link's stream and delivers both of its ends, unless it exists already.
    pub(crate) fn reach(&self, peer: u32, purpose: Purpose, ways: &[Via]) -> Result<(), Error> {
        let (low, high) = (self.rank.min(peer), self.rank.max(peer));
        let mut established = self.world.established.lock();
        if established.contains(&(low, high, purpose)) {
            return Ok(());
        }
        let (near, far) = pair(ways.first().copied().unwrap_or(Via::Unix))?;
        established.insert((low, high, purpose));
        drop(established);
        let ends = [
            (self.rank, peer, near, End::Caller),
            (peer, self.rank, far, End::Called),
        ];
        for (own, peer, stream, end) in ends {
            let stream = Ok((stream, end));
            self.world.deliver(
                own,
                Delivery {
                    peer,
                    purpose,
                    stream,
                },
            );
        }
        self.talk();
        Ok(())
    }

    /// Delivers streams that arrived before this rank attended to their context.
    pub(crate) fn deliver(&self, early: Vec<Delivery>) {
        for delivery in early {
            self.world.deliver(self.rank, delivery);
        }
        self.talk();
    }

    /// Forgets the streams of a context that is over for both of their ranks.
    pub(crate) fn forget(&self, context: u64) {
        let is_over = |rank: u32| self.world.contexts[rank as usize].is_over(context);
        self.world
            .established
            .lock()
            .retain(|&(low, high, purpose)| {
                purpose.context != context || !is_over(low) || !is_over(high)
            });
        self.talk();
    }

    /// Advances all talks as far as possible.
    fn talk(&self) {
        for _ in 0..MAX_ROUNDS {
            match self.world.advance_talks() {
                Advance::Progressed => {}
                Advance::Held => std::thread::sleep(RETRY_PAUSE),
                Advance::Nothing => return,
            }
        }
    }

    pub(crate) fn connect(
        &self,
        peer: &PeerInfo,
        purpose: Purpose,
        via: Via,
    ) -> Result<Stream, Error> {
        if self.world.state.lock().departed.contains(&peer.rank) {
            return Err(Error::Lost(format!("{peer} has ended")));
        }
        let (near, far) = pair(via)?;
        self.world.mailboxes[peer.rank as usize].file(self.rank, purpose, far);
        Ok(near)
    }

    pub(crate) fn report(
        &self,
        result: Result<(), String>,
        peers: &[PeerInfo],
    ) -> Result<(), Error> {
        let mut state = self.world.state.lock();
        let own = &mut state.reports[self.rank as usize];
        if own.is_some() {
            return Err(Error::Argument("a session is sealed only once".to_owned()));
        }
        *own = Some(result);
        if state.reports.iter().all(Option::is_some) {
            let failed: Vec<(&PeerInfo, &str)> = peers
                .iter()
                .zip(&state.reports)
                .filter_map(|(peer, report)| {
                    Some((peer, report.as_ref()?.as_ref().err()?.as_str()))
                })
                .collect();
            let outcome = if failed.is_empty() {
                Ok(())
            } else {
                Err(Error::Links(hello_check::links(&[], &failed)))
            };
            return self.world.conclude(&mut state, outcome);
        }
        Ok(())
    }

    /// Fails the initialisation of all ranks because some have not reported in time. If it has
    /// ended meanwhile, returns that outcome.
    pub(crate) fn give_up(&self) -> Result<(), Error> {
        let mut state = self.world.state.lock();
        let silent: Vec<u32> = (0..)
            .zip(&state.reports)
            .filter(|(_, report)| report.is_none())
            .map(|(rank, _)| rank)
            .collect();
        let late = Error::Timeout(format!(
            "{} did not say in time that all links are up",
            hello_check::ranks_text(&silent)
        ));
        self.world.conclude(&mut state, Err(late))
    }
}

fn pair(via: Via) -> Result<(Stream, Stream), Error> {
    let pair = match via {
        Via::Unix => Socket::pair(Domain::UNIX, Type::STREAM, None),
        Via::Tcp { .. } => net::tcp_pair(),
    };
    pair.map(|(near, far)| (Unshared::new(near).into(), Unshared::new(far).into()))
        .map_err(|error| Error::os("connect a pair of sockets", &error))
}

impl LocalWorld {
    fn deliver(&self, rank: u32, delivery: Delivery) {
        let (rank, peer) = (rank as usize, delivery.peer);
        let context = delivery.purpose.context;
        if let Some(talk) = self.contexts[rank].deliver(delivery) {
            self.talks.lock()[rank].begin(peer, context, talk);
        }
    }

    fn advance_talks(&self) -> Advance {
        let mut talks = self.talks.lock();
        let mut progressed = false;
        for (talks, contexts) in talks.iter_mut().zip(&self.contexts) {
            progressed |= talks.go_on(|context| contexts.is_over(context));
        }
        // The kernel may take a while to deliver what a TCP connection's other end wrote.
        let is_on_its_way =
            |(peer, context): (u32, u64)| self.contexts[peer as usize].is_attended(context);
        if progressed {
            Advance::Progressed
        } else if talks.iter().any(Talks::any_to_retry)
            || talks.iter().flat_map(Talks::reading).any(is_on_its_way)
        {
            Advance::Held
        } else {
            Advance::Nothing
        }
    }

    /// Ends the initialisation of all ranks with the same outcome. The first outcome counts, and is
    /// returned.
    fn conclude(&self, state: &mut State, outcome: Result<(), Error>) -> Result<(), Error> {
        let outcome = state.outcome.get_or_insert(outcome).clone();
        for mailbox in &self.mailboxes {
            mailbox.conclude(outcome.clone());
        }
        outcome
    }
}

impl Drop for LocalRank {
    fn drop(&mut self) {
        let mut state = self.world.state.lock();
        state.departed.insert(self.rank);
        let text = format!(
            "rank {} of this process ended during initialisation",
            self.rank
        );
        // Has no effect once the initialisation is over.
        let _ = self.world.conclude(&mut state, Err(Error::Lost(text)));
        for mailbox in &self.world.mailboxes {
            mailbox.depart(self.rank);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn streams_are_forgotten_when_their_context_is_over_for_both_ranks() {
        let (_, _, ranks) = LocalRank::all(2).unwrap();
        for context in [1, 2] {
            let purpose = Purpose {
                context,
                kind: Kind::Tcp,
                number: 0,
            };
            ranks[0].reach(1, purpose, &[Via::Unix]).unwrap();
        }
        let count = || ranks[0].world.established.lock().len();
        for (rank, left) in [(0, 2), (1, 1)] {
            ranks[rank].contexts().dismiss(1);
            ranks[rank].forget(1);
            assert_eq!(count(), left);
        }
    }
}
