//! Spare connections of links over TCP, which come when all connections of a link are silent.

use std::collections::HashMap;

use socket2::Socket;
use spark_ccl_fork::Unshared;
use spark_ccl_log::Mutex;
use spark_ccl_transport::tcp;

use super::Line;

/// Where the spare connections of each link go.
#[derive(Default)]
pub(crate) struct Spares(Mutex<HashMap<Line, Place>>);

enum Place {
    /// To the link.
    Link(tcp::Entry),
    /// The peer has made its end of the link, and this rank has not.
    Early(Vec<Unshared<Socket>>),
}

impl Spares {
    /// Passes those of a link to it from now on.
    pub(super) fn open(&self, line: Line, link: &tcp::Entry) {
        let before = self.0.lock().insert(line, Place::Link(link.clone()));
        if let Some(Place::Early(sockets)) = before {
            for socket in sockets {
                add(link, socket);
            }
        }
    }

    /// Passes one to its link.
    pub(super) fn put(&self, line: Line, socket: Unshared<Socket>) {
        let mut places = self.0.lock();
        let early = || Place::Early(Vec::new());
        match places.entry(line).or_insert_with(early) {
            Place::Early(sockets) => sockets.push(socket),
            Place::Link(link) => {
                let link = link.clone();
                drop(places);
                add(&link, socket);
            }
        }
    }
}

fn add(link: &tcp::Entry, socket: Unshared<Socket>) {
    if let Err(error) = link.add(socket) {
        spark_ccl_log::info!("a link takes no other connection: {error}");
    }
}
