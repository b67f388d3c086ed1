//! Makes communicators: that of a whole world, and those of some of its ranks. The only place that
//! makes engines; the memory of a call then decides which engine gets it.

pub(crate) mod builder;
pub(crate) mod shrink;
pub(crate) mod split;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use spark_ccl_bootstrap::{HostId, Session};
use spark_ccl_config::{AlgorithmChoice, Backend, Path, Settings, Tuning};
use spark_ccl_control::{Monitor, Watch};
#[cfg(feature = "cuda")]
use spark_ccl_cuda::keep_context;
use spark_ccl_fork::Owned;
use spark_ccl_log::FlushOnDrop;
use spark_ccl_transport::Bell;
use spark_ccl_transport::rdma::link::Nics;

use crate::api::communicator::{Communicator, Inner};
use crate::error::Error;
use crate::host::{Core, HostEngine, Wires, or_abort};
use crate::members::lineage::Lineage;
use crate::members::membership::Membership;
use crate::mesh::{LinkOwner, Mesh, Spares, shares_memory};
use crate::observe::{self, Observed};
use crate::plan::Planner;
use crate::task::names::describe;
use crate::world::deadline::deadline_in;
use crate::world::rendezvous::check_addresses;
use crate::world::{NO_CONTEXT, Reducer, World};

/// Who makes a communicator's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    Program,
    /// This library only; the communicator is not observed.
    #[cfg_attr(
        not(feature = "cuda"),
        expect(dead_code, reason = "only device memory is carried so")
    )]
    Library,
}

/// The communicator of all of the session's ranks, with its `monitor` where one exists already.
pub(crate) fn open(
    session: Session,
    monitor: Option<Arc<Monitor>>,
    settings: Settings,
    tuning: Tuning,
    reducer: Reducer,
    nics: OnceLock<Nics>,
) -> Result<Communicator, Error> {
    let deadline = deadline_in(settings.init_timeout);
    if let Err(error) = check_addresses(&session, &settings) {
        // The verdict of the others has this one's reason.
        let _verdict = session.seal(Err(error.to_string()), deadline);
        return Err(error);
    }
    let world = World::connect(session, monitor, settings, tuning, reducer, nics, deadline)?;
    let world = Arc::new(world);
    let all = (0..world.session.size()).collect();
    // Unlike that of any other world.
    let context = world.session.derive_context(NO_CONTEXT, 0, 0);
    let algorithms = world.settings.algo.clone();
    let communicator = communicator(&world, context, all, algorithms, None, Caller::Program)
        .and_then(|communicator| with_devices(communicator, deadline));
    let report = communicator.as_ref().map(|_| ()).map_err(Error::to_string);
    // The others must neither consider an unready rank ready nor wait for it.
    let sealed = world.session.seal(report, deadline);
    let communicator = communicator?;
    sealed?;
    Ok(communicator)
}

/// A communicator of some ranks of the world, this one among them. Its links come into being when
/// they are used. One that is shrunk has the `lineage` of its parent.
pub(crate) fn communicator(
    world: &Arc<World>,
    context: u64,
    members: Vec<u32>,
    algorithms: AlgorithmChoice,
    lineage: Option<Arc<Lineage>>,
    caller: Caller,
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
    let all_share_memory = others.all(|&member| shares_memory(&world.session, settings, member));
    let network = world.network(&members, all_share_memory)?;
    let hosts = members
        .iter()
        .map(|&member| world.session.peer(member).host_id);
    let hosts: Vec<HostId> = hosts.collect();
    let (number, rank) = (next_number(), rank as u32);
    let tuning = &world.tuning;
    let planner = Planner::new(number, rank, &hosts, settings, algorithms, tuning, network);
    let observation = match caller {
        Caller::Program => observe::start(world, &watch, context, &members)?,
        Caller::Library => None,
    };
    let observed = observation.as_ref().map(|it| &it.observed);
    let engine = host_engine(world, &watch, context, &members, planner, observed)?;
    let membership = Membership::new(engine, Arc::clone(&watch), rank, world.stay());
    let membership = Arc::new(membership);
    let is_wanted = membership.planner().over_rdma() && settings.path != Path::Safe;
    let registry = is_wanted.then(|| Arc::clone(world.nics().registry()));
    let lineage = lineage.unwrap_or_else(|| Lineage::new(&watch, context, own, &members));
    let inner = Arc::new(Inner {
        membership,
        watch,
        lineage,
        world: Owned::new(Arc::clone(world)),
        context,
        members,
        registry,
        splits: AtomicU32::new(0),
        allocations: AtomicU32::new(0),
        closed: Arc::new(AtomicBool::new(false)),
        observation: observation.map(Owned::new),
    });
    if settings.progress_thread {
        start_progress(&inner)?;
    }
    Ok(Communicator {
        inner,
        #[cfg(feature = "cuda")]
        device: None,
        _log: FlushOnDrop,
    })
}

