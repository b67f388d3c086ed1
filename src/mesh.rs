//! Links to all ranks of a communicator.

use crate::engine::CHANNELS;
use crate::error::Error;
use socket2::Socket;
use spark_ccl_bootstrap::{Kind, Purpose, Session, Via};
use spark_ccl_config::{Net, Settings};
use spark_ccl_control::Watch;
use spark_ccl_transport::memory::MemoryError;
use spark_ccl_transport::netif::{self, Interface};
use spark_ccl_transport::rdma::link as rdma;
use spark_ccl_transport::{Bell, Geometry, LinkError, LinkRx, LinkTx, shm, tcp};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often waiting for a peer's connection looks for faults.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(100);

/// For so long one interface is tried before any other is good enough.
const RAIL_PATIENCE: Duration = Duration::from_secs(5);

/// Everything that connects one rank to the others, by rank of the communicator.
pub(crate) struct Mesh {
    pub(crate) tx: Vec<Box<dyn LinkTx>>,
    pub(crate) rx: Vec<Box<dyn LinkRx>>,
    /// Streams to the ranks that share memory with this one.
    pub(crate) memory_streams: Vec<Option<Socket>>,
    pub(crate) names: Vec<String>,
    /// Of this rank's links that are not shared memory: rails of the one that has the fewest, 0 for TCP.
    pub(crate) fewest_rails: u32,
    /// With this the others wake up this rank.
    pub(crate) bell: Arc<Bell>,
}

/// The communicator that is being connected.
pub(crate) struct Site<'a> {
    pub(crate) session: &'a Session,
    pub(crate) settings: &'a Settings,
    /// The RDMA ports to choose from.
    pub(crate) nics: &'a rdma::Nics,
    pub(crate) watch: &'a Watch,
    /// That of the communicator that is split.
    pub(crate) parent: Option<&'a Watch>,
    pub(crate) context: u64,
    /// World ranks of the members; this rank is `members[rank]`.
    pub(crate) members: &'a [u32],
    pub(crate) rank: usize,
    /// Payload bytes of a slot, alike on all links.
    pub(crate) slot_bytes: usize,
    pub(crate) deadline: Instant,
}

enum Wiring {
    Own,
    Shared(Socket),
    Rails(Box<(rdma::Tx, rdma::Rx)>, Vec<String>),
    Tcp(Vec<Socket>),
}

impl Wiring {
    /// Rails, as far as they limit a link.
    fn rails(&self) -> u32 {
        match self {
            Self::Own | Self::Shared(_) => u32::MAX,
            Self::Rails(_, rails) => rails.len() as u32,
            Self::Tcp(_) => 0,
        }
    }
}

type Ends = (Box<dyn LinkTx>, Box<dyn LinkRx>, String, Option<Socket>);

