//! What all communicators of one process's membership share: session, monitor, settings.

use crate::communicator::{Communicator, Inner};
use crate::engine::{Engine, Shared, Wires};
use crate::error::Error;
use crate::mesh::{Mesh, Site, shares_memory};
use crate::plan::{Network, Planner};
use crate::repair;
use crate::signature::describe;
use crate::stay::Stay;
use socket2::Socket;
use spark_ccl_bootstrap::{HostId, Kind, Purpose, Session, Via};
use spark_ccl_compute::{Compute, Cpu};
use spark_ccl_config::{AlgorithmChoice, Backend, Net, Path, Settings, Tuning};
use spark_ccl_control::{Monitor, Redial, Watch, neighbours};
use spark_ccl_fork::Owned;
use spark_ccl_transport::Bell;
use spark_ccl_transport::rdma::link::Nics;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The context of streams that belong to no communicator.
const NO_CONTEXT: u64 = 0;

/// What reduces elements.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Reducer {
    #[default]
    Cpu,
    /// The CPU, but each reduction is done only after so many polls.
    #[cfg(feature = "testing")]
    Delayed(u32),
}

impl Reducer {
    fn start(self) -> Box<dyn Compute> {
        let cpu = Cpu::default();
        match self {
            Self::Cpu => Box::new(cpu),
            #[cfg(feature = "testing")]
            Self::Delayed(polls) => Box::new(spark_ccl_compute::Delayed::new(cpu, polls)),
        }
    }
}

pub(crate) struct World {
    pub(crate) session: Arc<Session>,
    pub(crate) settings: Settings,
    /// What rank 0 has measured on its machine.
    tuning: Tuning,
    reducer: Reducer,
    /// Opened before the ranks meet, to tell the others, or for the first communicator that needs them.
    nics: OnceLock<Nics>,
    monitor: Arc<Monitor>,
}

impl World {
    /// Connects the control plane of the session's ranks.
    pub(crate) fn open(
        session: Session,
        settings: Settings,
        tuning: Tuning,
        reducer: Reducer,
        nics: OnceLock<Nics>,
    ) -> Result<Communicator, Error> {
        let deadline = deadline_in(settings.init_timeout);
        Self::control(session, settings, tuning, reducer, nics, deadline).and_then(|world| {
            let world = Arc::new(world);
            let all = (0..world.session.size()).collect();
            // Unlike that of any other world.
            let context = world.session.derive_context(NO_CONTEXT, 0, 0);
            let algorithms = world.settings.algo.clone();
            let communicator = Self::communicator(&world, context, all, algorithms)
                .and_then(|communicator| with_devices(communicator, deadline));
            let report = communicator.as_ref().map(|_| ()).map_err(Error::to_string);
            // The others must not take a rank for ready that is not, nor wait for it.
            let sealed = world.session.seal(report, deadline);
            let communicator = communicator?;
            sealed?;
            Ok(communicator)
        })
    }

    /// Starts the monitor on streams to this rank's neighbours in the control plane.
    fn control(
        session: Session,
        settings: Settings,
        tuning: Tuning,
        reducer: Reducer,
        nics: OnceLock<Nics>,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let (rank, size) = (session.rank(), session.size());
        let purpose = Purpose {
            context: NO_CONTEXT,
            kind: Kind::Control,
            lane: 0,
        };
        let mut streams: Vec<(u32, Socket)> = Vec::new();
        for peer in control_neighbours(&session) {
            let via = if session.local_to(peer) {
                Via::Unix
            } else {
                Via::Tcp {
                    source: None,
                    target: None,
                }
            };
            let stream = if peer < rank {
                session.connect(peer, purpose, via, deadline)?
            } else {
                session.accept(peer, purpose, deadline)?
            };
            streams.push((peer, stream));
        }
        let names = (0..size).map(|rank| session.describe(rank)).collect();
        let session = Arc::new(session);
        let redial = Redial {
            dial: repair::dial(&session, NO_CONTEXT),
            unheard: settings.lost_after,
            heard: settings.cut_after,
        };
        let started = Monitor::start(rank, names, streams, Some(redial));
        let monitor = started.map_err(|error| Error::System {
            what: "starting the monitor thread".to_owned(),
            problem: error.to_string(),
        })?;
        repair::answer(&session, &monitor);
        Ok(Self {
            session,
            settings,
            tuning,
            reducer,
            nics,
            monitor,
        })
    }

