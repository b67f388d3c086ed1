//! Finds the rendezvous by way of other ranks, for ranks that do not reach it by themselves.
//!
//! Such a rank knows only the rendezvous' address. So it asks on each of its networks, by a
//! datagram to all hosts there, at the rendezvous' port number. A rank that has reached the
//! rendezvous ([`Responder`]) answers with a port at which it passes connections on. Datagrams
//! carry a tag made with the secret, are not routed, and only decide whom to dial. The dialled rank
//! proves itself like any other, and so does the rendezvous behind it.

mod datagram;
mod responder;
mod sockets;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use datagram::{Datagram, Nonce, What};
pub(crate) use responder::Responder;
use sockets::Sockets;

use crate::address::Address;
use crate::dial::Route;
use crate::handshake::{Intent, WorldName};
use crate::keys;
use crate::net;
use crate::secret::random;
use crate::{Error, Secret};

/// How long to wait for answers to a question.
const ANSWER: Duration = Duration::from_millis(100);
/// The most ranks to dial.
const MOST_FOUND: usize = 32;

/// Lets the ranks of a world recognise each other's datagrams.
#[derive(Clone, Copy)]
pub(crate) struct SearchKey {
    key: Secret,
    world: WorldName,
    /// The port number of the rendezvous, and of all datagrams.
    port: u16,
}

impl SearchKey {
    /// For the world whose rendezvous is at these addresses. `None` without a secret: ranks without
    /// one share a host.
    pub(crate) fn new(secret: &Secret, targets: &[SocketAddr]) -> Option<Self> {
        let port = targets.first()?.port();
        (!secret.is_public()).then(|| Self {
            key: keys::key(secret),
            world: keys::world(secret),
            port,
        })
    }
}

/// Searches for ranks that pass connections on.
pub(crate) struct Search {
    rank: u32,
    datagram_key: Option<SearchKey>,
    own: Vec<Address>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// Opened by the first question.
    sockets: Option<Sockets>,
    /// The addresses of ranks that pass connections on, each with its number of hops.
    found: Vec<(SocketAddr, u8)>,
}

impl Search {
    pub(crate) fn new(rank: u32, datagram_key: Option<SearchKey>, own: &[Address]) -> Self {
        Self {
            rank,
            datagram_key,
            own: own.to_vec(),
            state: RefCell::default(),
        }
    }

    /// Asks on all networks. Returns the routes to the ranks that have answered by now.
    pub(crate) fn ask(&self) -> Vec<Route> {
        let Some(datagram_key) = &self.datagram_key else {
            return Vec::new();
        };
        let mut state = self.state.borrow_mut();
        let State { sockets, found } = &mut *state;
        let sockets = sockets.get_or_insert_with(|| Sockets::open(datagram_key.port, &self.own));
        let Ok(own_nonce): Result<Nonce, _> = random() else {
            return Vec::new();
        };
        // A rank that has stopped answering passes nothing on.
        found.clear();
        let question = Datagram {
            what: What::Question { nonce: own_nonce },
            world: datagram_key.world,
        };
        sockets.tell_all(|_| Some(question.encode(&datagram_key.key)));
        let until = Instant::now() + ANSWER;
        while Instant::now() < until {
            let mut fds = Vec::new();
            sockets.watch(&mut fds);
            if net::poll(&mut fds, Some(until)).is_err() {
                break;
            }
            let heard = sockets.hear(datagram_key);
            if heard.is_empty() {
                continue;
            }
            for (mut from, what) in heard {
                if let What::Answer { nonce, port, hops } = what
                    && nonce == own_nonce
                {
                    from.set_port(port);
                    let is_new = !found.iter().any(|(known, _)| *known == from);
                    if is_new && found.len() < MOST_FOUND {
                        found.push((from, hops));
                    }
                }
            }
        }
        found.sort_by_key(|(_, hops)| *hops);
        let routes = found.iter().map(|&(target, hops)| Route::Relayed {
            first: Box::new(Route::Tcp {
                source: None,
                target,
            }),
            relays: vec![
                Intent::Onward {
                    world: datagram_key.world
                };
                usize::from(hops)
            ],
        });
        routes.collect()
    }

    /// The number of ranks that pass a connection to this address on.
    pub(crate) fn hops_by(&self, target: SocketAddr) -> u8 {
        let state = self.state.borrow();
        let found = state.found.iter().find(|(known, _)| *known == target);
        found.map_or(0, |(_, hops)| *hops)
    }

    /// Adds to an error the addresses from which other ranks were asked in vain, if any.
    pub(crate) fn explain(&self, mut error: Error) -> Error {
        let state = self.state.borrow();
        let is_vain = state.sockets.is_some() && state.found.is_empty();
        if let (true, Error::Unreachable { attempts, .. }) = (is_vain, &mut error) {
            let own = self.own.iter().filter(|own| !own.ip.is_loopback());
            let own: Vec<String> = own.map(|own| own.ip.to_string()).collect();
            let (rank, own) = (self.rank, own.join(", "));
            let asked = format!("rank {rank} asked other ranks for a way from {own}");
            let why = "none that has reached it answered; look at the cables, and at firewalls, \
                       which must let UDP through at the port number of the rendezvous";
            attempts.push((asked, why.to_owned()));
        }
        error
    }
}

#[cfg(test)]
mod tests;
