//! A route to a peer, and how long connecting may take.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use socket2::Socket;
use spark_ccl_fork::Unshared;

use crate::address::Address;
use crate::handshake::Intent;
use crate::net;

/// The time that one address has to connect if there are others; and to answer before the others
/// are tried, too.
pub(crate) const ATTEMPT: Duration = Duration::from_secs(3);
/// How long an address may take to accept the proof of the secret. Until then, the others get none.
pub(crate) const LONGEST_ATTEMPT: Duration = Duration::from_secs(20);
/// The time that a route has to connect before the next one is tried beside it.
const STAGGER: Duration = Duration::from_millis(50);
/// The same for a route chosen by the connecting rank: long enough for the kernel to repeat one
/// lost packet.
const CHOSEN: Duration = Duration::from_millis(1500);
/// The same for a route bound to an interface, whose cable may lead elsewhere.
const BOUND: Duration = Duration::from_millis(200);
/// The pause after all addresses have failed: the first one, and the longest that backoff reaches.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(10);
pub(crate) const LAST_PAUSE: Duration = Duration::from_millis(400);

/// A route to the other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route {
    Unix {
        name: String,
    },
    Tcp {
        source: Option<Address>,
        target: SocketAddr,
    },
    /// To a rank that passes the connection on.
    Relayed {
        first: Box<Route>,
        /// The requests to that rank and the following ones.
        relays: Vec<Intent>,
    },
}

impl Route {
    pub(crate) fn connect(&self, deadline: Instant) -> io::Result<Unshared<Socket>> {
        let socket = match self {
            Route::Unix { name } => net::connect_unix(name, deadline),
            Route::Tcp { source, target } => net::connect_tcp(*source, *target, deadline),
            Route::Relayed { first, .. } => return first.connect(deadline),
        };
        socket.map(Unshared::new)
    }

    /// Starts to connect. Returns whether the connection is complete already.
    pub(crate) fn begin(&self) -> io::Result<(Unshared<Socket>, bool)> {
        let (socket, is_complete) = match self {
            Route::Unix { name } => (net::begin_unix(name)?, true),
            Route::Tcp { source, target } => net::begin_tcp(*source, *target)?,
            Route::Relayed { first, .. } => return first.begin(),
        };
        Ok((Unshared::new(socket), is_complete))
    }

    /// The time that it has to connect before the next one is tried beside it.
    pub(crate) fn patience(&self) -> Duration {
        match self {
            Route::Tcp {
                source: Some(source),
                ..
            } => source.device.map_or(CHOSEN, |_| BOUND),
            _ => STAGGER,
        }
    }

    /// Whether the connecting rank chose it, by its source.
    pub(crate) fn is_chosen(&self) -> bool {
        self.source().is_some()
    }

    /// Its source, if the connecting rank chose that.
    pub(crate) fn source(&self) -> Option<Address> {
        match self {
            Route::Tcp { source, .. } => *source,
            Route::Unix { .. } | Route::Relayed { .. } => None,
        }
    }

    /// Whether it ends on this host.
    pub(crate) fn leads_here(&self) -> bool {
        match self {
            Route::Unix { .. } => true,
            Route::Tcp { target, .. } => net::is_own(target.ip()),
            Route::Relayed { first, .. } => first.leads_here(),
        }
    }

    /// The requests to the ranks that pass the connection on.
    pub(crate) fn relays(&self) -> &[Intent] {
        match self {
            Route::Relayed { relays, .. } => relays,
            _ => &[],
        }
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Route::Unix { name } => format!("unix socket @{name}"),
            Route::Tcp {
                source: None,
                target,
            } => target.to_string(),
            Route::Tcp {
                source: Some(source),
                target,
            } => {
                let over = source.device.map_or_else(String::new, over);
                format!("{target} from {}{over}", source.ip)
            }
            Route::Relayed { first, relays } => {
                let ranks = if relays.len() == 1 { "rank" } else { "ranks" };
                format!("{}, passed on by {} {ranks}", first.name(), relays.len())
            }
        }
    }
}

/// The interface of this index, in words.
fn over(device: NonZeroU32) -> String {
    format!(" over interface {device}")
}

pub(crate) fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => "no answer in time".to_owned(),
        _ => error.to_string(),
    }
}
