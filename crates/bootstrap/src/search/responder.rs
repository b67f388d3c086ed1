//! A rank that has reached the rendezvous. Answers ranks that ask for it, and passes their
//! connections on, until the rendezvous is over.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use super::SearchKey;
use super::datagram::{Datagram, Nonce, What};
use super::sockets::Sockets;
use crate::address::Address;
use crate::dial::Route;
use crate::incoming::{Admitted, Incoming, ListenerRole};
use crate::keys::Keys;
use crate::listening;
use crate::relay::Relays;
use crate::wiring::MOST_RANKS;

/// The shortest time between answers, and the most questions answered at once.
const BETWEEN_ANSWERS: Duration = Duration::from_millis(20);
const MOST_ASKED: usize = 2 * MOST_RANKS as usize;

pub(crate) struct Responder {
    datagram_key: SearchKey,
    own: Vec<Address>,
    /// The route by which this rank reached the rendezvous, and its number of hops.
    upstream: Route,
    hops: u8,
    sockets: Sockets,
    /// The listeners for connections to pass on, opened by the first question.
    incoming: Option<Incoming>,
    bound: Vec<SocketAddr>,
    relays: Relays,
    answers_from: Instant,
    /// The questions since the last answers.
    asked: BTreeSet<Nonce>,
}

impl Responder {
    /// For a rank that has reached the rendezvous at this address, by way of `hops` others.
    pub(crate) fn new(
        datagram_key: SearchKey,
        own: &[Address],
        upstream: SocketAddr,
        hops: u8,
    ) -> Self {
        let route = Route::Tcp {
            source: None,
            target: upstream,
        };
        Self {
            datagram_key,
            own: own.to_vec(),
            upstream: route,
            hops,
            sockets: Sockets::open(datagram_key.port, own),
            incoming: None,
            bound: Vec::new(),
            relays: Relays::default(),
            answers_from: Instant::now(),
            asked: BTreeSet::new(),
        }
    }

    /// Whether it passes no connection on.
    pub(crate) fn is_idle(&self) -> bool {
        self.relays.is_idle()
    }

    /// Answers questions, and advances the connections, without blocking.
    pub(crate) fn serve(&mut self, now: Instant) {
        for (_, what) in self.sockets.hear(&self.datagram_key) {
            if let What::Question { nonce } = what
                && self.asked.len() < MOST_ASKED
            {
                self.asked.insert(nonce);
            }
        }
        if now >= self.answers_from {
            for nonce in std::mem::take(&mut self.asked) {
                self.answer(nonce);
                self.answers_from = now + BETWEEN_ANSWERS;
            }
        }
        if let Some(incoming) = &mut self.incoming {
            for admitted in incoming.serve(now, &|_, _| true) {
                if let Admitted::Onward { near } = admitted {
                    spark_ccl_log::info!("passes a connection on to the rendezvous");
                    self.relays
                        .begin(near, std::slice::from_ref(&self.upstream), now);
                }
            }
        }
        self.relays.serve(now);
    }

    fn answer(&mut self, nonce: Nonce) {
        if self.incoming.is_none() {
            let Ok(listeners) = listening::listen_on(&self.own) else {
                return;
            };
            let bound = listeners
                .iter()
                .filter_map(|it| it.local_addr().ok()?.as_socket());
            self.bound = bound.collect();
            let keys = Keys::one(self.datagram_key.key);
            self.incoming = Some(Incoming::new(ListenerRole::Onward, keys, listeners));
        }
        self.sockets.tell_all(|own| {
            let is_there = |bound: &&SocketAddr| **bound == own.with_port(bound.port());
            let port = self.bound.iter().find(is_there)?.port();
            let answer = Datagram {
                world: self.datagram_key.world,
                what: What::Answer {
                    nonce,
                    port,
                    hops: self.hops + 1,
                },
            };
            Some(answer.encode(&self.datagram_key.key))
        });
    }

    /// Adds the descriptors that wake [`serve`](Self::serve).
    pub(crate) fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        self.sockets.watch(fds);
        if let Some(incoming) = &self.incoming {
            incoming.watch(fds);
        }
        self.relays.watch(fds);
    }

    /// When [`serve`](Self::serve) is due even if no descriptor is ready.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let incoming = self.incoming.as_ref().and_then(Incoming::next_wake);
        let answers = (!self.asked.is_empty()).then_some(self.answers_from);
        let wakes = [incoming, self.relays.next_wake(), answers];
        wakes.into_iter().flatten().min()
    }
}
