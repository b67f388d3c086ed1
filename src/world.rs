//! The world, which a rank's communicators share: session, monitor, settings, devices. Knows no
//! communicator.

pub(crate) mod deadline;
pub(crate) mod exit;
mod helpers;
pub(crate) mod launch;
pub(crate) mod logging;
mod redial;
pub(crate) mod rendezvous;

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use helpers::Pool;
use spark_ccl_bootstrap::{HostId, Session, StreamId, StreamKind};
use spark_ccl_compute::{Compute, Cpu, Divided, Helpers};
use spark_ccl_config::{Net, Settings, Tuning};
use spark_ccl_control::{Monitor, Redial, neighbours};
use spark_ccl_log::Held;
use spark_ccl_log::Mutex;
use spark_ccl_topology::Cores;
use spark_ccl_transport::rdma::link::Nics;

use crate::error::Error;
use crate::plan::Network;

/// Version and commit of this build; all ranks must run the same.
pub const VERSION: &str = env!("BUILT_VERSION");
/// The context of streams that belong to no communicator.
pub(crate) const NO_CONTEXT: u64 = 0;

/// How this rank reduces elements.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Reducer {
    #[default]
    Cpu,
    /// The CPU, but each reduction is done only after this number of polls.
    #[cfg(feature = "testing")]
    Delayed(u32),
}

impl Reducer {
    pub(crate) fn start(self, helpers: &Arc<Helpers>) -> Box<dyn Compute> {
        let divided = Divided::new(Cpu::default(), Arc::clone(helpers));
        match self {
            Self::Cpu => Box::new(divided),
            #[cfg(feature = "testing")]
            Self::Delayed(polls) => Box::new(spark_ccl_compute::Delayed::new(divided, polls)),
        }
    }
}

pub(crate) struct World {
    pub(crate) session: Arc<Session>,
    pub(crate) settings: Settings,
    /// The measurements of rank 0's machine.
    pub(crate) tuning: Tuning,
    pub(crate) reducer: Reducer,
    /// The threads that help with long calls. All worlds of the process share them, unless its
    /// ranks are threads: each of these has its own.
    pub(crate) pool: Arc<Pool>,
    /// Opened before the ranks meet, to tell the others of them, or for the first communicator that
    /// needs them.
    nics: OnceLock<Nics>,
    pub(crate) monitor: Arc<Monitor>,
    stay: Mutex<Weak<Stay>>,
}

/// This rank's stay in the world, which its memberships of communicators share. Dropping it says
/// goodbye to the other ranks.
///
/// The monitor says goodbye when it is dropped, too. But threads of the library may hold it longer
/// than the program does (the session's, while it delivers a link; one that frees memory of a GPU).
/// If the process ends then, the others would take it for dead.
pub(crate) struct Stay(Arc<Monitor>);

impl Drop for Stay {
    fn drop(&mut self) {
        self.0.leave_world();
    }
}

impl exit::Leaves for Stay {
    fn leave_at_exit(&self, _: Instant) {
        self.0.leave_world();
    }
}

impl World {
    /// Connects the control plane of the session's ranks. Uses the `monitor` of ranks of one
    /// process, if given; else starts one on streams to this rank's neighbours.
    pub(crate) fn connect(
        session: Session,
        monitor: Option<Arc<Monitor>>,
        settings: Settings,
        tuning: Tuning,
        reducer: Reducer,
        nics: OnceLock<Nics>,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let session = Arc::new(session);
        let monitor = match monitor {
            Some(monitor) => monitor,
            None => watch_neighbours(&session, &settings, deadline)?,
        };
        let cores = cores_of(&session);
        let pool = if session.is_local() {
            Pool::new(&settings, cores)
        } else {
            Pool::shared(&settings, cores)
        };
        Ok(Self {
            session,
            settings,
            tuning,
            reducer,
            pool,
            nics,
            monitor,
            stay: Mutex::default(),
        })
    }

    /// The stay, which each membership of a communicator holds.
    pub(crate) fn stay(&self) -> Arc<Stay> {
        let mut known = self.stay.lock();
        if let Some(stay) = known.upgrade() {
            return stay;
        }
        let stay = Arc::new(Stay(Arc::clone(&self.monitor)));
        exit::add(&stay);
        *known = Arc::downgrade(&stay);
        stay
    }

    /// The RDMA ports that links may use.
    pub(crate) fn nics(&self) -> &Nics {
        let _held = Held::new();
        self.nics.get_or_init(|| open_nics(&self.settings))
    }

