//! The rails of a link to another host. If nothing comes back over one, the others carry its
//! messages. If none carries, asks for another connection.

use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use spark_ccl_fork::PerProcess;
use spark_ccl_log::Mutex;

use super::outbox::Outbox;
use super::rail::{ConnectionRoute, Rail, SAID, announce, homes_carry, in_use};
use super::spares::{MOST, Spares};
use super::stream::Stream;
use crate::upkeep::{self, Upkeep};
use crate::{Geometry, SilentRail, netif};

/// How long the end of a link may wait for what is not acknowledged: longer than it takes to find a
/// silent rail.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);
/// The same soon after another link has waited in vain, since links end one after the other.
const CLOSE_AFTER_ANOTHER: Duration = Duration::from_millis(200);
/// How late an acknowledgement may come from a peer whose rails carry.
const DOUBT_AFTER: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// When a link has ended with messages that were not acknowledged.
static IN_VAIN: PerProcess<Mutex<Option<Instant>>> = PerProcess::new();

/// The sending half of a link, and its rails; the thread that looks after links has it as well.
pub(super) struct Link {
    pub(super) outbox: Mutex<Outbox>,
    rails: Mutex<Rails>,
    /// Looks take turns: only they remove rails and their sockets, so numbers stay during a look.
    looks: Mutex<()>,
    pub(super) spares: Arc<Spares>,
}

#[derive(Default)]
struct Rails {
    /// In the order of the outbox's sockets; none if no cable can be pulled.
    all: Vec<Rail>,
    /// The routes of spare ones that were lost since one of the beginning last carried.
    lost: Vec<ConnectionRoute>,
}

impl Rails {
    /// The rails of the sockets. None within this host, where no cable can be pulled.
    fn of(streams: &[Arc<dyn Stream>]) -> Self {
        let all: Option<Vec<_>> = streams.iter().map(Rail::of).collect();
        Self {
            all: all.unwrap_or_default(),
            lost: Vec::new(),
        }
    }

    /// Asks the kernel, and tells people what has changed.
    fn listen(&mut self) {
        if self.all.iter().any(|rail| rail.route.interface.is_none()) {
            let interfaces = netif::all().unwrap_or_default();
            let unnamed = |rail: &&mut Rail| rail.route.interface.is_none();
            for rail in self.all.iter_mut().filter(unnamed) {
                rail.route.name(&interfaces);
                // The connection was made after the loss of which the log tells.
                SAID.get().lock().remove(&rail.route.as_lost());
            }
        }
        let heard: Vec<_> = self.all.iter_mut().map(Rail::listen).collect();
        for (rail, heard) in self.all.iter().zip(heard) {
            if let Some(heard) = heard {
                rail.remark(heard, &self.all);
            }
        }
        announce(&mut self.all);
        if homes_carry(&self.all) {
            // It is news when the spare ones carry again.
            let mut said = SAID.get().lock();
            let spares = self.all.iter().filter(|rail| rail.is_spare);
            for route in spares.map(|rail| &rail.route).chain(&self.lost) {
                said.remove(&route.as_carrier());
            }
            self.lost.clear();
        }
    }

    /// Removes a spare one that is lost.
    fn remove(&mut self, number: usize) {
        let route = self.all.remove(number).route;
        if self.lost.iter().all(|one| one.differs(&route)) {
            self.lost.push(route);
        }
    }

    /// The peer's addresses to which they have led, or lead, the worst last: a host that resets
    /// connections at least answers.
    fn peers(&self) -> Vec<IpAddr> {
        let mut all: Vec<_> = self.all.iter().collect();
        all.sort_by_key(|rail| rail.lost != Some(Errno::CONNRESET));
        self.lost
            .iter()
            .chain(all.into_iter().map(|rail| &rail.route))
            .map(|route| route.peer.ip())
            .collect()
    }
}

impl Link {
    pub(super) fn new(streams: &[Arc<dyn Stream>], geometry: Geometry) -> Self {
        let rails = Rails::of(streams);
        // Another network may carry what a cable does not deliver.
        let retains = !rails.all.is_empty();
        Self {
            outbox: Mutex::new(Outbox::new(streams, geometry, retains)),
            rails: Mutex::new(rails),
            looks: Mutex::default(),
            spares: Arc::default(),
        }
    }

    /// Adds the spare connection with this number.
    pub(super) fn add(&self, number: usize, stream: Arc<dyn Stream>) {
        let Some(mut rail) = Rail::of(&stream) else {
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
        let alike =
            |one: &&Rail| one.is_spare && one.lost.is_none() && !one.route.differs(&rail.route);
        let alike = rails.all.iter().filter(alike).count();
        if alike >= MOST {
            // The peer may have counted fewer, and sent over this one: so it is read.
            stream.close();
            return self.spares.add(number, stream, Instant::now());
        }
        if alike + 1 == MOST {
            let [own, peer] = [rail.route.own.ip(), rail.route.peer.ip()];
            spark_ccl_log::warn!(
                "a link over TCP has got {MOST} connections from {own} to {peer}, one after the \
                 other, since nothing came back over those before, and takes no more by that way"
            );
        }
        rails.all.push(rail);
        outbox.add_spare(Arc::clone(&stream));
        self.spares.add(number, stream, Instant::now());
        drop((outbox, rails));
        self.look();
    }

    /// Has a thread look after the link, if a cable can be pulled.
    pub(super) fn be_kept(self: &Arc<Self>) {
        let rails = self.rails.lock();
        let streams = rails.all.iter().map(|rail| &rail.stream);
        streams.for_each(|stream| stream.keep_asking());
        if rails.all.is_empty() {
            return;
        }
        if let Err(error) = upkeep::keep(self) {
            // Without it, only the timeout ends a call that waits for a cable that is out.
            spark_ccl_log::warn!("no thread looks after a link over TCP: {error}");
        }
    }

    /// The silent rails of those in use, once for each of their connections. One that was lost,
    /// maybe long ago, does not say why a call waits now.
    pub(super) fn silent(&self) -> Vec<SilentRail> {
        let rails = self.rails.lock();
        let open = in_use(&rails.all).filter(|rail| rail.lost.is_none());
        open.filter_map(Rail::as_silent).collect()
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

impl Upkeep for Link {
    /// Finds out which rails are silent now.
    fn look(&self) {
        let turn = self.looks.lock();
        let mut rails = self.rails.lock();
        rails.listen();
        let silent: Vec<_> = rails.all.iter().map(Rail::is_silent).collect();
        // A sender locks the outbox during its system calls: a question about rails must not wait.
        drop(rails);
        let mut outbox = self.outbox.lock();
        outbox.heed(&silent);
        let numbers = (0..outbox.sockets.len()).rev();
        let spent: Vec<_> = numbers.filter(|&number| outbox.is_spent(number)).collect();
        let (is_cut, homes) = (outbox.is_cut(), outbox.homes);
        drop(outbox);
        let mut rails = self.rails.lock();
        if !spent.is_empty() {
            let mut outbox = self.outbox.lock();
            for number in spent {
                outbox.sockets.remove(number);
                rails.remove(number);
            }
        }
        let peers = rails.peers();
        drop((rails, turn));
        self.spares.close_lost();
        if is_cut {
            self.spares.ask(homes, &peers, Instant::now());
        }
    }
}
