//! A rail of a link to another host: the way that one of its connections takes. Notices that
//! nothing comes back over it any more, or that it is lost, and tells people. Knows interfaces, and
//! what the kernel knows of connections.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use spark_ccl_fork::PerProcess;
use spark_ccl_log::Mutex;

use super::stream::Stream;
use crate::SilentRail;
use crate::netif::Interface;

/// A rail over which nothing has come back for this long, although the kernel asks, is silent.
const SILENT_AFTER: Duration = Duration::from_secs(3);

/// The silent and the lost rails that the log tells of, and the spare ones that carry.
pub(super) static SAID: PerProcess<Mutex<BTreeSet<String>>> = PerProcess::new();

/// A connection, and the way that it takes.
pub(super) struct Rail {
    pub(super) stream: Arc<dyn Stream>,
    pub(super) route: ConnectionRoute,
    silent_since: Option<Instant>,
    /// Why the kernel has given the connection up.
    pub(super) lost: Option<Errno>,
    /// It was added, and carries only while those of the beginning do not.
    pub(super) is_spare: bool,
    /// The log does not tell yet that it was added.
    pub(super) is_new: bool,
}

/// Where a connection leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConnectionRoute {
    /// The interface, once it was looked up.
    pub(super) interface: Option<String>,
    pub(super) own: SocketAddr,
    pub(super) peer: SocketAddr,
}

/// News of a rail.
#[derive(Debug, Clone, Copy)]
pub(super) enum Heard {
    /// It has been silent for this long.
    Nothing(Duration),
    /// It answers again, after it has been silent for this long.
    Again(Duration),
    /// The kernel has given its connection up.
    Lost(Errno),
}

/// For how long nothing has come back over a connection, once it counts as silent.
///
/// # Errors
/// Why the kernel has given the connection up.
pub(super) fn silence_of(stream: &dyn Stream) -> rustix::io::Result<Option<Duration>> {
    let silence = stream.silence()?;
    Ok(silence.filter(|silence| *silence >= SILENT_AFTER))
}

/// Whether some rail of the link's beginning carries.
pub(super) fn homes_carry(rails: &[Rail]) -> bool {
    rails.iter().any(|rail| !rail.is_spare && rail.carries())
}

/// The rails that carry, or should: the spare ones only where all others are silent.
pub(super) fn in_use(rails: &[Rail]) -> impl Iterator<Item = &Rail> {
    let needs_spares = !homes_carry(rails);
    rails
        .iter()
        .filter(move |rail| needs_spares || !rail.is_spare)
}

/// In words, the rails that carry a link's data while one is silent.
fn goes_on(all: &[Rail]) -> String {
    let others = in_use(all).filter(|rail| rail.carries());
    let others: BTreeSet<_> = others.map(|rail| rail.route.to_string()).collect();
    if others.is_empty() {
        return "no other rail carries its data".to_owned();
    }
    let others: Vec<_> = others.into_iter().collect();
    format!("its data go over {}", others.join(", "))
}

/// Tells people of rails that were added, once for all links over them.
pub(super) fn announce(rails: &mut [Rail]) {
    let silent = rails.iter().filter_map(Rail::as_silent);
    let silent: BTreeMap<_, _> = silent.map(|rail| (rail.name, rail.silence)).collect();
    let silent = silent.iter();
    let silent = silent.map(|(name, silence)| format!("{name} for {silence:.1?}"));
    let silent = silent.collect::<Vec<_>>().join(", ");
    let needs_them = !homes_carry(rails);
    for rail in rails.iter_mut().filter(|rail| rail.is_new) {
        rail.is_new = false;
        let name = rail.route.to_string();
        // They may be back by now.
        if needs_them && rail.carries() && SAID.get().lock().insert(rail.route.as_carrier()) {
            spark_ccl_log::remark(&format!(
                "data go over {name} from now on, since nothing comes back over {silent}"
            ));
        }
    }
}