impl Site<'_> {
    /// Connects to every member. Of each pair the higher rank connects and the lower accepts, and
    /// then the lower offers memory. Pairs are worked through in the same order everywhere, so
    /// nobody waits in a circle.
    pub(crate) fn connect(&self) -> Result<Mesh, Error> {
        let bell = Arc::new(Bell::new().map_err(|error| no_bell(&error))?);
        let interfaces = self.interfaces();
        let mut wirings: Vec<Wiring> = Vec::with_capacity(self.members.len());
        for peer in 0..self.members.len() {
            wirings.push(self.reach(&interfaces, peer)?);
        }
        let rails = wirings.iter().map(Wiring::rails);
        let mut mesh = Mesh {
            fewest_rails: rails.min().unwrap_or(u32::MAX),
            tx: Vec::new(),
            rx: Vec::new(),
            memory_streams: Vec::new(),
            names: Vec::new(),
            bell,
        };
        for (peer, wiring) in wirings.into_iter().enumerate() {
            let (tx, rx, name, stream) = self.link(peer, wiring, &mesh.bell)?;
            mesh.tx.push(tx);
            mesh.rx.push(rx);
            mesh.names.push(name);
            mesh.memory_streams.push(stream);
        }
        Ok(mesh)
    }

    /// What the link to `peer` is to be made of.
    fn reach(&self, interfaces: &[Interface], peer: usize) -> Result<Wiring, Error> {
        let stream = |kind| self.stream(interfaces, peer, kind, 0);
        if peer == self.rank {
            Ok(Wiring::Own)
        } else if shares_memory(self.session, self.settings, self.members[peer]) {
            stream(Kind::SharedMemory).map(Wiring::Shared)
        } else if self.tries_rdma(peer) {
            self.rails(interfaces, peer, stream(Kind::Rdma)?)
        } else {
            self.tcp(interfaces, peer)
        }
    }

    /// Whether both ranks talk about RDMA first: alike on both.
    fn tries_rdma(&self, peer: usize) -> bool {
        match self.settings.net {
            Net::Rdma => true,
            Net::Auto => !self.session.local_to(self.members[peer]),
            Net::Tcp => false,
        }
    }

    fn tcp(&self, interfaces: &[Interface], peer: usize) -> Result<Wiring, Error> {
        let to_this_host = self.session.local_to(self.members[peer]);
        let lanes = CHANNELS * self.settings.sockets(to_this_host);
        (0..lanes as u32)
            .map(|lane| self.stream(interfaces, peer, Kind::Tcp, lane))
            .collect::<Result<_, _>>()
            .map(Wiring::Tcp)
    }

    /// The higher rank connects and the lower accepts.
    fn stream(
        &self,
        interfaces: &[Interface],
        peer: usize,
        kind: Kind,
        lane: u32,
    ) -> Result<Socket, Error> {
        let purpose = Purpose {
            context: self.context,
            kind,
            lane,
        };
        if peer < self.rank {
            self.call(interfaces, peer, purpose)
        } else {
            self.accept(peer, purpose)
        }
    }

    /// The interfaces to choose rails from.
    fn interfaces(&self) -> Vec<Interface> {
        let mut members = self.members.iter();
        if members.all(|&member| self.session.local_to(member)) {
            return Vec::new();
        }
        let settings = self.settings;
        let choice = settings.socket_ifname.as_ref();
        netif::list()
            .and_then(|all| netif::select(&all, choice, settings.socket_family, None))
            .unwrap_or_default()
    }

    /// Opens a stream to the peer. Sockets of a channel take turns on the rails; where there are none,
    /// or one does not carry, the session finds a way.
    fn call(
        &self,
        interfaces: &[Interface],
        peer: usize,
        purpose: Purpose,
    ) -> Result<Socket, Error> {
        let member = self.members[peer];
        let connect = |via, deadline| self.session.connect(member, purpose, via, deadline);
        let rails = netif::rails(interfaces, &self.session.peer(member).addresses);
        if purpose.kind == Kind::Tcp && rails.len() > 1 {
            let rail = rails[purpose.lane as usize / CHANNELS % rails.len()];
            let via = Via::Tcp {
                source: Some(rail.source),
                target: Some(rail.target),
            };
            let patience = self.deadline.min(Instant::now() + RAIL_PATIENCE);
            match connect(via, patience) {
                Ok(stream) => return Ok(stream),
                Err(error) => tracing::warn!("{} carries nothing: {error}", rail.source),
            }
        }
        Ok(connect(via(purpose), self.deadline)?)
    }

    /// Waits for the peer's stream.
    fn accept(&self, peer: usize, purpose: Purpose) -> Result<Socket, Error> {
        loop {
            let look = self.look()?;
            match self.session.accept(self.members[peer], purpose, look) {
                Err(spark_ccl_bootstrap::Error::Timeout(_)) if Instant::now() < self.deadline => {}
                other => return Ok(other?),
            }
        }
    }

    /// Until when to wait before looking for faults again; an error when there is one.
    fn look(&self) -> Result<Instant, Error> {
        let watches = [Some(self.watch), self.parent];
        match watches.into_iter().flatten().find_map(Watch::fault) {
            Some(fault) => Err(Error::Failed(fault)),
            None => Ok(self.deadline.min(Instant::now() + LOOK_EVERY)),
        }
    }

    /// Waits for what the peer passes on.
    fn receive<T>(
        &self,
        mut receive: impl FnMut(Instant) -> Result<T, MemoryError>,
    ) -> Result<Result<T, MemoryError>, Error> {
        loop {
            match receive(self.look()?) {
                Err(MemoryError::TimedOut { .. }) if Instant::now() < self.deadline => {}
                other => return Ok(other),
            }
        }
    }

    /// Rails to the peer, or else what will do instead.
    fn rails(
        &self,
        interfaces: &[Interface],
        peer: usize,
        stream: Socket,
    ) -> Result<Wiring, Error> {
        let name = self.session.describe(self.members[peer]);
        let (settings, first) = (&self.settings.rdma, self.rank < peer);
        let geometry = self.geometry();
        let wait = rdma::Wait {
            deadline: self.deadline,
            go_on: &|| self.look().is_ok(),
        };
        match rdma::connect(self.nics, settings, stream, geometry, first, wait) {
            Ok((tx, rx, rails)) => Ok(Wiring::Rails(Box::new((tx, rx)), rails)),
            Err(problem) if problem.is_agreed() && self.settings.net == Net::Auto => {
                if let Some(reason) = &self.nics.none_because {
                    tracing::info!("TCP to {name}, not RDMA: {reason}");
                } else {
                    tracing::warn!("TCP to {name}, not RDMA: {problem}");
                }
                self.tcp(interfaces, peer)
            }
            Err(problem) => {
                // What ends a talk here may well have begun elsewhere.
                self.look()?;
                let reason = self.nics.none_because.as_deref();
                let reason = reason
                    .map(|reason| format!(" ({reason})"))
                    .unwrap_or_default();
                Err(Error::System {
                    what: format!("setting up the RDMA link to {name}"),
                    problem: format!("{problem}{reason}; SPARK_CCL_NET=tcp does without"),
                })
            }
        }
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            slot_bytes: self.slot_bytes,
            slots: self.settings.slots,
            channels: CHANNELS,
        }
    }

    fn link(&self, peer: usize, wiring: Wiring, bell: &Bell) -> Result<Ends, Error> {
        let geometry = self.geometry();
        let name = self.session.describe(self.members[peer]);
        let memory = |error: MemoryError| Error::Memory {
            what: format!("sharing memory with {name}"),
            problem: format!("{error}; SPARK_CCL_SHM=0 uses TCP instead"),
        };
        match wiring {
            Wiring::Own => {
                let ((tx, _), (_, rx)) = shm::pair(geometry).map_err(memory)?;
                Ok((Box::new(tx), Box::new(rx), "self".to_owned(), None))
            }
            Wiring::Shared(stream) => {
                let mut end = if self.rank < peer {
                    shm::offer(&stream, geometry, self.deadline).map_err(memory)?
                } else {
                    let offered = self.receive(|look| shm::accept(&stream, geometry, look))?;
                    offered.map_err(memory)?
                };
                shm::send_bell(&stream, bell, self.deadline).map_err(memory)?;
                let received = self.receive(|look| shm::receive_bell(&stream, &mut end, look))?;
                received.map_err(memory)?;
                let (mut tx, rx) = end;
                if self.settings.single_copy {
                    tx.allow_lending();
                }
                Ok((Box::new(tx), Box::new(rx), "shm".to_owned(), Some(stream)))
            }
            Wiring::Rails(link, rails) => {
                let (tx, rx) = *link;
                let route = format!("rdma {}", rails.join(", "));
                Ok((Box::new(tx), Box::new(rx), route, None))
            }
            Wiring::Tcp(sockets) => {
                let route = route(&sockets);
                let (tx, rx) = tcp::link(by_channel(sockets), geometry)
                    .map_err(|error| refused(&name, &error))?;
                Ok((Box::new(tx), Box::new(rx), route, None))
            }
        }
    }
}