    /// The RDMA ports that links may use.
    pub(crate) fn nics(&self) -> &Nics {
        self.nics.get_or_init(|| open_nics(&self.settings))
    }

    /// A communicator of some ranks of the world, this one among them. Its links come into being when they are
    /// used.
    pub(crate) fn communicator(
        world: &Arc<Self>,
        context: u64,
        members: Vec<u32>,
        algorithms: AlgorithmChoice,
    ) -> Result<Communicator, Error> {
        let watch = world.monitor.watch(context, members.clone(), describe);
        let own = world.session.rank();
        let rank = members.iter().position(|&member| member == own);
        let rank = rank.ok_or_else(|| Error::Invalid {
            operation: "split",
            problem: format!("world rank {own} is not a member"),
        })?;
        let settings = &world.settings;
        let mut others = members.iter().filter(|&&member| member != own);
        let one_host = others.all(|&member| shares_memory(&world.session, settings, member));
        let network = world.network(&members, one_host)?;
        let shared = world.engine(&watch, context, &members, rank, one_host)?;
        let shared = Arc::new(Stay::new(shared, Arc::clone(&watch), rank as u32));
        let hosts = members
            .iter()
            .map(|&member| world.session.peer(member).host_id);
        let hosts: Vec<HostId> = hosts.collect();
        let planner = Planner::new(
            next_number(),
            rank as u32,
            &hosts,
            settings,
            algorithms,
            &world.tuning,
            network,
        );
        let is_wanted = planner.over_rdma() && settings.path != Path::Safe;
        let registry = is_wanted.then(|| Arc::clone(world.nics().registry()));
        let inner = Arc::new(Inner {
            shared,
            planner,
            watch,
            world: Owned::new(Arc::clone(world)),
            context,
            members,
            registry,
            splits: AtomicU32::new(0),
            allocations: AtomicU32::new(0),
            closed: Arc::new(AtomicBool::new(false)),
        });
        if settings.progress_thread {
            start_progress(&inner)?;
        }
        Ok(Communicator {
            inner,
            #[cfg(feature = "cuda")]
            device: None,
        })
    }

    /// The engine of a rank, to which links come when they are needed.
    fn engine(
        self: &Arc<Self>,
        watch: &Arc<Watch>,
        context: u64,
        members: &[u32],
        rank: usize,
        one_host: bool,
    ) -> Result<Arc<Shared>, Error> {
        let bell = Bell::shared().map_err(|error| Error::System {
            what: "making an eventfd to be woken up by".to_owned(),
            problem: error.to_string(),
        })?;
        let slot_bytes = self.settings.slot_bytes(one_host);
        let mesh = Mesh::new(Site {
            world: Arc::clone(self),
            watch: Arc::clone(watch),
            context,
            members: members.to_vec(),
            rank: rank as u32,
            slot_bytes,
            bell: Arc::clone(&bell),
            interfaces: OnceLock::new(),
        });
        let door = mesh.door();
        let wires = Wires::new(
            rank as u32,
            members.len() as u32,
            slot_bytes,
            mesh,
            self.reducer.start(),
            Arc::clone(&bell),
        );
        watch.on_fault(move || bell.ring());
        let timeout = self.settings.operation_timeout;
        let shared = Shared::new(Engine::new(wires, Arc::clone(watch), timeout));
        door.open(Arc::downgrade(&shared));
        Ok(shared)
    }

