//! Requests for streams of links: over which routes, and when. The session's thread makes them.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::{Mode, REFUSAL, Session};
use crate::connector::Connector;
use crate::dial::Route;
use crate::handshake::Intent;
use crate::join::check_rank;
use crate::network::Network;
use crate::routes::put_last;
use crate::{Error, StreamId, Via};

/// How long the lower rank waits for the higher rank's dial before it dials itself.
const DEFERRAL: Duration = Duration::from_millis(10);
const DEFERRAL_PER_RANK: Duration = Duration::from_micros(500);
const LONGEST_DEFERRAL: Duration = Duration::from_millis(100);

impl Session {
    /// Asks for a link's stream to a peer, and does not wait for it. The stream goes to the
    /// [handler](Self::handle_streams) of its context, and its other end to the peer's handler.
    ///
    /// There is one stream per id, no matter which end asks for it. Once it is delivered, do
    /// not ask for it again. The ways are tried in order until the deadline. A peer that has the
    /// dial but is stopped may answer later.
    ///
    /// # Errors
    /// [`Error::Argument`] if the peer cannot be reached in these ways; [`Error::Os`].
    pub fn reach(
        &self,
        peer: u32,
        stream_id: StreamId,
        ways: &[Via],
        deadline: Instant,
    ) -> Result<(), Error> {
        self.reach_around(peer, stream_id, (ways, &[]), deadline)
    }

    /// The same where nothing comes back from some addresses of the peer: these are tried last, in
    /// their order.
    ///
    /// # Errors
    /// As for [`Session::reach`].
    pub fn reach_around(
        &self,
        peer: u32,
        stream_id: StreamId,
        (ways, silent): (&[Via], &[IpAddr]),
        deadline: Instant,
    ) -> Result<(), Error> {
        check_rank(peer, self.size())?;
        match &self.mode {
            Mode::Local(local_rank) => local_rank.reach(peer, stream_id, ways),
            Mode::Network(network) => {
                let mut routes = self.routes(network, peer, ways)?;
                put_last(&mut routes, silent);
                if routes.is_empty() {
                    return Err(Error::Argument(format!(
                        "{} has no address that this host could reach: {:?}",
                        self.describe(peer),
                        self.peer(peer).addresses
                    )));
                }
                let intent = Intent::Stream {
                    from: self.rank,
                    to: peer,
                    stream_id,
                };
                let connector = Connector::new(
                    self.describe(peer),
                    routes,
                    intent,
                    REFUSAL,
                    (self.begin(peer), deadline),
                );
                network.requests.dial(peer, stream_id, connector);
                Ok(())
            }
        }
    }

    /// The routes to a peer in these ways; if it is not reached by itself, through other ranks.
    fn routes(&self, network: &Network, peer: u32, ways: &[Via]) -> Result<Vec<Route>, Error> {
        let direct = |to: u32, via| network.routes(self.peer(to), via, self.local_to(to));
        let mut routes = Vec::new();
        if self.wiring().joins(self.rank, peer) {
            for &via in ways {
                routes.extend(direct(peer, via)?);
            }
            return Ok(routes);
        }
        for way in self.wiring().ways(self.rank, peer) {
            let from = self.rank;
            let relays = way[1..].iter().map(|&next| Intent::Relay { from, next });
            let relays: Vec<Intent> = relays.collect();
            // TCP even within the host: streams with ends on two hosts are sealed.
            routes.extend(direct(way[0], Via::ANY)?.into_iter().map(|first| {
                let (first, relays) = (Box::new(first), relays.clone());
                Route::Relayed { first, relays }
            }));
        }
        Ok(routes)
    }

    /// The routes to a peer whose connections it does not answer, while streams of links are asked
    /// for.
    pub fn silence(&self, peer: u32) -> Option<String> {
        match &self.mode {
            Mode::Local(_) => None,
            Mode::Network(network) => network.requests.silence(peer),
        }
    }

    /// When to dial a peer. Both ends usually need a stream at about the same time, and one dial is
    /// enough. So the lower rank waits a little for the higher one's.
    fn begin(&self, peer: u32) -> Instant {
        let deferral = if self.rank < peer {
            (DEFERRAL + DEFERRAL_PER_RANK * self.size()).min(LONGEST_DEFERRAL)
        } else {
            Duration::ZERO
        };
        Instant::now() + deferral
    }
}
