//! The rails of a link to another host: the ways that its connections take. Notices a rail over
//! which nothing comes back any more, names it, and has the others carry its messages. Knows
//! interfaces, and what the kernel knows of connections.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use spark_ccl_fork::PerProcess;
use spark_ccl_log::Mutex;

use super::outbox::Outbox;
use super::spares::{MOST, Spares};
use super::stream::Stream;
use crate::netif::{self, Interface};
use crate::upkeep::{self, Upkeep};
use crate::{Geometry, SilentRail};

/// A rail over which nothing has come back for this long, although the kernel asks, is silent.
const SILENT_AFTER: Duration = Duration::from_secs(3);
/// How long the end of a link may wait for what is not acknowledged: longer than it takes to find a
/// silent rail.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);
/// The same soon after another link has waited in vain: they end one after the other.
const CLOSE_AFTER_ANOTHER: Duration = Duration::from_millis(200);
/// How late an acknowledgement may come from a peer whose rails carry.
const DOUBT_AFTER: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// The silent rails that the log tells of, and the spare ones that carry.
pub(super) static SAID: PerProcess<Mutex<BTreeSet<String>>> = PerProcess::new();

/// When a link has ended with messages that were not acknowledged.
static IN_VAIN: PerProcess<Mutex<Option<Instant>>> = PerProcess::new();

/// The sending half of a link, and its rails; the thread that looks after links has it as well.
pub(super) struct Link {
    pub(super) outbox: Mutex<Outbox>,
    /// In the order of the outbox's sockets; none if no cable can be pulled.
    rails: Mutex<Vec<Rail>>,
    pub(super) spares: Arc<Spares>,
}

/// A connection, and the way that it takes.
struct Rail {
    stream: Arc<dyn Stream>,
    way: Way,
    silent_since: Option<Instant>,
    /// Why the kernel has given the connection up.
    lost: Option<Errno>,
    /// It was added, and carries only while those of the beginning do not.
    is_spare: bool,
    /// The log does not tell yet that it was added.
    is_new: bool,
}

/// Where a connection leads.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Way {
    /// The interface, once it was looked up.
    interface: Option<String>,
    own: SocketAddr,
    peer: SocketAddr,
}

impl Link {
    pub(super) fn new(streams: &[Arc<dyn Stream>], geometry: Geometry) -> Self {
        let rails = rails_of(streams);
        // Another network may carry what a cable does not deliver.
        let retains = !rails.is_empty();
        Self {
            outbox: Mutex::new(Outbox::new(streams, geometry, retains)),
            rails: Mutex::new(rails),
            spares: Arc::default(),
        }
    }

    /// Adds the spare connection with this number.
    pub(super) fn add(&self, number: usize, stream: Arc<dyn Stream>) {
        let Some(mut rail) = rail_of(&stream) else {
            return;
        };
        (rail.is_spare, rail.is_new) = (true, true);
        // Until all have it: another one may be added at the same time.
        let mut rails = self.rails.lock();
        let mut outbox = self.outbox.lock();
        if outbox.ended.is_some() {
            return;
        }
        stream.keep_asking();
        let alike = |one: &&Rail| one.is_spare && one.lost.is_none() && !one.way.differs(&rail.way);
        let alike = rails.iter().filter(alike).count();
        if alike >= MOST {
            // The peer, which may know of fewer, may have sent by it.
            stream.close();
            return self.spares.add(number, stream, Instant::now());
        }
        if alike + 1 == MOST {
            let [own, peer] = [rail.way.own.ip(), rail.way.peer.ip()];
            spark_ccl_log::warn!(
                "a link over TCP has got {MOST} connections from {own} to {peer}, one after the \
                 other, since nothing came back over those before, and takes no more by that way"
            );
        }
        rails.push(rail);
        outbox.add_spare(Arc::clone(&stream));
        self.spares.add(number, stream, Instant::now());
        drop((outbox, rails));
        self.look();
    }

    /// Has a thread look after the link, if a cable can be pulled.
    pub(super) fn be_kept(self: &Arc<Self>) {
        let rails = self.rails.lock();
        rails.iter().for_each(|rail| rail.stream.keep_asking());
        if rails.is_empty() {
            return;
        }
        if let Err(error) = upkeep::keep(self) {
            // Only the timeout then ends what waits for a cable that is out.
            spark_ccl_log::warn!("no thread looks after a link over TCP: {error}");
        }
    }

