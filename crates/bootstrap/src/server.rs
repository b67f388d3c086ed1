//! The thread that serves all rendezvous of this process. A unique id costs neither a thread nor a
//! descriptor of its own: ids share the listeners of their addresses, and a rank names the world
//! that it looks for.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use socket2::Socket;
use spark_ccl_fork::PerProcess;
use spark_ccl_log::Mutex;

use crate::address::Address;
use crate::handshake::WorldName;
use crate::incoming::{Admitted, Incoming, ListenerRole};
use crate::keys::{self, Keys};
use crate::member::Member;
use crate::net::{self, Bell};
use crate::rendezvous::RendezvousService;
use crate::stop::Stop;
use crate::{Error, Options, Secret, listening};

/// The most rendezvous of a process. Each takes a little memory while its id is valid.
const MOST: usize = 4096;
/// How long to pause if the system refuses to wait.
const PAUSE: Duration = Duration::from_millis(50);

static SERVER: PerProcess<Server> = PerProcess::new();

/// Where a rendezvous listens.
pub(crate) enum ListenAt<'a> {
    /// On listeners of its own, which close once its ranks have come.
    Alone(Vec<Socket>),
    /// On free ports of these addresses, shared with others. No other world has its secret.
    Shared(&'a [Address]),
}

/// A rendezvous that is served.
pub(crate) struct Served {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) stop: Arc<Stop>,
}

/// Serves a world whose ranks hold this secret.
pub(crate) fn serve(
    place: ListenAt<'_>,
    secret: &Secret,
    options: &Options,
) -> Result<Served, Error> {
    SERVER.get().serve(place, secret, options)
}

/// The state shared with the thread.
#[derive(Default)]
struct Server(Mutex<State>);

#[derive(Default)]
struct State {
    /// Wakes the thread; `None` while there is none.
    bell: Option<Arc<Bell>>,
    new: Vec<New>,
    shared: Vec<Shared>,
    last_listener: u64,
    /// The number of rendezvous.
    count: usize,
}

/// Listeners that several worlds share.
struct Shared {
    listener: u64,
    addresses: Vec<Address>,
    bound: Vec<SocketAddr>,
    keys: Arc<Keys>,
}

/// A rendezvous that the thread has yet to take over.
struct New {
    listener: u64,
    /// Its listeners, unless the thread already has them.
    incoming: Option<Incoming>,
    world: WorldName,
    service: RendezvousService,
}

impl Server {
    fn serve(
        &'static self,
        place: ListenAt<'_>,
        secret: &Secret,
        options: &Options,
    ) -> Result<Served, Error> {
        // Without the lock, since it logs.
        let (shared, listeners) = match place {
            ListenAt::Alone(listeners) => (None, listeners),
            ListenAt::Shared(addresses) if self.0.lock().knows(addresses).is_some() => {
                (Some(addresses), Vec::new())
            }
            ListenAt::Shared(addresses) => (Some(addresses), listening::listen_on(addresses)?),
        };
        let mut state = self.0.lock();
        if state.count >= MOST {
            return Err(Error::Argument(format!(
                "{MOST} unique ids of this process wait for their ranks: use them, or wait until \
                 they are good no longer"
            )));
        }
        let known = shared.and_then(|addresses| state.knows(addresses));
        let known = known.map(|known| {
            let keys = Arc::clone(&known.keys);
            (known.listener, None, known.bound.clone(), keys)
        });
        if let (Some(addresses), None, true) = (shared, &known, listeners.is_empty()) {
            // The shared listeners have closed meanwhile.
            drop(state);
            return self.serve(ListenAt::Shared(addresses), secret, options);
        }
        let bell = self.bell(&mut state)?;
        let stop = Arc::new(Stop::ringing(Arc::clone(&bell)));
        let mut service = RendezvousService::new(Arc::clone(&stop), options)?;
        let known = known.unwrap_or_else(|| state.add(listeners, shared));
        let (listener, incoming, addresses, its_keys) = known;
        service.listens_at(&addresses);
        let world = keys::world(secret);
        // Before the key: the thread must find it once a rank has proved that it holds the key.
        state.new.push(New {
            listener,
            incoming,
            world,
            service,
        });
        its_keys.add(world, keys::key(secret));
        state.count += 1;
        drop(state);
        bell.ring();
        Ok(Served { addresses, stop })
    }

    /// The bell of the thread, which is started if there is none. It ends when it has nothing to
    /// serve.
    fn bell(&'static self, state: &mut State) -> Result<Arc<Bell>, Error> {
        if let Some(bell) = &state.bell {
            return Ok(Arc::clone(bell));
        }
        let os = |error| Error::os("start the rendezvous", &error);
        let bell = Arc::new(Bell::new().map_err(os)?);
        let worker = Worker {
            server: self,
            bell: Arc::clone(&bell),
            incoming: Vec::new(),
            rendezvous: Vec::new(),
        };
        spark_ccl_log::spawn("spark-ccl-root", move || worker.run()).map_err(os)?;
        state.bell = Some(Arc::clone(&bell));
        Ok(bell)
    }
}

impl State {
    fn knows(&self, addresses: &[Address]) -> Option<&Shared> {
        let mut shared = self.shared.iter();
        shared.find(|shared| shared.addresses == addresses)
    }

