//! Worlds whose ranks are threads of one process, connected by socket pairs.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use socket2::{Domain, Socket, Type};
use spark_ccl_fork::Unshared;
use spark_ccl_log::Mutex;
use spark_ccl_seal::Stream;

use crate::host::{self, HostId};
use crate::link_streams::{Contexts, Delivery, StreamEnd};
use crate::negotiation::{Negotiations, RETRY_PAUSE};
use crate::secret::random;
use crate::stream_table::StreamTable;
use crate::{Error, PeerInfo, StreamId, Via, hello_check, net};

/// The most retries, in one call, of negotiations that the system holds up.
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
    stream_tables: Vec<Arc<StreamTable>>,
    contexts: Vec<Arc<Contexts>>,
    /// The streams of links that exist or existed, as lower rank, higher rank, id.
    established: Mutex<HashSet<(u32, u32, StreamId)>>,
    /// The negotiations in progress, by rank. A thread that begins one advances them all.
    negotiations: Mutex<Vec<Negotiations>>,
    state: Mutex<State>,
}

/// The outcome of one attempt to advance all negotiations.
enum Advance {
    Progressed,
    /// Some can continue in a moment.
    Held,
    /// None can, until another rank handles streams.
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
            stream_tables: (0..size).map(|_| Arc::default()).collect(),
            contexts: (0..size).map(|_| Arc::default()).collect(),
            established: Mutex::default(),
            negotiations: Mutex::new((0..size).map(|_| Negotiations::default()).collect()),
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

    pub(crate) fn stream_table(&self) -> &Arc<StreamTable> {
        &self.world.stream_tables[self.rank as usize]
    }

    pub(crate) fn contexts(&self) -> &Arc<Contexts> {
        &self.world.contexts[self.rank as usize]
    }

    /// Makes a link's stream and delivers both of its ends, unless it exists already.
    pub(crate) fn reach(&self, peer: u32, stream_id: StreamId, ways: &[Via]) -> Result<(), Error> {
        let (low, high) = (self.rank.min(peer), self.rank.max(peer));
        let mut established = self.world.established.lock();
        if established.contains(&(low, high, stream_id)) {
            return Ok(());
        }
        let (near, far) = pair(ways.first().copied().unwrap_or(Via::Unix))?;
        established.insert((low, high, stream_id));
        drop(established);
        let ends = [
            (self.rank, peer, near, StreamEnd::Connector),
            (peer, self.rank, far, StreamEnd::Listener),
        ];
        for (own, peer, stream, end) in ends {
            let stream = Ok((stream, end));
            self.world.deliver(
                own,
                Delivery {
                    peer,
                    stream_id,
                    stream,
                },
            );
        }
        self.negotiation();
        Ok(())
    }

    /// Delivers streams that arrived before this rank had a handler for their context.
    pub(crate) fn deliver(&self, early: Vec<Delivery>) {
        for delivery in early {
            self.world.deliver(self.rank, delivery);
        }
        self.negotiation();
    }

    /// Forgets the streams of a context that is over for both of their ranks.
    pub(crate) fn forget(&self, context: u64) {
        let is_over = |rank: u32| self.world.contexts[rank as usize].is_over(context);
        self.world
            .established
            .lock()
            .retain(|&(low, high, stream_id)| {
                stream_id.context != context || !is_over(low) || !is_over(high)
            });
        self.negotiation();
    }

    /// Advances all negotiations as far as possible.
    fn negotiation(&self) {
        for _ in 0..MAX_ROUNDS {
            match self.world.advance_negotiations() {
                Advance::Progressed => {}
                Advance::Held => std::thread::sleep(RETRY_PAUSE),
                Advance::Nothing => return,
            }
        }
    }

    pub(crate) fn connect(
        &self,
        peer: &PeerInfo,
        stream_id: StreamId,
        via: Via,
    ) -> Result<Stream, Error> {
        if self.world.state.lock().departed.contains(&peer.rank) {
            return Err(Error::Lost(format!("{peer} has ended")));
        }
        let (near, far) = pair(via)?;
        self.world.stream_tables[peer.rank as usize].file(self.rank, stream_id, far);
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
        let context = delivery.stream_id.context;
        if let Some(negotiation) = self.contexts[rank].deliver(delivery) {
            self.negotiations.lock()[rank].begin(peer, context, negotiation);
        }
    }

    fn advance_negotiations(&self) -> Advance {
        let mut negotiations = self.negotiations.lock();
        let mut progressed = false;
        for (negotiations, contexts) in negotiations.iter_mut().zip(&self.contexts) {
            progressed |= negotiations.go_on(|context| contexts.is_over(context));
        }
        // The kernel may take a while to deliver what a TCP connection's other end wrote.
        let is_on_its_way =
            |(peer, context): (u32, u64)| self.contexts[peer as usize].is_handled(context);
        if progressed {
            Advance::Progressed
        } else if negotiations.iter().any(Negotiations::any_to_retry)
            || negotiations
                .iter()
                .flat_map(Negotiations::reading)
                .any(is_on_its_way)
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
        for stream_table in &self.stream_tables {
            stream_table.conclude(outcome.clone());
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
        for stream_table in &self.world.stream_tables {
            stream_table.depart(self.rank);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StreamKind;

    #[test]
    fn streams_are_forgotten_when_their_context_is_over_for_both_ranks() {
        let (_, _, ranks) = LocalRank::all(2).unwrap();
        for context in [1, 2] {
            let stream_id = StreamId {
                context,
                kind: StreamKind::Tcp,
                number: 0,
            };
            ranks[0].reach(1, stream_id, &[Via::Unix]).unwrap();
        }
        let count = || ranks[0].world.established.lock().len();
        for (rank, left) in [(0, 2), (1, 1)] {
            ranks[rank].contexts().dismiss(1);
            ranks[rank].forget(1);
            assert_eq!(count(), left);
        }
    }
}
