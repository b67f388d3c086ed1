//! The rails of a link to another host: the ways that its connections take. Notices a rail over which nothing comes
//! back any more, and names it. Knows interfaces and what the kernel knows of connections; knows no messages.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{Socket, TcpKeepalive};
use spark_ccl_fork::{PerProcess, Unshared};
use spark_ccl_log::Mutex;

use super::kernel;
use crate::SilentRail;
use crate::netif::{self, Interface};
use crate::upkeep::Upkeep;

/// A rail over which nothing has come back for this long, although the kernel asks, is silent.
const SILENT_AFTER: Duration = Duration::from_secs(3);
/// How soon, and how often, the kernel asks over a connection on which nothing is on its way. It gives the connection up
/// after as long as one on which bytes are.
const ASK: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(7)];
const ASK_AT_MOST: u32 = 127;

/// The silent rails that a remark was made on.
static SAID: PerProcess<Mutex<BTreeSet<String>>> = PerProcess::new();

/// The rails of a link.
pub(super) struct Rails(Mutex<Vec<Rail>>);

/// A connection, and the way that it takes.
struct Rail {
    socket: Arc<Unshared<Socket>>,
    way: Way,
    silent_since: Option<Instant>,
}

/// Where a connection leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Way {
    /// The interface, as far as it is known.
    interface: Option<String>,
    own: SocketAddr,
    peer: SocketAddr,
}

impl Rails {
    /// Those of the sockets. `None` where no cable can be pulled: within this host.
    pub(super) fn of(sockets: &[Arc<Unshared<Socket>>]) -> Option<Self> {
        let rail = |socket: &Arc<Unshared<Socket>>| {
            let way = Way::of(socket).filter(|way| way.own.ip() != way.peer.ip())?;
            let [idle, interval] = ASK;
            let asks = TcpKeepalive::new()
                .with_time(idle)
                .with_interval(interval)
                .with_retries(ASK_AT_MOST);
            // Otherwise only a rank that sends notices.
            let _ = socket.set_tcp_keepalive(&asks);
            Some(Rail {
                socket: Arc::clone(socket),
                way,
                silent_since: None,
            })
        };
        let rails: Option<Vec<_>> = sockets.iter().map(rail).collect();
        rails.map(|rails| Self(Mutex::new(rails)))
    }

    /// The silent rails, once for each of their connections.
    pub(super) fn silent(&self) -> Vec<SilentRail> {
        let rails = self.0.lock();
        let silent = rails.iter().filter_map(|rail| {
            Some(SilentRail {
                name: rail.way.to_string(),
                silence: rail.silent_since?.elapsed(),
            })
        });
        silent.collect()
    }

    /// Notes which rails are silent now.
    fn listen(&self) {
        let mut rails = self.0.lock();
        if rails.iter().any(|rail| rail.way.interface.is_none()) {
            let interfaces = netif::list().unwrap_or_default();
            rails.iter_mut().for_each(|rail| rail.way.name(&interfaces));
        }
        rails.iter_mut().for_each(Rail::listen);
    }
}

impl Upkeep for Rails {
    fn look(&self) {
        self.listen();
    }
}

impl Rail {
    /// Asks the kernel, and logs what has changed, once for all links over this rail.
    fn listen(&mut self) {
        let Ok(silence) = kernel::silence(&self.socket) else {
            return;
        };
        let silence = silence.filter(|silence| *silence >= SILENT_AFTER);
        match (silence, self.silent_since) {
            (Some(silence), None) => {
                self.silent_since = Instant::now().checked_sub(silence);
                if SAID.get().lock().insert(self.way.to_string()) {
                    spark_ccl_log::remark(&format!(
                        "nothing has come back over {}{} for {silence:.1?}: check its cable, ports, interfaces \
                         and addresses, here and at the peer",
                        self.way,
                        self.way.state()
                    ));
                }
            }
            (None, Some(since)) => {
                self.silent_since = None;
                if SAID.get().lock().remove(&self.way.to_string()) {
                    let silence = since.elapsed();
                    spark_ccl_log::remark(&format!(
                        "{} answers again, after {silence:.1?}",
                        self.way
                    ));
                }
            }
            _ => {}
        }
    }
}

impl Way {
    fn of(socket: &Socket) -> Option<Self> {
        Some(Self {
            interface: None,
            own: socket.local_addr().ok()?.as_socket()?,
            peer: socket.peer_addr().ok()?.as_socket()?,
        })
    }

    fn name(&mut self, interfaces: &[Interface]) {
        let scope = match self.own {
            SocketAddr::V6(own) => own.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let fits =
            |one: &&Interface| one.addr == self.own.ip() && (scope == 0 || scope == one.index);
        self.interface = interfaces.iter().find(fits).map(|one| one.name.clone());
    }

    /// The state of an interface that is not up, in words.
    fn state(&self) -> String {
        let interface = self.interface.as_deref().unwrap_or_default();
        let path = format!("/sys/class/net/{interface}/operstate");
        match std::fs::read_to_string(path) {
            Ok(state) if !["up", "unknown"].contains(&state.trim()) => {
                format!(", which is {},", state.trim())
            }
            _ => String::new(),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            interface,
            own,
            peer,
        } = self;
        let interface = interface.as_deref().unwrap_or("an interface that is gone");
        write!(f, "{interface} ({} -> {})", own.ip(), peer.ip())
    }
}