    /// The silent rails of those in use, once for each of their connections.
    pub(super) fn silent(&self) -> Vec<SilentRail> {
        let rails = self.rails.lock();
        in_use(&rails).filter_map(Rail::as_silent).collect()
    }

    /// Waits until all messages have arrived, as long as that takes no longer than finding out that
    /// a rail is silent.
    pub(super) fn settle(&self) {
        let begin = Instant::now();
        let before = *IN_VAIN.get().lock();
        let is_soon = before.is_some_and(|end| begin < end + CLOSE_WITHIN);
        let within = if is_soon {
            CLOSE_AFTER_ANOTHER
        } else {
            CLOSE_WITHIN
        };
        let (until, doubt) = (begin + within, begin + DOUBT_AFTER);
        loop {
            let mut outbox = self.outbox.lock();
            outbox.note_acknowledged();
            let now = Instant::now();
            let is_late = now > until || now > doubt && !outbox.is_in_doubt();
            if outbox.is_settled() {
                return;
            }
            if is_late {
                *IN_VAIN.get().lock() = Some(now);
                return;
            }
            drop(outbox);
            thread::sleep(PAUSE);
            self.look();
        }
    }
}

/// Those that carry, or should: the spare ones only where all others are silent.
fn in_use(rails: &[Rail]) -> impl Iterator<Item = &Rail> {
    let mut homes = rails.iter().filter(|rail| !rail.is_spare);
    let needs_spares = !homes.any(Rail::carries);
    rails
        .iter()
        .filter(move |rail| needs_spares || !rail.is_spare)
}

/// What carries a link's data while a rail of it is silent, in words.
fn goes_on(all: &[Rail]) -> String {
    let others = in_use(all).filter(|rail| rail.carries());
    let others: BTreeSet<_> = others.map(|rail| rail.way.to_string()).collect();
    if others.is_empty() {
        return "no other rail carries its data".to_owned();
    }
    let others: Vec<_> = others.into_iter().collect();
    format!("its data go over {}", others.join(", "))
}

/// For how long nothing has come back over a connection, once it counts as silent.
///
/// # Errors
/// Why the kernel has given the connection up.
pub(super) fn silence_of(stream: &dyn Stream) -> rustix::io::Result<Option<Duration>> {
    let silence = stream.silence()?;
    Ok(silence.filter(|silence| *silence >= SILENT_AFTER))
}

/// Those of the sockets. None where no cable can be pulled, within this host.
fn rails_of(streams: &[Arc<dyn Stream>]) -> Vec<Rail> {
    let rails: Option<Vec<_>> = streams.iter().map(rail_of).collect();
    rails.unwrap_or_default()
}

