//! Makes NCCL's communicator for the ranks of one of ours, over their links.

use super::engine::{Calls, State};
use super::error::refused;
use super::helper_thread::on_helper_thread;
use super::registration_table::RegistrationTable;
use super::{NcclEngine, guard};
use crate::communicator::Communicator;
use crate::device::StreamEngine;
use crate::device::gpu::Gpu;
use crate::error::Error;
use parking_lot::Mutex;
use spark_ccl_config::Settings;
use spark_ccl_control::Fault;
use spark_ccl_cuda::cudarc::driver::CudaContext;
use spark_ccl_cuda::{bus_id, context, count, generation, make_current, share_default_pool};
use spark_ccl_fork::Owned;
use spark_ccl_nccl::{self as nccl, Config, Library, UniqueId};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A rank's device and NCCL.
struct Ready {
    library: Library,
    context: Arc<CudaContext>,
    /// Of the device, on its host.
    place: String,
    /// Of the device: 9 is Hopper.
    generation: u8,
}

/// The engine for the device memory of a communicator's ranks. Collective.
pub(crate) fn attach(
    comm: &Communicator,
    deadline: Instant,
) -> Result<Owned<Arc<dyn StreamEngine>>, Error> {
    let settings = &comm.inner.world.settings;
    let ready = prepare(comm, settings);
    let oldest = agree(comm, ready.as_ref().ok())?;
    let Ready {
        library, context, ..
    } = ready?;
    let id = exchange_id(comm, library)?;
    let left = deadline.saturating_duration_since(Instant::now());
    let nccl = connect(comm, settings, library, &context, id, left).inspect_err(|error| {
        // The others need not wait for this rank.
        let watch = &comm.inner.watch;
        watch.raise(Fault::Aborted {
            by: watch.member(comm.rank() as u32),
            reason: format!("it could not connect: {error}"),
        });
    })?;
    let gpu = Gpu::new(&context, comm.rank())?;
    let engine = Arc::new(NcclEngine {
        library,
        context,
        gpu,
        oldest,
        call_timeout: nccl.call_timeout(),
        rank: comm.rank(),
        size: comm.size(),
        watch: Arc::clone(&comm.inner.watch),
        host: Arc::downgrade(comm.host()),
        state: Mutex::new(State {
            nccl: Some(nccl),
            timeout: settings.operation_timeout,
            calls: Calls::default(),
        }),
        kept: kept(id),
        tidies: AtomicBool::new(false),
        begun: AtomicU64::new(0),
        ended: AtomicU64::new(0),
        stuck: AtomicBool::new(false),
        last_key: AtomicU64::new(u64::MAX),
    });
    guard::start(&engine, settings.operation_timeout)?;
    tracing::info!(
        "rank {}: NCCL {} from {} on device {}",
        comm.rank(),
        library.version(),
        library.path().display(),
        engine.device()
    );
    Ok(Owned::new(engine))
}

/// NCCL, as the settings name it.
pub(crate) fn library(settings: &Settings) -> Result<Library, Error> {
    let library = match settings.nccl.library.as_deref() {
        // SAFETY: the user who sets `SPARK_CCL_NCCL_LIBRARY` names NCCL by it, and so vouches for its initialisers and its
        // functions.
        Some(path) => unsafe { Library::open_at(path) },
        None => Library::open(),
    };
    library.map_err(|error| refused("NCCL", error))
}

/// What the ranks of this process keep that have NCCL's id in common.
fn kept(id: UniqueId) -> Arc<RegistrationTable> {
    static ALL: Mutex<Vec<([u8; 128], Weak<RegistrationTable>)>> = Mutex::new(Vec::new());
    let mut all = ALL.lock();
    all.retain(|(_, kept)| kept.strong_count() > 0);
    let mut same = all.iter().filter(|(of, _)| of == id.as_bytes());
    if let Some(kept) = same.find_map(|(_, kept)| kept.upgrade()) {
        return kept;
    }
    let kept = Arc::default();
    all.push((*id.as_bytes(), Arc::downgrade(&kept)));
    kept
}