    /// What joins ranks that share no memory, by what all of them have said of their ports: alike everywhere.
    fn network(&self, members: &[u32], one_host: bool) -> Result<Network, Error> {
        if one_host {
            return Ok(Network::None);
        }
        let demanded = match self.settings.net {
            Net::Tcp => return Ok(Network::Tcp),
            Net::Auto if self.session.is_local() => return Ok(Network::Tcp),
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
                what: format!(
                    "setting up the RDMA link to {}",
                    self.session.describe(member)
                ),
                problem: format!(
                    "it has no port that can be used{}; SPARK_CCL_NET=tcp does without",
                    self.why_no_rails(member)
                ),
            }),
            least => Ok(Network::of_rails(
                least.map_or(0, |(ports, _)| ports as u32),
            )),
        }
    }

    /// Why a rank has no RDMA port, where this one can know.
    fn why_no_rails(&self, member: u32) -> String {
        let reason = self.nics().none_because.as_ref();
        reason
            .filter(|_| self.session.local_to(member))
            .map(|reason| format!(" ({reason})"))
            .unwrap_or_default()
    }
}

/// The RDMA ports of this machine, where links may use them.
pub(crate) fn open_nics(settings: &Settings) -> Nics {
    match settings.net {
        Net::Tcp => Nics::default(),
        Net::Auto | Net::Rdma => Nics::open(&settings.rdma),
    }
}

/// The ranks that this one holds a control stream to: its neighbours in the world, and the ranks before and after it on
/// its host, who are told by the kernel when it dies.
fn control_neighbours(session: &Session) -> BTreeSet<u32> {
    let (rank, size) = (session.rank(), session.size());
    let here: Vec<u32> = (0..size).filter(|&other| session.local_to(other)).collect();
    let own = here.iter().position(|&other| other == rank);
    let around = own.map(|own| [own + 1, own + here.len() - 1].map(|at| here[at % here.len()]));
    let around = around.into_iter().flatten().filter(|&other| other != rank);
    neighbours(rank, size).into_iter().chain(around).collect()
}

/// Adds the backend for device memory, if there is to be one.
#[cfg(feature = "cuda")]
pub(crate) fn with_devices(
    mut communicator: Communicator,
    deadline: Instant,
) -> Result<Communicator, Error> {
    if communicator.backend() == Backend::Nccl {
        communicator.device = Some(crate::device::attach(&communicator, deadline)?);
    }
    Ok(communicator)
}

#[cfg(not(feature = "cuda"))]
pub(crate) fn with_devices(communicator: Communicator, _: Instant) -> Result<Communicator, Error> {
    match communicator.backend() {
        Backend::Host => Ok(communicator),
        backend => Err(Error::Unsupported {
            what: format!("the backend {backend}"),
            reason: "this build has it not: build with the cargo feature cuda".to_owned(),
        }),
    }
}

/// The optional thread that makes progress between calls. It holds the engine, but not the
/// communicator: when that is gone, it ends with what is in flight.
fn start_progress(inner: &Arc<Inner>) -> Result<(), Error> {
    let shared = Arc::clone(inner.shared.engine());
    let closed = Arc::clone(&inner.closed);
    // Nothing is read on its account: the engine is behind its lock.
    let stop = move || closed.load(Ordering::Relaxed);
    std::thread::Builder::new()
        .name("spark-progress".to_owned())
        .spawn(move || shared.run_in_background(stop))
        .map(drop)
        .map_err(|error| Error::System {
            what: "starting the progress thread".to_owned(),
            problem: error.to_string(),
        })
}

/// Tells the communicators of this process apart.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // A counter on its own: it publishes nothing.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// When something that may take `timeout` has to be over.
pub(crate) fn deadline_in(timeout: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    Instant::now() + timeout.min(YEAR)
}

/// How long ranks that are known to be there may take to pass memory.
pub(crate) const EXCHANGE: Duration = Duration::from_secs(30);
