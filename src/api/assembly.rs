//! Makes communicators with their engine of host memory: that of a whole world, and those of some
//! of its ranks. Knows no devices.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use spark_ccl_bootstrap::HostId;
use spark_ccl_config::{AlgorithmChoice, Path};
use spark_ccl_control::Watch;
use spark_ccl_fork::Owned;
use spark_ccl_log::FlushOnDrop;
use spark_ccl_transport::Bell;

use super::communicator::{Communicator, Inner};
use crate::error::Error;
use crate::host::{Core, HostEngine, Wires, or_abort};
use crate::members::lineage::Lineage;
use crate::members::membership::{MadeBy, Membership};
use crate::mesh::{LinkOwner, Mesh, Spares, shares_memory};
use crate::observe::{self, Observed};
use crate::plan::Planner;
use crate::task::names::describe;
use crate::world::World;

/// A communicator of some ranks of the world, this one among them. Its links are made when they are
/// used. A shrunk communicator has the `lineage` of its parent.
pub(crate) fn communicator(
    world: &Arc<World>,
    context: u64,
    members: Vec<u32>,
    algorithms: AlgorithmChoice,
    lineage: Option<Arc<Lineage>>,
    made_by: MadeBy,
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
    let observation = match made_by {
        MadeBy::Program => observe::start(world, &watch, context, &members)?,
        MadeBy::Library => None,
    };
    let observed = observation.as_ref().map(|it| &it.observed);
    let engine = host_engine(world, &watch, context, &members, planner, observed)?;
    let membership = Membership::new(engine, Arc::clone(&watch), rank, made_by, world.stay());
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

/// The engine of a rank, which gets links when it needs them.
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
        world.reducer.start(&world.pool.helpers),
        Arc::clone(&world.pool.helpers),
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

impl Communicator {
    /// A new communicator of the same ranks, for host memory and this library's own calls. All
    /// ranks must make one.
    #[cfg(feature = "cuda")]
    pub(crate) fn twin(&self) -> Result<Self, Error> {
        self.of_same_ranks(self.planner().algorithms.clone(), MadeBy::Library)
    }

    /// A new communicator of the same ranks.
    pub(crate) fn of_same_ranks(
        &self,
        algorithms: AlgorithmChoice,
        made_by: MadeBy,
    ) -> Result<Self, Error> {
        let ranks = self.inner.members.clone();
        self.derive(self.uncolored(), ranks, algorithms, made_by)
    }

    /// Numbers for a new communicator's context: its own, and a color that no split has.
    pub(crate) fn uncolored(&self) -> [u64; 2] {
        let number = self.inner.splits.fetch_add(1, Ordering::Relaxed);
        [u64::from(number), u64::MAX]
    }

    /// A new communicator of some of these ranks, in a context that these numbers identify.
    pub(crate) fn derive(
        &self,
        [count, color]: [u64; 2],
        ranks: Vec<u32>,
        algorithms: AlgorithmChoice,
        made_by: MadeBy,
    ) -> Result<Self, Error> {
        self.membership().check_process()?;
        let world = &self.inner.world;
        let context = world
            .session
            .derive_context(self.inner.context, count, color);
        communicator(world, context, ranks, algorithms, None, made_by)
    }
}

/// The optional thread that makes progress between calls. It holds the engine, but not the
/// communicator: when that is gone, it ends with what is in flight.
fn start_progress(inner: &Arc<Inner>) -> Result<(), Error> {
    let engine = Arc::clone(inner.membership.engine());
    #[cfg(feature = "future")]
    engine.expect_thread();
    let closed = Arc::clone(&inner.closed);
    // Relaxed: it publishes nothing else, and the engine is behind its lock. Pairs with the store
    // when the communicator is dropped.
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
    // Relaxed: a counter on its own, which publishes nothing.
    NEXT.fetch_add(1, Ordering::Relaxed)
}