/// Opens what this rank needs, and finds its device.
fn prepare(comm: &Communicator, settings: &Settings) -> Result<Ready, Error> {
    let own = |error: spark_ccl_cuda::Error| error.of_rank(comm.rank());
    let devices = count().map_err(own)?;
    let library = library(settings)?;
    let session = &comm.inner.world.session;
    // Alike for all communicators of the world: a device is one rank's.
    let before = (0..session.rank()).filter(|&rank| session.local_to(rank));
    let wanted = settings.device.saturating_add(before.count());
    // A launcher may show each process devices of its own.
    let ordinal = wanted % devices;
    let context = context(ordinal).map_err(own)?;
    let place = bus_id(ordinal).map_err(own)?;
    let generation = generation(&context).map_err(own)? as u8;
    if let Err(error) = share_default_pool(&context) {
        tracing::warn!(
            "rank {}: other devices of this process cannot reach memory from cudarc: {error}",
            comm.rank()
        );
    }
    Ok(Ready {
        library,
        context,
        place,
        generation,
    })
}

/// Fails on all ranks when one of them has not got what it needs, and on those that would share a device. Returns the
/// generation and rank of the oldest device.
fn agree(comm: &Communicator, ready: Option<&Ready>) -> Result<(u8, u32), Error> {
    // The place, of 16 bytes at most, and behind it the generation. Zeros where there is none.
    let mut own = [0_u8; 32];
    let place = ready.map_or("", |ready| ready.place.as_str());
    let len = place.len().min(own.len() - 1);
    own[..len].copy_from_slice(&place.as_bytes()[..len]);
    own[own.len() - 1] = ready.map_or(0, |ready| ready.generation);
    let mut all = vec![0; own.len() * comm.size()];
    comm.all_gather(&own, &mut all).by_any_path().run()?;
    let oldest = (0..).zip(all.chunks_exact(own.len()));
    let oldest = oldest
        .map(|(rank, other)| (other[own.len() - 1], rank))
        .min();
    let oldest = oldest.unwrap_or_default();
    if ready.is_none() {
        return Ok(oldest);
    }
    let (watch, session) = (&comm.inner.watch, &comm.inner.world.session);
    for (rank, other) in all.chunks_exact(own.len()).enumerate() {
        if other.iter().all(|&byte| byte == 0) {
            // That rank reports the reason itself.
            return Err(Error::Unsupported {
                what: "NCCL".to_owned(),
                reason: format!(
                    "{} cannot use it; its own message says why",
                    watch.member(rank as u32)
                ),
            });
        }
        let on_this_host = session.local_to(comm.inner.members[rank]);
        if rank != comm.rank() && on_this_host && other == own {
            return Err(Error::Invalid {
                operation: "choosing a device",
                problem: format!(
                    "rank {} would share the GPU at {place} with {}; start fewer ranks on this host, or show \
                     each its own (CUDA_VISIBLE_DEVICES)",
                    comm.rank(),
                    watch.member(rank as u32)
                ),
            });
        }
    }
    Ok(oldest)
}

/// Rank 0's id, or its error.
fn exchange_id(comm: &Communicator, library: Library) -> Result<UniqueId, Error> {
    const LEN: usize = 128;
    let made = (comm.rank() == 0).then(|| library.unique_id()).transpose();
    let mut bytes = [0; LEN + 1];
    if let Ok(Some(id)) = &made {
        bytes[..LEN].copy_from_slice(id.as_bytes());
        bytes[LEN] = 1;
    }
    comm.broadcast_in_place(&mut bytes[..], 0)
        .by_any_path()
        .run()?;
    made.map_err(|error| refused("NCCL", error))?;
    let (mut id, is_made) = ([0; LEN], bytes[LEN] == 1);
    id.copy_from_slice(&bytes[..LEN]);
    if is_made {
        return Ok(UniqueId::from_bytes(id));
    }
    Err(Error::Unsupported {
        what: "NCCL".to_owned(),
        reason: "rank 0 could not make a unique id; its own message says why".to_owned(),
    })
}

/// Makes NCCL's communicator.
fn connect(
    comm: &Communicator,
    settings: &Settings,
    library: Library,
    context: &Arc<CudaContext>,
    id: UniqueId,
    timeout: Duration,
) -> Result<nccl::Communicator, Error> {
    let (rank, size) = (comm.rank(), comm.size());
    let config = Config {
        blocking: settings.nccl.blocking,
        timeout: settings.operation_timeout,
        ..Config::default()
    };
    let on = Arc::clone(context);
    let make = move || {
        make_current(&on).map_err(|error| error.of_rank(rank))?;
        nccl::Communicator::init_rank(library, size, id, rank, &config)
            .map_err(|error| refused("NCCL", error))
    };
    let watch = &comm.inner.watch;
    let what = format!("connecting {}", watch.member(rank as u32));
    let hint = "that is what SPARK_CCL_INIT_TIMEOUT had left";
    on_helper_thread(&what, hint, watch, timeout, make)
}