/// The engine of a rank, to which links come when they are needed.
fn host_engine(
    world: &Arc<World>,
    watch: &Arc<Watch>,
    context: u64,
    members: &[u32],
    planner: Planner,
    observed: Option<&Arc<Observed>>,
) -> Result<Arc<HostEngine>, Error> {
    let bell = Bell::shared().map_err(|error| {
        spark_ccl_bootstrap::Error::os("make an eventfd to be woken up by", &error)
    })?;
    let planner = planner.with_ways_round(world.has_ways_round(members));
    let (rank, slot_bytes) = (planner.rank, planner.slot_bytes);
    let mesh = Mesh::new(LinkOwner {
        world: Arc::clone(world),
        watch: Arc::clone(watch),
        context,
        members: members.to_vec(),
        rank,
        slot_bytes,
        bell: Arc::clone(&bell),
        interfaces: OnceLock::new(),
        spares: Spares::default(),
    });
    let acceptor = mesh.acceptor();
    let wires = Wires::new(
        rank,
        members.len() as u32,
        slot_bytes,
        mesh,
        world.reducer.start(),
        Arc::clone(&bell),
    );
    let alarm = observed.map(|observed| observed.alarm());
    watch.on_fault(move || {
        bell.ring();
        if let Some(alarm) = &alarm {
            alarm();
        }
    });
    let timeout = world.settings.operation_timeout;
    let core = Core::new(wires, Arc::clone(watch), observed.cloned(), timeout);
    let engine = HostEngine::new(core, planner);
    let weak = Arc::downgrade(&engine);
    acceptor.open(Arc::new(move || {
        if let Some(engine) = weak.upgrade() {
            or_abort(|| engine.push());
        }
    }));
    Ok(engine)
}

/// Adds the backend for device memory, if there is to be one.
#[cfg(feature = "cuda")]
pub(crate) fn with_devices(
    mut communicator: Communicator,
    deadline: Instant,
) -> Result<Communicator, Error> {
    let attach = match communicator.backend() {
        Backend::Nccl => crate::device::nccl::attach,
        Backend::Engine => crate::device::kernels::attach,
        Backend::Auto => crate::device::choice::attach,
        Backend::Host => return Ok(communicator),
        backend => {
            return Err(Error::Unsupported {
                what: format!("the backend {backend}"),
                reason: "no engine of this library is made for it".to_owned(),
            });
        }
    };
    let _context = keep_context();
    let host = communicator.inner.membership.engine();
    let timeout = host.timeout()?;
    // The ranks agree in calls of host memory, which may come late: a rank loads libraries and
    // joins meanwhile.
    host.set_timeout(deadline.saturating_duration_since(Instant::now()));
    let device = attach(&communicator, deadline)?;
    communicator.device = Some(device);
    communicator.apply_timeout(timeout);
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
    let engine = Arc::clone(inner.membership.engine());
    #[cfg(feature = "future")]
    engine.expect_thread();
    let closed = Arc::clone(&inner.closed);
    // Nothing is read on its account: the engine is behind its lock.
    let stop = move || closed.load(Ordering::Relaxed);
    spark_ccl_log::spawn("spark-progress", move || engine.run_in_background(stop))
        .map(drop)
        .map_err(|error| Error::System {
            what: "starting the progress thread".to_owned(),
            problem: error.to_string(),
        })
}

/// A number for each communicator of this process.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // A counter on its own: it publishes nothing.
    NEXT.fetch_add(1, Ordering::Relaxed)
}
