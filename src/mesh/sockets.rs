//! Links over TCP: asks for their sockets, and makes a link when all are there. Knows sessions'
//! streams; does not know what links carry.

use std::sync::Arc;

use socket2::Socket;
use spark_ccl_bootstrap::{Error, StreamKind};
use spark_ccl_fork::Unshared;
use spark_ccl_sched::Rank;
use spark_ccl_transport::{LinkError, tcp};

use super::{Halves, LinkId, LinkOwner};

/// The sockets of a link, as far as they are connected.
pub(super) struct Sockets(Vec<Option<Unshared<Socket>>>);

impl Sockets {
    /// An empty place for each socket of a link to the peer.
    pub(super) fn of(owner: &LinkOwner, peer: Rank) -> Self {
        Self((0..owner.sockets(peer)).map(|_| None).collect())
    }

    pub(super) fn ask(&self, owner: &LinkOwner, link_id: LinkId) -> Result<(), Error> {
        (0..self.0.len() as u32)
            .try_for_each(|socket| owner.reach(link_id, StreamKind::Tcp, socket))
    }

    /// Takes the socket of that number. It is closed if its number is too high: the peer expects
    /// more sockets.
    pub(super) fn put(&mut self, number: usize, socket: Unshared<Socket>) {
        if let Some(place) = self.0.get_mut(number) {
            *place = Some(socket);
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.0.iter().all(Option::is_some)
    }

    pub(super) fn link(self, owner: &Arc<LinkOwner>, link_id: LinkId) -> Result<Made, LinkError> {
        let sockets: Vec<_> = self.0.into_iter().flatten().collect();
        let (route, unbound) = (route(&sockets), owner.unbound(link_id.0, &sockets));
        let (tx, rx) = tcp::link(sockets, owner.geometry())?;
        owner.spares.open(link_id, &spares_of(owner, link_id, &tx));
        Ok(Made {
            halves: (Box::new(tx), Box::new(rx)),
            route,
            unbound,
        })
    }
}

/// Has the session find another route when those of the link have fallen silent.
fn spares_of(owner: &Arc<LinkOwner>, link_id: LinkId, tx: &tcp::Tx) -> tcp::Entry {
    let owner = Arc::downgrade(owner);
    tx.ask_by(move |socket, silent| {
        let asked = owner
            .upgrade()
            .map(|owner| owner.reach_around(link_id, socket as u32, silent));
        if let Some(Err(error)) = asked {
            spark_ccl_log::info!("no other way for a link: {error}");
        }
    })
}

/// A link over TCP.
pub(super) struct Made {
    pub(super) halves: Halves,
    pub(super) route: String,
    /// The interfaces that should carry a part of it, but may not.
    pub(super) unbound: Option<String>,
}

/// The addresses that a link's sockets join, for people.
fn route(sockets: &[Unshared<Socket>]) -> String {
    let mut routes: Vec<String> = Vec::new();
    for socket in sockets {
        let address = |side: std::io::Result<socket2::SockAddr>| {
            side.ok()
                .and_then(|address| address.as_socket())
                .map_or_else(|| "?".to_owned(), |address| address.ip().to_string())
        };
        let route = format!(
            "{} -> {}",
            address(socket.local_addr()),
            address(socket.peer_addr())
        );
        if !routes.contains(&route) {
            routes.push(route);
        }
    }
    routes.join(", ")
}
