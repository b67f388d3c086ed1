//! A rank that has reached the rendezvous. Answers ranks that ask for it, and passes their
//! connections on, until the rendezvous is over.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use super::Words;
use super::datagram::{Nonce, Note, What};
use super::sockets::Sockets;
use crate::address::Address;
use crate::dial::Route;
use crate::incoming::{Admitted, ListenerRole, Lobby};
use crate::keys::Keys;
use crate::listening;
use crate::relay::Relays;
use crate::wiring::MOST_RANKS;

/// The shortest time between answers, and the most questions answered at once.
const BETWEEN_ANSWERS: Duration = Duration::from_millis(20);
const MOST_ASKED: usize = 2 * MOST_RANKS as usize;

pub(crate) struct Post {
    words: Words,
    own: Vec<Address>,
    /// The route by which this rank reached the rendezvous, and its number of hops.
    upstream: Route,
    hops: u8,
    sockets: Sockets,
    /// The listeners for connections to pass on, opened by the first question.
    lobby: Option<Lobby>,
    bound: Vec<SocketAddr>,
    relays: Relays,
    answers_from: Instant,
    /// The questions since the last answers.
    asked: BTreeSet<Nonce>,
}

impl Post {
    /// For a rank that has reached the rendezvous at this address, by way of `hops` others.
    pub(crate) fn new(words: Words, own: &[Address], upstream: SocketAddr, hops: u8) -> Self {
        let route = Route::Tcp {
            source: None,
            target: upstream,
        };
        Self {
            words,
            own: own.to_vec(),
            upstream: route,
            hops,
            sockets: Sockets::open(words.port, own),
            lobby: None,
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
        for (_, what) in self.sockets.hear(&self.words) {
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
        if let Some(lobby) = &mut self.lobby {
            for admitted in lobby.serve(now, &|_, _| true) {
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
        if self.lobby.is_none() {
            let Ok(listeners) = listening::listen_on(&self.own) else {
                return;
            };
            let bound = listeners
                .iter()
                .filter_map(|it| it.local_addr().ok()?.as_socket());
            self.bound = bound.collect();
            let keys = Keys::one(self.words.key);
            self.lobby = Some(Lobby::new(ListenerRole::Onward, keys, listeners));
        }
        self.sockets.tell_all(|own| {
            let is_there = |bound: &&SocketAddr| **bound == own.with_port(bound.port());
            let port = self.bound.iter().find(is_there)?.port();
            let answer = Note {
                world: self.words.world,
                what: What::Answer {
                    nonce,
                    port,
                    hops: self.hops + 1,
                },
            };
            Some(answer.encode(&self.words.key))
        });
    }

    /// Adds the descriptors that wake [`serve`](Self::serve).
    pub(crate) fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        self.sockets.watch(fds);
        if let Some(lobby) = &self.lobby {
            lobby.watch(fds);
        }
        self.relays.watch(fds);
    }

    /// When [`serve`](Self::serve) is due even if no descriptor is ready.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let lobby = self.lobby.as_ref().and_then(Lobby::next_wake);
        let answers = (!self.asked.is_empty()).then_some(self.answers_from);
        let wakes = [lobby, self.relays.next_wake(), answers];
        wakes.into_iter().flatten().min()
    }
}