/// Whether a rank's links and registered memory go through shared memory.
pub(crate) fn shares_memory(session: &Session, settings: &Settings, rank: u32) -> bool {
    settings.shm && session.local_to(rank)
}

fn no_bell(error: &std::io::Error) -> Error {
    Error::System {
        what: "making an eventfd to be woken up by".to_owned(),
        problem: error.to_string(),
    }
}

fn refused(peer: &str, error: &LinkError) -> Error {
    Error::System {
        what: format!("setting up the TCP link to {peer}"),
        problem: error.to_string(),
    }
}

fn via(purpose: Purpose) -> Via {
    match purpose.kind {
        Kind::SharedMemory => Via::Unix,
        Kind::Tcp | Kind::Rdma | Kind::Control => Via::Tcp {
            source: None,
            target: None,
        },
    }
}

/// Lane `l` is socket `l / CHANNELS` of channel `l % CHANNELS`.
fn by_channel(sockets: Vec<Socket>) -> Vec<Vec<Socket>> {
    let mut channels: Vec<Vec<Socket>> = (0..CHANNELS).map(|_| Vec::new()).collect();
    for (lane, socket) in sockets.into_iter().enumerate() {
        channels[lane % CHANNELS].push(socket);
    }
    channels
}

/// The addresses that a link's sockets join, for people.
fn route(sockets: &[Socket]) -> String {
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
    format!("tcp {}", routes.join(", "))
}