impl Rail {
    /// The rail of a connection; `None` if that stays within this host.
    pub(super) fn of(stream: &Arc<dyn Stream>) -> Option<Self> {
        let [own, peer] = stream
            .addresses()
            .filter(|[own, peer]| own.ip() != peer.ip())?;
        let interface = None;
        Some(Self {
            stream: Arc::clone(stream),
            route: ConnectionRoute {
                interface,
                own,
                peer,
            },
            silent_since: None,
            lost: None,
            is_spare: false,
            is_new: false,
        })
    }

    /// Asks the kernel; returns what has changed.
    pub(super) fn listen(&mut self) -> Option<Heard> {
        let now = Instant::now();
        match (silence_of(&*self.stream), self.silent_since) {
            (Err(error), _) => {
                self.silent_since.get_or_insert(now);
                let is_news = self.lost.replace(error).is_none();
                is_news.then_some(Heard::Lost(error))
            }
            (Ok(Some(silence)), None) => {
                self.silent_since = Some(now.checked_sub(silence).unwrap_or(now));
                Some(Heard::Nothing(silence))
            }
            (Ok(None), Some(since)) => {
                self.silent_since = None;
                Some(Heard::Again(since.elapsed()))
            }
            _ => None,
        }
    }

    /// Whether nothing comes back over it at the moment.
    ///
    /// # Errors
    /// Why the kernel has given the connection up.
    pub(super) fn is_silent(&self) -> rustix::io::Result<bool> {
        self.lost.map_or(Ok(self.silent_since.is_some()), Err)
    }

    fn carries(&self) -> bool {
        self.is_silent() == Ok(false)
    }

    pub(super) fn as_silent(&self) -> Option<SilentRail> {
        Some(SilentRail {
            name: self.route.to_string(),
            silence: self.silent_since?.elapsed(),
        })
    }

    /// Tells people, once for all links over this rail.
    pub(super) fn remark(&self, heard: Heard, all: &[Self]) {
        if let Some(text) = self.news(heard, all, &mut SAID.get().lock()) {
            spark_ccl_log::remark(&text);
        }
    }

    /// The text for people, unless `said` has it already. Notes it there.
    fn news(&self, heard: Heard, all: &[Self], said: &mut BTreeSet<String>) -> Option<String> {
        let name = self.route.to_string();
        match heard {
            Heard::Nothing(silence) => said.insert(name.clone()).then(|| {
                format!(
                    "nothing has come back over {name}{} for {silence:.1?}, {}: check its cable, \
                     ports, interfaces and addresses, here and at the peer",
                    self.route.state(),
                    goes_on(all)
                )
            }),
            Heard::Again(silence) => said
                .remove(&name)
                .then(|| format!("{name} answers again, after {silence:.1?}")),
            Heard::Lost(error) => {
                let mut silent = all.iter().filter(|one| one.is_silent() == Ok(true));
                if silent.all(|one| one.route.differs(&self.route)) {
                    // The next one by that way may fall silent, too.
                    said.remove(&name);
                }
                let is_open = all.iter().any(|rail| rail.lost.is_none());
                // Otherwise the link has ended, and says so.
                let is_news = is_open && !self.is_spare && !self.stream.is_closed_by_peer();
                let text = || {
                    let goes_on = goes_on(all);
                    format!("a connection over {name} is lost ({error}), {goes_on}")
                };
                (is_news && said.insert(self.route.as_lost())).then(text)
            }
        }
    }
}

impl ConnectionRoute {
    /// Whether the two join different addresses.
    pub(super) fn differs(&self, other: &Self) -> bool {
        [self.own.ip(), self.peer.ip()] != [other.own.ip(), other.peer.ip()]
    }

