//! Spare connections of links over TCP, which come when all connections of a link are silent.

use std::collections::HashMap;

use socket2::Socket;
use spark_ccl_fork::Unshared;
use spark_ccl_log::Mutex;
use spark_ccl_transport::tcp;

use super::LinkId;

/// Where the spare connections of each link go.
#[derive(Default)]
pub(crate) struct Spares(Mutex<HashMap<LinkId, Spare>>);

/// A connection, and its number among those of its link.
type Numbered = (usize, Unshared<Socket>);

enum Spare {
    /// To the link.
    Link(tcp::Entry),
    /// The peer has made its end of the link, and this rank has not.
    Early(Vec<Numbered>),
}

impl Spares {
    /// Passes a link's spare connections to it from now on.
    pub(super) fn open(&self, link_id: LinkId, link: &tcp::Entry) {
        let before = self.0.lock().insert(link_id, Spare::Link(link.clone()));
        if let Some(Spare::Early(sockets)) = before {
            for numbered in sockets {
                add(link, numbered);
            }
        }
    }

    /// Passes a spare connection to its link.
    pub(super) fn put(&self, link_id: LinkId, numbered: Numbered) {
        let mut places = self.0.lock();
        let early = || Spare::Early(Vec::new());
        match places.entry(link_id).or_insert_with(early) {
            Spare::Early(sockets) => sockets.push(numbered),
            Spare::Link(link) => {
                let link = link.clone();
                drop(places);
                add(&link, numbered);
            }
        }
    }
}

fn add(link: &tcp::Entry, (number, socket): Numbered) {
    if let Err(error) = link.add(number, socket) {
        spark_ccl_log::info!("a link takes no other connection: {error}");
    }
}