/// That of a connection. `None` if it stays within this host.
fn rail_of(stream: &Arc<dyn Stream>) -> Option<Rail> {
    let [own, peer] = stream
        .addresses()
        .filter(|[own, peer]| own.ip() != peer.ip())?;
    let interface = None;
    Some(Rail {
        stream: Arc::clone(stream),
        way: Way {
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

impl Upkeep for Link {
    /// Finds out which rails are silent now.
    fn look(&self) {
        let mut rails = self.rails.lock();
        if rails.iter().any(|rail| rail.way.interface.is_none()) {
            let interfaces = netif::all().unwrap_or_default();
            rails.iter_mut().for_each(|rail| rail.way.name(&interfaces));
        }
        let heard: Vec<_> = rails.iter_mut().map(Rail::listen).collect();
        for (rail, heard) in rails.iter().zip(heard) {
            if let Some(heard) = heard {
                rail.remark(heard, &rails);
            }
        }
        announce(&mut rails);
        let silent: Vec<_> = rails.iter().map(Rail::is_silent).collect();
        let mut outbox = self.outbox.lock();
        outbox.heed(&silent);
        for number in (0..rails.len()).rev() {
            if outbox.is_spent(number) {
                outbox.sockets.remove(number);
                rails.remove(number);
            }
        }
        let is_cut = outbox.is_cut();
        let peers: Vec<_> = rails.iter().map(|rail| rail.way.peer.ip()).collect();
        drop((outbox, rails));
        if is_cut {
            self.spares.ask(&peers, Instant::now());
        }
    }
}

/// Tells people of rails that were added, once for all links over them.
fn announce(rails: &mut [Rail]) {
    let silent = rails.iter().filter_map(Rail::as_silent);
    let silent: BTreeMap<_, _> = silent.map(|rail| (rail.name, rail.silence)).collect();
    let silent = silent.iter();
    let silent = silent.map(|(name, silence)| format!("{name} for {silence:.1?}"));
    let silent = silent.collect::<Vec<_>>().join(", ");
    for rail in rails.iter_mut().filter(|rail| rail.is_new) {
        rail.is_new = false;
        let name = rail.way.to_string();
        // They may be back by now.
        if rail.carries() && !silent.is_empty() && SAID.get().lock().insert(rail.as_carrier()) {
            spark_ccl_log::remark(&format!(
                "data go over {name} from now on, since nothing comes back over {silent}"
            ));
        }
    }
}

/// That a rail has fallen silent, or answers again, and for how long it has been silent.
#[derive(Debug, Clone, Copy)]
enum Heard {
    Nothing(Duration),
    Again(Duration),
}

impl Rail {
    /// Asks the kernel; returns what has changed.
    fn listen(&mut self) -> Option<Heard> {
        let silence = silence_of(&*self.stream);
        self.lost = silence.err();
        match (silence.ok()?, self.silent_since) {
            (Some(silence), None) => {
                let now = Instant::now();
                self.silent_since = Some(now.checked_sub(silence).unwrap_or(now));
                Some(Heard::Nothing(silence))
            }
            (None, Some(since)) => {
                self.silent_since = None;
                Some(Heard::Again(since.elapsed()))
            }
            _ => None,
        }
    }

    /// # Errors
    /// Why the kernel has given the connection up.
    fn is_silent(&self) -> rustix::io::Result<bool> {
        self.lost.map_or(Ok(self.silent_since.is_some()), Err)
    }

    fn carries(&self) -> bool {
        self.is_silent() == Ok(false)
    }

    fn as_silent(&self) -> Option<SilentRail> {
        Some(SilentRail {
            name: self.way.to_string(),
            silence: self.silent_since?.elapsed(),
        })
    }

    /// How it is noted that the log tells of it as one that was added.
    fn as_carrier(&self) -> String {
        format!("data over {}", self.way)
    }

    /// Tells people, once for all links over this rail.
    fn remark(&self, heard: Heard, all: &[Self]) {
        let name = self.way.to_string();
        let mut said = SAID.get().lock();
        if matches!(heard, Heard::Again(_)) && !self.is_spare {
            // It is news when the spare ones carry again.
            for spare in all.iter().filter(|rail| rail.is_spare) {
                said.remove(&spare.as_carrier());
            }
        }
        let text = match heard {
            Heard::Nothing(silence) if said.insert(name.clone()) => {
                format!(
                    "nothing has come back over {name}{} for {silence:.1?}, {}: check its cable, \
                     ports, interfaces and addresses, here and at the peer",
                    self.way.state(),
                    goes_on(all)
                )
            }
            Heard::Again(silence) if said.remove(&name) => {
                format!("{name} answers again, after {silence:.1?}")
            }
            _ => return,
        };
        spark_ccl_log::remark(&text);
    }
}

impl Way {
    /// Whether it joins other addresses.
    fn differs(&self, other: &Self) -> bool {
        [self.own.ip(), self.peer.ip()] != [other.own.ip(), other.peer.ip()]
    }

    fn name(&mut self, interfaces: &[Interface]) {
        let scope = match self.own {
            SocketAddr::V6(own) => own.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let fits =
            |one: &&Interface| one.addr == self.own.ip() && (scope == 0 || scope == one.index);
        let name = interfaces.iter().find(fits).map(|one| one.name.clone());
        self.interface = Some(name.unwrap_or_else(|| "an unknown interface".to_owned()));
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

impl fmt::Display for Way {
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
            way: Way {
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
}