    pub(super) fn name(&mut self, interfaces: &[Interface]) {
        let scope = match self.own {
            SocketAddr::V6(own) => own.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let fits =
            |one: &&Interface| one.addr == self.own.ip() && (scope == 0 || scope == one.index);
        let name = interfaces.iter().find(fits).map(|one| one.name.clone());
        self.interface = Some(name.unwrap_or_else(|| "an unknown interface".to_owned()));
    }

    /// The entry of [`SAID`] for a spare one that carries.
    pub(super) fn as_carrier(&self) -> String {
        format!("data over {self}")
    }

    /// The entry of [`SAID`] for a connection by this route that was lost.
    pub(super) fn as_lost(&self) -> String {
        format!("{self} is lost")
    }

    /// The state of an interface that is not up, in words.
    fn state(&self) -> String {
        let interface = self.interface.as_deref().unwrap_or_default();
        let path = format!("/sys/class/net/{interface}/operstate");
        match std::fs::read_to_string(path) {
            Ok(state) if !["up", "unknown"].contains(&state.trim()) => {
                format!(" (its state: {})", state.trim())
            }
            _ => String::new(),
        }
    }
}

impl fmt::Display for ConnectionRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            interface,
            own,
            peer,
        } = self;
        let interface = interface.as_deref().unwrap_or_default();
        write!(f, "{interface} ({} -> {})", own.ip(), peer.ip())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use spark_ccl_fork::Unshared;

    use super::super::stream::Connection;
    use super::*;

    fn rail(host: u8, is_spare: bool) -> Rail {
        let socket = UnixStream::pair().unwrap().0;
        let address = |host| SocketAddr::from(([192, 0, 2, host], 0));
        Rail {
            stream: Arc::new(Connection::new(Unshared::new(socket.into()))),
            route: ConnectionRoute {
                interface: Some("eth0".to_owned()),
                own: address(1),
                peer: address(host),
            },
            silent_since: None,
            lost: None,
            is_spare,
            is_new: false,
        }
    }

    #[test]
    fn a_rail_that_is_lost_or_silent_is_not_said_to_carry() {
        let mut rails = [rail(2, false), rail(3, true), rail(4, true)];
        assert_eq!(
            goes_on(&rails),
            "its data go over eth0 (192.0.2.1 -> 192.0.2.2)"
        );
        rails[0].silent_since = Some(Instant::now());
        rails[1].lost = Some(Errno::CONNRESET);
        assert_eq!(
            goes_on(&rails),
            "its data go over eth0 (192.0.2.1 -> 192.0.2.4)"
        );
        // The first one is lost before it was found silent.
        (rails[0].silent_since, rails[0].lost) = (None, Some(Errno::TIMEDOUT));
        assert_eq!(
            goes_on(&rails),
            "its data go over eth0 (192.0.2.1 -> 192.0.2.4)"
        );
        rails[2].silent_since = Some(Instant::now());
        assert_eq!(goes_on(&rails), "no other rail carries its data");
    }

    #[test]
    fn a_lost_connection_is_told_of_once_and_a_later_silence_again() {
        let mut rails = [rail(2, false), rail(3, false)];
        let mut said = BTreeSet::new();
        let (silence, lost) = (Heard::Nothing(SILENT_AFTER), Heard::Lost(Errno::CONNRESET));
        assert!(rails[0].news(silence, &rails, &mut said).is_some());
        rails[0].lost = Some(Errno::CONNRESET);
        let text = rails[0].news(lost, &rails, &mut said).unwrap();
        let parts = [
            "over eth0 (192.0.2.1 -> 192.0.2.2) is lost (Connection reset",
            ", its data go over eth0 (192.0.2.1 -> 192.0.2.3)",
        ];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        assert_eq!(rails[0].news(lost, &rails, &mut said), None);
        assert!(rail(2, false).news(silence, &rails, &mut said).is_some());
        // The link has ended, and says why.
        rails[1].lost = Some(Errno::CONNRESET);
        assert_eq!(rails[1].news(lost, &rails, &mut said), None);
    }
    #[test]
    fn a_lost_connection_leaves_the_silence_of_another_by_that_way_told() {
        let mut rails = [rail(2, false), rail(2, false)];
        let mut said = BTreeSet::new();
        let (silence, lost) = (Heard::Nothing(SILENT_AFTER), Heard::Lost(Errno::CONNRESET));
        rails[1].silent_since = Some(Instant::now());
        assert!(rails[1].news(silence, &rails, &mut said).is_some());
        rails[0].lost = Some(Errno::CONNRESET);
        assert!(rails[0].news(lost, &rails, &mut said).is_some());
        assert_eq!(rail(2, false).news(silence, &rails, &mut said), None);
    }
}
