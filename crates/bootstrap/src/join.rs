//! Joins a world: listens, connects to the rendezvous, and gets the table of all ranks.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use socket2::Socket;
use spark_ccl_fork::{Unshared, lookup_while};
use spark_ccl_seal::Sealer;

use crate::cancel::Cancel;
use crate::connect::{Connect, establish};
use crate::dial::Route;
use crate::error::RENDEZVOUS;
use crate::frame::{Frame, FrameReader, ReadError};
use crate::handshake::{Entered, Intent};
use crate::hello::{Endpoint, Hello, MAX_RANKS, PeerInfo, Table};
use crate::host::HostId;
use crate::incoming::{Incoming, ListenerRole};
use crate::init_result::MAX_INIT_RESULT;
use crate::keys::{self, Keys};
use crate::link_streams::{Contexts, LinkStreams, Requests};
use crate::network::{Network, reachable};
use crate::relay::{Draining, Relays};
use crate::routes::routes;
use crate::search::{Responder, Search, SearchKey};
use crate::secret::random;
use crate::session_thread::{RendezvousStream, SessionThread, failed, lost};
use crate::stop::Stop;
use crate::stream_table::StreamTable;
use crate::wire::FrameKind;
use crate::wiring::MOST_RANKS;
use crate::{Address, Error, Options, Secret, hello_check, listening, net, reminder, sealed_frame};

/// The pause between two checks of a rank that waits for the table, whether it is to go on.
const LOOK: Duration = Duration::from_millis(200);

/// A rank that has the table of all ranks.
pub(crate) struct Joined {
    pub(crate) table: Table,
    pub(crate) stream_table: Arc<StreamTable>,
    pub(crate) contexts: Arc<Contexts>,
    pub(crate) network: Network,
}

/// Where to join, and as which rank.
pub(crate) struct Joining<'a> {
    pub(crate) targets: &'a [SocketAddr],
    pub(crate) secret: &'a Secret,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) options: &'a Options,
    pub(crate) deadline: Instant,
    /// How long the rendezvous may refuse connections: it may not have started yet.
    pub(crate) refusal: Duration,
}

/// Checks a rank and a size without the rendezvous.
pub(crate) fn check_rank(rank: u32, size: u32) -> Result<(), Error> {
    let problem = match size {
        0 => "a world of 0 ranks is not possible: the size must be at least 1".to_owned(),
        _ if size > MAX_RANKS => {
            format!("a world of {size} ranks is not possible: the most are {MAX_RANKS}")
        }
        _ if rank >= size => {
            format!(
                "rank {rank} is outside of a world of {size} ranks (0 to {})",
                size - 1
            )
        }
        _ => return Ok(()),
    };
    Err(Error::Argument(problem))
}

