//! A rank's first streams to others, which also show which ranks reach each other. Each rank dials
//! those below it, and tells the rendezvous whom it reached. The rendezvous tells all ranks.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::event::PollFd;
use spark_ccl_seal::Stream;

use super::{Mode, REFUSAL, Session};
use crate::connector::Connector;
use crate::handshake::{Entered, Intent};
use crate::network::{Network, reachable};
use crate::reachability::Reachability;
use crate::wiring::{MOST_RANKS, Survey, Wiring};
use crate::{Error, StreamId, Via, net};

/// How long a rank tries to reach another by itself, if others may pass its streams on.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same for a rank that seems out of reach. Its kernel accepts connections however busy it is,
/// so this is long for any network of a host.
const DOUBT: Duration = Duration::from_millis(250);
/// How often a dialling rank checks whether the initialisation has failed.
const LOOK: Duration = Duration::from_millis(100);

/// The outcome of a dial to a rank.
type Outcome = (u32, Result<Stream, Error>);

impl Session {
    /// Opens a stream to each of `peers` that this rank reaches by itself. All ranks call this
    /// once, for the same id, and name each other.
    ///
    /// In worlds of up to 8 ranks, all name all others. Leaves out the ranks that this one does not
    /// reach, as long as others lead to them; [`wiring`](Self::wiring) says which ones.
    ///
    /// # Errors
    /// [`Error::Links`], on all ranks, names two that do not reach each other, not even by way of
    /// others. Otherwise those of [`Session::connect`] and [`Session::accept`].
    pub fn connect_all(
        &self,
        peers: &BTreeSet<u32>,
        stream_id: StreamId,
        deadline: Instant,
    ) -> Result<Vec<(u32, Stream)>, Error> {
        let (above, below): (Vec<u32>, Vec<u32>) = peers.iter().partition(|&&it| it > self.rank);
        let mut streams = match &self.mode {
            Mode::Local(_) => {
                let via = |peer| (peer, self.connect(peer, stream_id, Via::Unix, deadline));
                let dials = below.into_iter().map(via);
                dials.map(|(peer, it)| Ok((peer, it?))).collect()
            }
            Mode::Network(network) => self.survey(network, &below, stream_id, deadline),
        }?;
        for peer in above {
            if self.wiring().joins(self.rank, peer) {
                streams.push((peer, self.accept(peer, stream_id, deadline)?));
            }
        }
        Ok(streams)
    }

    /// Which ranks reach each other by themselves; all of them before
    /// [`connect_all`](Self::connect_all) has returned.
    pub fn wiring(&self) -> &Wiring {
        static COMPLETE: Wiring = Wiring::complete();
        self.wiring.get().unwrap_or(&COMPLETE)
    }

    /// Dials the ranks below, and learns which ranks reach each other.
    fn survey(
        &self,
        network: &Network,
        below: &[u32],
        stream_id: StreamId,
        deadline: Instant,
    ) -> Result<Vec<(u32, Stream)>, Error> {
        let has_ways_round = self.size() <= MOST_RANKS;
        let mut dials = Vec::new();
        for &peer in below {
            let mut connector = self.connector(network, peer, stream_id, deadline)?;
            if has_ways_round {
                connector = self.limited(network, peer, connector);
            }
            dials.push((peer, connector));
        }
        let (mut streams, mut missed) = (Vec::new(), Vec::new());
        for (peer, outcome) in self.dial(network, dials, deadline)? {
            match outcome {
                Ok(stream) => streams.push((peer, stream)),
                Err(error @ Error::Unreachable { .. }) if has_ways_round => {
                    missed.push((peer, error.to_string()));
                }
                Err(error) => return Err(error),
            }
        }
        if has_ways_round {
            missed.sort_unstable();
            let reached = streams.iter().fold(0, |mask, (peer, _)| mask | 1 << peer);
            let survey = Survey {
                reached,
                missed,
                time_left: deadline.saturating_duration_since(Instant::now()),
            };
            self.learn(network, &survey, deadline)?;
        }
        Ok(streams)
    }