    /// The network between ranks that share no memory, alike everywhere: all of them have described
    /// their ports.
    pub(crate) fn network(
        &self,
        members: &[u32],
        all_share_memory: bool,
    ) -> Result<Network, Error> {
        if all_share_memory {
            return Ok(Network::None);
        }
        let demanded = match self.settings.net {
            Net::Tcp => return Ok(Network::Tcp),
            Net::Auto if self.session.is_local() || self.has_tcp_within_a_host(members) => {
                return Ok(Network::Tcp);
            }
            Net::Auto => false,
            Net::Rdma => true,
        };
        let ports = |member: u32| {
            if self.session.is_local() {
                self.nics().descriptions().len()
            } else {
                usize::from(self.session.peer(member).rdma_ports)
            }
        };
        let least = members.iter().map(|&member| (ports(member), member)).min();
        match least {
            Some((0, member)) if demanded => Err(Error::System {
                what: "setting up RDMA".to_owned(),
                problem: format!(
                    "{} has no port that can be used{}; SPARK_CCL_NET=tcp does without",
                    self.session.describe(member),
                    self.why_no_rails(member)
                ),
            }),
            least => Ok(Network::of_rails(
                least.map_or(0, |(ports, _)| ports as u32),
            )),
        }
    }

    /// Whether some of these ranks reach each other by way of others only.
    pub(crate) fn has_ways_round(&self, members: &[u32]) -> bool {
        let wiring = self.session.wiring();
        let reaches_all = |&one: &u32| members.iter().all(|&another| wiring.joins(one, another));
        !wiring.is_complete() && !members.iter().all(reaches_all)
    }

    /// Whether ranks of one host share no memory, and so have links over TCP, or over RDMA where
    /// that is demanded.
    fn has_tcp_within_a_host(&self, members: &[u32]) -> bool {
        let host = |&member: &u32| self.session.peer(member).host_id;
        let hosts: HashSet<HostId> = members.iter().map(host).collect();
        !self.settings.shm && hosts.len() < members.len()
    }

    /// Why a rank has no RDMA port, as far as this one can know.
    fn why_no_rails(&self, member: u32) -> String {
        let reason = self.nics().none_because.as_ref();
        reason
            .filter(|_| self.session.local_to(member))
            .map(|reason| format!(" ({reason})"))
            .unwrap_or_default()
    }
}

/// The cores of this rank, as the ranks of its machine share them, in other containers, too. Those
/// have ids that are of no use here, so they count as ranks that share all cores, but not the quota
/// of this container. A container that has the network of its machine, but ids of its own, is not
/// told apart: there, the masks of other processes may count.
fn cores_of(session: &Session) -> Cores {
    let own = session.peer(session.rank()).host_id;
    let peers = (0..session.size()).map(|rank| session.peer(rank));
    let here = peers.filter(|peer| own.is_same_machine(&peer.host_id));
    let ids = here.map(|peer| (peer.host_id == own).then_some(peer.pid));
    Cores::of(&ids.collect::<Vec<_>>())
}

/// The RDMA ports of this machine, where links may use them.
pub(crate) fn open_nics(settings: &Settings) -> Nics {
    match settings.net {
        Net::Tcp => Nics::default(),
        Net::Auto | Net::Rdma => Nics::open(&settings.rdma),
    }
}

/// The monitors of ranks that are all in this process.
pub(crate) fn local_monitors(sessions: &[Session]) -> Result<Vec<Arc<Monitor>>, Error> {
    let names = (0..).zip(sessions);
    let names = names
        .map(|(rank, session)| session.describe(rank))
        .collect();
    Monitor::local(names).map_err(|error| no_monitor(&error))
}

/// Starts a monitor on streams to this rank's neighbours.
fn watch_neighbours(
    session: &Arc<Session>,
    settings: &Settings,
    deadline: Instant,
) -> Result<Arc<Monitor>, Error> {
    let (rank, size) = (session.rank(), session.size());
    let stream_id = StreamId {
        context: NO_CONTEXT,
        kind: StreamKind::Control,
        number: 0,
    };
    let streams = session.connect_all(&control_neighbours(session), stream_id, deadline)?;
    let names = (0..size).map(|rank| session.describe(rank)).collect();
    let redial = Redial {
        dial: redial::dial(session, NO_CONTEXT),
        unheard: settings.lost_after,
        heard: settings.cut_after,
    };
    let started = Monitor::start(rank, names, streams, Some(redial));
    let monitor = started.map_err(|error| no_monitor(&error))?;
    redial::answer(session, &monitor);
    Ok(monitor)
}

fn no_monitor(error: &std::io::Error) -> Error {
    spark_ccl_bootstrap::Error::os("start the monitor thread", error).into()
}

/// The ranks that this one holds a control stream to. They are its neighbours in the world, and the
/// ranks before and after it on its host: these learn of its death from the kernel.
fn control_neighbours(session: &Session) -> BTreeSet<u32> {
    let (rank, size) = (session.rank(), session.size());
    let here: Vec<u32> = (0..size).filter(|&other| session.local_to(other)).collect();
    let own = here.iter().position(|&other| other == rank);
    let around = own.map(|own| [own + 1, own + here.len() - 1].map(|at| here[at % here.len()]));
    let around = around.into_iter().flatten().filter(|&other| other != rank);
    neighbours(rank, size).into_iter().chain(around).collect()
}