    /// Adds new listeners. Returns their number, incoming connections, addresses and keys.
    fn add(
        &mut self,
        listeners: Vec<Socket>,
        shared: Option<&[Address]>,
    ) -> (u64, Option<Incoming>, Vec<SocketAddr>, Arc<Keys>) {
        let local = listeners.iter().map(Socket::local_addr);
        let bound = local.filter_map(|address| address.ok()?.as_socket());
        let bound: Vec<SocketAddr> = bound.collect();
        self.last_listener += 1;
        let keys = Arc::new(Keys::new(shared.is_some()));
        self.shared.extend(shared.map(|addresses| Shared {
            listener: self.last_listener,
            addresses: addresses.to_vec(),
            bound: bound.clone(),
            keys: Arc::clone(&keys),
        }));
        let incoming = Incoming::new(ListenerRole::Rendezvous, Arc::clone(&keys), listeners);
        (self.last_listener, Some(incoming), bound, keys)
    }
}

/// The thread's part.
struct Worker {
    server: &'static Server,
    bell: Arc<Bell>,
    incoming: Vec<(u64, Incoming)>,
    rendezvous: Vec<Rendezvous>,
}

struct Rendezvous {
    listener: u64,
    world: WorldName,
    service: RendezvousService,
    /// Whether its listener still admits ranks.
    is_open: bool,
}

impl Worker {
    fn run(mut self) {
        while self.go_on() {
            let ready = self.sleep().unwrap_or_else(|error| {
                // Most likely out of memory. The pause keeps the thread from spinning.
                spark_ccl_log::warn!("the rendezvous cannot wait for its connections: {error}");
                std::thread::sleep(PAUSE);
                vec![Vec::new(); self.rendezvous.len()]
            });
            let now = Instant::now();
            self.bell.silence();
            self.admit(now);
            for (rendezvous, ready) in self.rendezvous.iter_mut().zip(ready) {
                let mut all = self.incoming.iter();
                let incoming = all.find(|(listener, _)| *listener == rendezvous.listener);
                let refused = || incoming.map(|(_, incoming)| incoming.refused());
                rendezvous.service.serve(&ready, now, &refused);
            }
            self.close();
        }
    }

    /// Takes over new rendezvous, and drops ended ones. Returns whether any is left; if not, the
    /// thread must end.
    fn go_on(&mut self) -> bool {
        let mut state = self.server.0.lock();
        self.take_new(&mut state);
        let before = self.rendezvous.len();
        self.rendezvous
            .retain(|rendezvous| rendezvous.is_open || !rendezvous.service.finished());
        state.count -= before - self.rendezvous.len();
        // Under the lock: otherwise a new world could get listeners that are about to close.
        let open = self
            .rendezvous
            .iter()
            .filter(|rendezvous| rendezvous.is_open);
        let open: HashSet<u64> = open.map(|rendezvous| rendezvous.listener).collect();
        self.incoming
            .retain(|(listener, _)| open.contains(listener));
        state
            .shared
            .retain(|shared| open.contains(&shared.listener));
        if self.rendezvous.is_empty() {
            state.bell = None;
        }
        !self.rendezvous.is_empty()
    }

    fn take_new(&mut self, state: &mut State) {
        for new in std::mem::take(&mut state.new) {
            let incoming = new.incoming.map(|incoming| (new.listener, incoming));
            self.incoming.extend(incoming);
            self.rendezvous.push(Rendezvous {
                listener: new.listener,
                world: new.world,
                service: new.service,
                is_open: true,
            });
        }
    }

    /// Sleeps until something happens. Returns, for each rendezvous, the members whose streams are
    /// ready.
    fn sleep(&self) -> std::io::Result<Vec<Vec<usize>>> {
        let mut fds = vec![PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN)];
        let services = self.rendezvous.iter().map(|rendezvous| &rendezvous.service);
        let watched: Vec<Vec<usize>> = services.clone().map(|one| one.watch(&mut fds)).collect();
        for (_, incoming) in &self.incoming {
            incoming.watch(&mut fds);
        }
        let wakes = self
            .incoming
            .iter()
            .filter_map(|(_, incoming)| incoming.next_wake());
        let until = services
            .filter_map(RendezvousService::next_wake)
            .chain(wakes)
            .min();
        net::poll(&mut fds, until)?;
        let mut polled = fds[1..].iter().map(|fd| !fd.revents().is_empty());
        let ready = |members: Vec<usize>| {
            let members = members.into_iter();
            members.filter(|_| polled.next() == Some(true)).collect()
        };
        Ok(watched.into_iter().map(ready).collect())
    }

    fn admit(&mut self, now: Instant) {
        let mut admitted = Vec::new();
        for (listener, incoming) in &mut self.incoming {
            let new = incoming.serve(now, &|_, _| true).into_iter();
            admitted.extend(new.map(|admitted| (*listener, admitted)));
        }
        if admitted.is_empty() {
            return;
        }
        // A rank may arrive as soon as its world exists.
        let server = self.server;
        self.take_new(&mut server.0.lock());
        for (listener, admitted) in admitted {
            let Admitted::Rank {
                world,
                hello,
                stream,
                reader,
                sealer,
            } = admitted
            else {
                continue;
            };
            let mut rendezvous = self.rendezvous.iter_mut();
            let its = rendezvous.find(|one| one.listener == listener && one.world == world);
            if let Some(its) = its {
                let member = Member::new(*hello, stream, reader, sealer);
                its.service.add_member(member, now);
            }
        }
    }

    /// Admits no more ranks to worlds that are complete or over.
    fn close(&mut self) {
        for rendezvous in &mut self.rendezvous {
            let service = &rendezvous.service;
            if rendezvous.is_open && (!service.is_open() || service.finished()) {
                rendezvous.is_open = false;
                let mut all = self.incoming.iter_mut();
                let incoming = all.find(|(listener, _)| *listener == rendezvous.listener);
                if let Some((_, incoming)) = incoming {
                    incoming.keys.remove(rendezvous.world);
                }
            }
        }
    }
}
