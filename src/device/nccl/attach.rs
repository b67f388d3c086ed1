//! Makes an NCCL communicator for the ranks of one of our communicators, over their links.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use spark_ccl_config::Settings;
use spark_ccl_control::Fault;
use spark_ccl_cuda::cudarc::driver::CudaContext;
use spark_ccl_cuda::make_current;
use spark_ccl_fork::Owned;
use spark_ccl_log::Mutex;
use spark_ccl_nccl::{self as nccl, Config, Library, UniqueId};

use super::NcclEngine;
use super::error::refused;
use super::helper_thread::on_helper_thread;
use super::inside::Inside;
use super::look::GuardNotes;
use super::registration_table::RegistrationTable;
use crate::api::communicator::Communicator;
use crate::device::agreement::{ToldGpu, all_have, find_gpu, need_gpu, no_other_has, tell_gpu};
use crate::device::guard;
use crate::device::rank::DeviceRank;
use crate::engine::Engine;
use crate::error::Error;

/// The engine for the device memory of a communicator's ranks. Collective.
pub(crate) fn attach(
    comm: &Communicator,
    deadline: Instant,
) -> Result<Owned<Arc<dyn Engine>>, Error> {
    let settings = &comm.inner.world.settings;
    // A lack of GPUs is reported first. Without NCCL, no context is made.
    let ready = need_gpu(comm).and_then(|()| Ok((library(settings)?, find_gpu(comm)?)));
    let found = ready.as_ref().ok().map(|(_, found)| found);
    let told = tell_gpu(comm, found);
    let (library, found) = ready?;
    let all = all_have(comm, "NCCL", told?)?;
    no_other_has(comm, &all, "")?;
    let context = found.context;
    let id = exchange_id(comm, library)?;
    let left = deadline.saturating_duration_since(Instant::now());
    let nccl = connect(comm, settings, library, &context, id, left).inspect_err(|error| {
        // Raised at once, so that the others need not wait for this rank.
        let watch = &comm.inner.watch;
        watch.raise(Fault::Aborted {
            by: watch.member(comm.rank() as u32),
            reason: format!("it could not connect: {error}"),
        });
    })?;
    let inside = Inside::new(nccl.call_timeout());
    let base = DeviceRank::new(comm, context, nccl)?;
    let engine = Arc::new(NcclEngine {
        base,
        library,
        membership: Arc::downgrade(comm.membership()),
        oldest: oldest(&all),
        checked: Mutex::default(),
        kept: kept(id),
        inside,
        stuck: AtomicBool::new(false),
        last_key: AtomicU64::new(u64::MAX),
    });
    let mut notes = GuardNotes::new(settings.operation_timeout);
    guard::start(&engine, move |engine: &NcclEngine| engine.look(&mut notes))?;
    spark_ccl_log::info!(
        "rank {}: NCCL {} from {} on device {}",
        comm.rank(),
        library.version(),
        library.path().display(),
        engine.base.device()
    );
    Ok(Owned::new(engine))
}

/// NCCL, as the settings name it.
pub(crate) fn library(settings: &Settings) -> Result<Library, Error> {
    let library = match settings.nccl.library.as_deref() {
        // SAFETY: by setting `SPARK_CCL_NCCL_LIBRARY`, the user says that the file is NCCL, and
        // vouches for its initialisers and functions.
        Some(path) => unsafe { Library::open_at(path) },
        None => Library::open(),
    };
    library.map_err(|error| refused("NCCL", error))
}

/// The table of registrations that the ranks of this process with this NCCL id share.
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

/// The generation and the rank of the oldest GPU.
fn oldest(all: &[ToldGpu]) -> (u8, u32) {
    let gpus = (0..).zip(all);
    let oldest = gpus.map(|(rank, gpu)| (gpu.generation, rank)).min();
    oldest.unwrap_or_default()
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
        .internal()
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