impl Joining<'_> {
    pub(crate) fn join(&self) -> Result<Joined, Error> {
        let endpoints = Endpoints::open(self.options)?;
        let name = rendezvous_name(self.targets);
        let (entered, mut responder) = self.go_to_rendezvous(&name)?;
        let Entered { socket, mut seals } = entered;
        let hello = Hello {
            peer: endpoints.introduce(self.rank, self.options),
            size: self.size,
            build: self.options.build.clone(),
            wire_hash: self.options.wire_hash,
            wire_summary: self.options.wire_summary.clone(),
            time_left: self.deadline.saturating_duration_since(Instant::now()),
            note: self.options.note.clone(),
        };
        let hello = sealed_frame::sealed(&mut seals.sealer, FrameKind::Hello, hello.encode());
        net::write_all(&socket, &hello, self.deadline)
            .map_err(|error| lost(&name, &ReadError::Io(error)))?;
        let mut reader = FrameReader::sealed(seals.opener);
        let table = self.wait_for_table(&socket, &mut reader, &name, &mut responder)?;
        let socket = Arc::new(socket);
        let rendezvous = RendezvousStream::new(Arc::clone(&socket), reader, name, self.size);
        self.start(
            endpoints,
            table,
            rendezvous,
            (socket, seals.sealer),
            responder,
        )
    }

    /// The routes to the rendezvous.
    fn ways(&self) -> Vec<Route> {
        let targets: Vec<Endpoint> = self.targets.iter().copied().map(Into::into).collect();
        let mut ways = routes(&self.options.addresses, &targets, None);
        // The rendezvous may be on this host, where the scopes in its addresses are valid.
        for &target in self.targets {
            let way = Route::Tcp {
                source: None,
                target,
            };
            if !ways.contains(&way) {
                ways.push(way);
            }
        }
        // Addresses that this host has, too, such as docker0's, come last: they lead back here.
        ways.sort_by_cached_key(Route::leads_here);
        ways
    }

    /// Connects. From then on, passes others' connections on.
    fn go_to_rendezvous(&self, name: &str) -> Result<(Entered, Option<Responder>), Error> {
        let own = &self.options.addresses;
        let is_large = !(3..=MOST_RANKS).contains(&self.size);
        let datagram_key = SearchKey::new(self.secret, self.targets).filter(|_| !is_large);
        let search = Search::new(self.rank, datagram_key, own);
        let entered = self.dial_rendezvous(name, &search, datagram_key.is_some());
        let entered = entered.map_err(|error| search.explain(error))?;
        let upstream = entered.socket.peer_addr().ok();
        let upstream = upstream.and_then(|address| address.as_socket());
        let responder = datagram_key.zip(upstream).map(|(datagram_key, upstream)| {
            let hops = search.hops_by(upstream);
            Responder::new(datagram_key, own, upstream, hops)
        });
        Ok((entered, responder))
    }

    fn dial_rendezvous(
        &self,
        name: &str,
        search: &Search,
        may_search: bool,
    ) -> Result<Entered, Error> {
        let ask = || search.ask();
        let dial_it = || {
            establish(&Connect {
                peer: name,
                routes: &self.ways(),
                key: &keys::key(self.secret),
                intent: Intent::Rendezvous {
                    world: keys::world(self.secret),
                },
                deadline: self.deadline,
                refusal: self.refusal,
                interrupt: &|| self.options.cancel.check().err(),
                more: may_search.then_some(&ask),
            })
        };
        let Joining { rank, size, .. } = *self;
        let place = match &*self.options.rendezvous_setting {
            "" => name.to_owned(),
            setting => format!("{name} ({setting})"),
        };
        let text = move |left: &str| {
            format!(
                "rank {rank} of {size} has not reached {place}, and tries for {left} more; has \
                 rank 0 been started there?"
            )
        };
        reminder::while_waiting(text, self.deadline, dial_it).map_err(|error| match error {
            Error::Unreachable {
                attempts, refused, ..
            } => Error::Unreachable {
                peer: RENDEZVOUS.to_owned(),
                attempts,
                refused,
            },
            error => error,
        })
    }

    fn wait_for_table(
        &self,
        stream: &Socket,
        reader: &mut FrameReader,
        name: &str,
        responder: &mut Option<Responder>,
    ) -> Result<Table, Error> {
        let limit = Table::limit(self.size).max(MAX_INIT_RESULT);
        let frame = self.read_on(stream, reader, limit, responder);
        self.options.cancel.check()?;
        let protocol = |reason| Error::Protocol {
            peer: name.to_owned(),
            reason,
        };
        match frame {
            Ok((FrameKind::Table, body)) => Table::decode(&body, self.size)
                .map_err(|error| protocol(format!("its table is {error}"))),
            Ok((FrameKind::Failed, body)) => Err(failed(&body, name)),
            Ok((seen, _)) => Err(protocol(format!("it sent a {seen:?} frame for the table"))),
            Err(ReadError::Io(error)) if error.kind() == io::ErrorKind::TimedOut => {
                Err(Error::Timeout(format!(
                    "{name} answered, but did not say within {} s that all {} ranks have arrived",
                    self.options.init_timeout.as_secs_f64(),
                    self.size
                )))
            }
            Err(ReadError::Wire(error)) => Err(protocol(format!("it sent {error}"))),
            Err(error) => Err(lost(name, &error)),
        }
    }

    /// Waits for a frame. Passes others' connections on meanwhile.
    fn read_on(
        &self,
        stream: &Socket,
        reader: &mut FrameReader,
        limit: usize,
        responder: &mut Option<Responder>,
    ) -> Result<Frame, ReadError> {
        loop {
            if let Some(frame) = reader.poll(stream, limit)? {
                return Ok(frame);
            }
            let now = Instant::now();
            if now >= self.deadline || self.options.cancel.is_cancelled() {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            let mut fds = vec![PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)];
            let mut until = self.deadline.min(now + LOOK);
            if let Some(responder) = &*responder {
                responder.watch(&mut fds);
                until = responder.next_wake().map_or(until, |wake| until.min(wake));
            }
            net::poll(&mut fds, Some(until))?;
            if let Some(responder) = responder {
                responder.serve(Instant::now());
            }
        }
    }

    /// The routes to the ranks that this one passes connections on to.
    fn routes_onward(&self, table: &Table) -> Box<dyn Fn(u32) -> Vec<Route> + Send> {
        let own = self.options.addresses.clone();
        let host = HostId::of_this_process();
        let peers = if self.size <= MOST_RANKS {
            table.peers.clone()
        } else {
            Vec::new()
        };
        Box::new(move |rank| {
            let peer = peers.get(rank as usize);
            let targets = peer.map(|peer| reachable(peer, peer.host_id == host, net::is_own));
            routes(&own, &targets.unwrap_or_default(), None)
        })
    }

    fn start(
        &self,
        endpoints: Endpoints,
        table: Table,
        rendezvous: RendezvousStream,
        report_to: (Arc<Unshared<Socket>>, Sealer),
        responder: Option<Responder>,
    ) -> Result<Joined, Error> {
        let os = |error: io::Error| Error::os("start the thread for connections", &error);
        let key = self.secret.derive(b"session", &table.nonce);
        let stream_table = Arc::new(StreamTable::default());
        let stop = Arc::new(Stop::new().map_err(os)?);
        let role = ListenerRole::Streams {
            rank: self.rank,
            size: self.size,
        };
        let requests = Arc::new(Requests::new().map_err(os)?);
        let contexts = Arc::<Contexts>::default();
        let draining = Arc::<Draining>::default();
        let session_thread = SessionThread {
            link_streams: LinkStreams::new(self.rank, key, requests.clone(), contexts.clone()),
            requests: requests.clone(),
            incoming: Incoming::new(role, Keys::one(key), endpoints.listeners),
            stream_table: stream_table.clone(),
            stop: stop.clone(),
            rendezvous,
            relays: Relays::default(),
            draining: draining.clone(),
            responder,
            init_result: None,
            routes: self.routes_onward(&table),
        };
        spark_ccl_log::spawn("spark-ccl-accept", move || session_thread.run()).map_err(os)?;
        let own = self.options.addresses.clone();
        let network = Network::new(key, own, report_to, (stop, draining), requests);
        Ok(Joined {
            table,
            stream_table,
            contexts,
            network,
        })
    }
}

