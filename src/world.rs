//! What all communicators of one process's membership share: session, monitor, settings.

use crate::call::least;
use crate::communicator::{Communicator, Inner};
use crate::engine::{Engine, Shared, Wires};
use crate::error::Error;
use crate::mesh::{Site, shares_memory};
use crate::plan::{Network, Planner};
use crate::signature::describe;
use parking_lot::Mutex;
use socket2::Socket;
use spark_ccl_bootstrap::{HostId, Kind, Purpose, Session, Via};
use spark_ccl_compute::{Compute, Cpu};
use spark_ccl_config::{AlgorithmChoice, Backend, Net, Path, Settings, Tuning};
use spark_ccl_control::{Fault, Monitor, Watch, neighbours};
use spark_ccl_transport::rdma::link::Nics;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
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
    pub(crate) session: Session,
    pub(crate) settings: Settings,
    /// What rank 0 has measured on its machine.
    tuning: Tuning,
    reducer: Reducer,
    /// Opened for the first communicator that needs them.
    nics: OnceLock<Nics>,
    monitor: Arc<Monitor>,
}

impl World {
    /// Connects the control plane and all links of the session's ranks.
    pub(crate) fn open(
        session: Session,
        settings: Settings,
        tuning: Tuning,
        reducer: Reducer,
    ) -> Result<Communicator, Error> {
        let deadline = deadline_in(settings.init_timeout);
        Self::control(session, settings, tuning, reducer, deadline).and_then(|world| {
            let world = Arc::new(world);
            let all = (0..world.session.size()).collect();
            // Unlike that of any other world: it also tells registered memory of several apart.
            let context = world.session.derive_context(NO_CONTEXT, 0, 0);
            let algorithms = world.settings.algo.clone();
            let communicator = Self::communicator(&world, context, all, algorithms, None, deadline)
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
        deadline: Instant,
    ) -> Result<Self, Error> {
        let (rank, size) = (session.rank(), session.size());
        let purpose = Purpose {
            context: NO_CONTEXT,
            kind: Kind::Control,
            lane: 0,
        };
        let mut streams: Vec<(u32, Socket)> = Vec::new();
        for peer in neighbours(rank, size) {
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
        let monitor = Monitor::start(rank, names, streams).map_err(|error| Error::System {
            what: "starting the monitor thread".to_owned(),
            problem: error.to_string(),
        })?;
        Ok(Self {
            session,
            settings,
            tuning,
            reducer,
            nics: OnceLock::new(),
            monitor,
        })
    }

    /// The RDMA ports that links may use.
    fn nics(&self, one_host: bool) -> &Nics {
        static NONE: LazyLock<Nics> = LazyLock::new(Nics::default);
        if one_host || self.settings.net == Net::Tcp {
            return &NONE;
        }
        self.nics.get_or_init(|| Nics::open(&self.settings.rdma))
    }

    /// A communicator of some ranks of the world, this one among them.
    pub(crate) fn communicator(
        world: &Arc<Self>,
        context: u64,
        members: Vec<u32>,
        algorithms: AlgorithmChoice,
        parent: Option<&Watch>,
        deadline: Instant,
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
        let slot_bytes = settings.slot_bytes(one_host);
        let mesh = Site {
            session: &world.session,
            settings,
            nics: world.nics(one_host),
            watch: &watch,
            parent,
            context,
            members: &members,
            rank,
            slot_bytes,
            deadline,
        }
        .connect()
        .inspect_err(|error| {
            // The others need not wait for this rank.
            watch.raise(Fault::Aborted {
                by: watch.member(rank as u32),
                reason: format!("it could not connect: {error}"),
            });
        })?;
        let hosts = members
            .iter()
            .map(|&member| world.session.peer(member).host_id);
        let hosts: Vec<HostId> = hosts.collect();
        let compute = world.reducer.start();
        let wires = Wires::new(
            rank as u32,
            slot_bytes,
            mesh.tx,
            mesh.rx,
            compute,
            Arc::clone(&mesh.bell),
        );
        watch.on_fault(move || mesh.bell.ring());
        let left = deadline.saturating_duration_since(Instant::now());
        let shared = Shared::new(Engine::new(wires, Arc::clone(&watch), left));
        let network = match settings.net {
            _ if one_host => Network::None,
            Net::Tcp => Network::Tcp,
            // Links are made by pairs, of which some may have fallen back to TCP.
            Net::Auto | Net::Rdma => {
                let own = [rank, members.len()].map(|n| n as u32);
                Network::of_rails(least(&shared, own, mesh.fewest_rails)?)
            }
        };
        shared.with(|engine| engine.open(settings.operation_timeout));
        let planner = Planner::new(
            context,
            rank as u32,
            &hosts,
            settings,
            algorithms,
            &world.tuning,
            network,
        );
        let is_wanted = planner.over_rdma() && settings.path != Path::Safe;
        let registry = is_wanted.then(|| Arc::clone(world.nics(one_host).registry()));
        for (peer, link) in mesh.names.iter().enumerate() {
            let name = world.session.describe(members[peer]);
            tracing::info!("rank {rank}: link to {name}: {link}");
        }
        let inner = Arc::new(Inner {
            shared,
            planner,
            watch,
            world: Arc::clone(world),
            context,
            members,
            memory_streams: Mutex::new(mesh.memory_streams),
            registry,
            links: mesh.names,
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
/// communicator, whose end is its end.
fn start_progress(inner: &Arc<Inner>) -> Result<(), Error> {
    let shared = Arc::clone(&inner.shared);
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

/// When something that may take `timeout` has to be over.
pub(crate) fn deadline_in(timeout: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    Instant::now() + timeout.min(YEAR)
}

/// How long ranks that are known to be there may take to pass memory.
pub(crate) const EXCHANGE: Duration = Duration::from_secs(30);