    /// Limits the time of a dial to a rank to which others may pass streams on.
    fn limited(&self, network: &Network, peer: u32, connector: Connector) -> Connector {
        let host = |rank| self.peer(rank).host_id;
        let is_other = |rank: &u32| ![host(self.rank), host(peer)].contains(&host(*rank));
        let others = (0..self.size()).filter(is_other);
        let others = others.flat_map(|rank| reachable(self.peer(rank), false, net::is_own));
        let reachability = Reachability {
            own: &network.own,
            peer: &reachable(self.peer(peer), self.local_to(peer), net::is_own),
            others: &others.collect::<Vec<_>>(),
            source_to: &net::source_to,
        };
        if !reachability.is_unlikely() {
            return connector.with_patience(Instant::now() + PATIENCE);
        }
        spark_ccl_log::info!("no network is known to lead to {}", self.describe(peer));
        connector.at_once().with_patience(Instant::now() + DOUBT)
    }

    fn connector(
        &self,
        network: &Network,
        peer: u32,
        stream_id: StreamId,
        deadline: Instant,
    ) -> Result<Connector, Error> {
        let is_local = self.local_to(peer);
        let via = if is_local { Via::Unix } else { Via::ANY };
        let routes = network.routes(self.peer(peer), via, is_local)?;
        let intent = Intent::Stream {
            from: self.rank,
            to: peer,
            stream_id,
        };
        let name = self.describe(peer);
        let times = (Instant::now(), deadline);
        Ok(Connector::new(name, routes, intent, REFUSAL, times))
    }

    /// Makes dials at the same time. Returns their outcomes.
    fn dial(
        &self,
        network: &Network,
        mut dials: Vec<(u32, Connector)>,
        deadline: Instant,
    ) -> Result<Vec<Outcome>, Error> {
        let mut outcomes = Vec::new();
        loop {
            let now = Instant::now();
            dials.retain_mut(|(peer, connector)| {
                let outcome = connector.step(&network.key, now);
                let goes_on = outcome.is_none();
                let outcome = outcome.map(|it| it.map(Entered::into_stream));
                outcomes.extend(outcome.map(|outcome| (*peer, outcome)));
                goes_on
            });
            let is_final = |error: &Error| !matches!(error, Error::Unreachable { .. });
            let errors = outcomes
                .iter()
                .filter_map(|(_, outcome)| outcome.as_ref().err());
            if let Some(error) = errors.into_iter().find(|error| is_final(error)) {
                return Err(error.clone());
            }
            let Some((peer, connector)) = dials.first() else {
                return Ok(outcomes);
            };
            if let Some(error) = self.stream_table.failure() {
                return Err(error);
            }
            if now >= deadline {
                let name = self.describe(*peer);
                let timeout = |why| Error::Timeout(format!("{name} does not answer: {why}"));
                let silence = connector.silence(now).map(timeout);
                return Err(silence.unwrap_or_else(|| connector.unreachable()));
            }
            let mut fds: Vec<PollFd<'_>> = Vec::new();
            for (_, connector) in &dials {
                connector.watch(now, &mut fds);
            }
            let wakes = dials
                .iter()
                .filter_map(|(_, connector)| connector.next_wake(now));
            let until = wakes.chain([now + LOOK, deadline]).min();
            net::poll(&mut fds, until).map_err(|error| Error::os("wait for ranks", &error))?;
        }
    }

    /// Sends this rank's survey to the rendezvous, and takes the wiring that it makes of all
    /// surveys.
    fn learn(&self, network: &Network, survey: &Survey, deadline: Instant) -> Result<(), Error> {
        network.tell(survey, deadline);
        let wiring = self.stream_table.wiring(deadline).unwrap_or_else(|| {
            let text = "the rendezvous did not say in time which ranks reach each other";
            Err(Error::Timeout(text.to_owned()))
        })?;
        for (peer, why) in &survey.missed {
            spark_ccl_log::warn!(
                "rank {} reaches {} by way of other ranks only, which is slow: {why}",
                self.rank,
                self.describe(*peer)
            );
        }
        let _ = self.wiring.set(wiring);
        Ok(())
    }
}