/// Where a rank listens.
struct Endpoints {
    listeners: Vec<Socket>,
    addresses: Vec<Endpoint>,
    unix_name: String,
}

impl Endpoints {
    fn open(options: &Options) -> Result<Self, Error> {
        let mut listeners = listening::listen_on(options.listen_addresses()?)?;
        let mut addresses = Vec::new();
        for listener in &listeners {
            let bound = listener
                .local_addr()
                .map_err(|e| Error::os("read a socket's address", &e))?;
            let endpoint = |bound| endpoint(&options.addresses, bound);
            addresses.extend(bound.as_socket().map(endpoint));
        }
        listeners.extend(listening::listen_on_devices(&options.addresses, &listeners));
        let mut unix_name = format!("spark-ccl-{:032x}", u128::from_le_bytes(random()?));
        match net::listen_unix(&unix_name) {
            Ok(listener) => listeners.push(listener),
            Err(error) => {
                spark_ccl_log::info!(
                    "no abstract Unix sockets here, ranks of this host use TCP: {error}"
                );
                unix_name.clear();
            }
        }
        Ok(Endpoints {
            listeners,
            addresses,
            unix_name,
        })
    }

    fn introduce(&self, rank: u32, options: &Options) -> PeerInfo {
        PeerInfo {
            rank,
            host: options.host.clone(),
            host_id: HostId::of_this_process(),
            pid: std::process::id(),
            addresses: self.addresses.clone(),
            rdma_ports: options.rdma_ports,
            unix_name: self.unix_name.clone(),
        }
    }
}

/// The description of an address that this rank listens on, for the others.
fn endpoint(own: &[Address], bound: SocketAddr) -> Endpoint {
    let known = own.iter().find(|one| one.with_port(bound.port()) == bound);
    known.map_or(bound.into(), |one| Endpoint {
        address: bound,
        interface: one.interface,
        speed: one.speed,
    })
}

fn rendezvous_name(targets: &[SocketAddr]) -> String {
    format!("the rendezvous at {}", hello_check::list(targets))
}

/// Resolves the host name of a rendezvous.
pub(crate) fn resolve(
    host: &str,
    port: u16,
    deadline: Instant,
    cancel: &Cancel,
) -> Result<Vec<SocketAddr>, Error> {
    if let Ok(ip) = host.parse() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let name = host.to_owned();
    let text = move |left: &str| {
        format!("the rendezvous' host {name} is not known yet, and is looked up for {left} more")
    };
    reminder::while_waiting(text, deadline, || look_up(host, port, deadline, cancel))
}

fn look_up(
    host: &str,
    port: u16,
    deadline: Instant,
    cancel: &Cancel,
) -> Result<Vec<SocketAddr>, Error> {
    let mut last = "no answer in time".to_owned();
    loop {
        match lookup_while(host, port, deadline, || cancel.check())? {
            Ok(found) if !found.is_empty() => return Ok(found),
            Ok(_) => "it has no address".clone_into(&mut last),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            Err(error) => last = error.to_string(),
        }
        let pause = Duration::from_millis(300);
        if Instant::now() + pause >= deadline {
            let attempts = vec![(format!("host name {host}"), last)];
            return Err(Error::Unreachable {
                peer: RENDEZVOUS.to_owned(),
                attempts,
                refused: false,
            });
        }
        std::thread::sleep(pause);
    }
}

/// The deadline for joining.
pub(crate) fn join_deadline(options: &Options) -> Instant {
    let since = options.since.unwrap_or_else(Instant::now);
    net::deadline_after(since, options.init_timeout)
}
