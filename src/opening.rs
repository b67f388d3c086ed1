//! Opens communicators, with engines for devices where the settings ask for them. The memory of a
//! call then decides which engine gets it.

pub(crate) mod builder;
pub(crate) mod shrink;
pub(crate) mod split;

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use spark_ccl_bootstrap::{Cancel, Session};
use spark_ccl_config::{Backend, Settings, Tuning};
use spark_ccl_control::Monitor;
#[cfg(feature = "cuda")]
use spark_ccl_cuda::keep_context;
use spark_ccl_transport::rdma::link::Nics;

use crate::api::assembly::communicator;
use crate::api::communicator::Communicator;
#[cfg(feature = "cuda")]
use crate::device::attach;
use crate::error::Error;
use crate::members::membership::MadeBy;
use crate::world::deadline::deadline_in;
use crate::world::rendezvous::check_addresses;
use crate::world::{NO_CONTEXT, Reducer, World};

/// The communicator of all of the session's ranks, with its `monitor` where one exists already.
pub(crate) fn open(
    session: Session,
    monitor: Option<Arc<Monitor>>,
    settings: Settings,
    tuning: Tuning,
    reducer: Reducer,
    nics: OnceLock<Nics>,
    cancel: &Cancel,
) -> Result<Communicator, Error> {
    let deadline = deadline_in(settings.init_timeout);
    if let Err(error) = check_addresses(&session, &settings) {
        // Tells the others this rank's reason, which is their verdict.
        let _verdict = session.seal(Err(error.to_string()), deadline);
        return Err(error);
    }
    let world = World::connect(session, monitor, settings, tuning, reducer, nics, deadline)?;
    let world = Arc::new(world);
    let all = (0..world.session.size()).collect();
    // A context that no other world has.
    let context = world.session.derive_context(NO_CONTEXT, 0, 0);
    let algorithms = world.settings.algo.clone();
    let communicator = communicator(&world, context, all, algorithms, None, MadeBy::Program)
        .and_then(|communicator| with_devices_unless(cancel, communicator, deadline));
    let report = communicator.as_ref().map(|_| ()).map_err(Error::to_string);
    // The others must neither consider an unready rank ready nor wait for it.
    let sealed = world.session.seal(report, deadline);
    let communicator = communicator?;
    sealed?;
    Ok(communicator)
}

/// Like [`with_devices`], for a communicator that nobody has yet; fails once it is cancelled.
fn with_devices_unless(
    cancel: &Cancel,
    communicator: Communicator,
    deadline: Instant,
) -> Result<Communicator, Error> {
    let _on_cancel = cancel.on_cancel(communicator.aborter("its initialisation was cancelled"));
    with_devices(communicator, deadline)
}

/// Adds the backend for device memory, if there is to be one.
#[cfg(feature = "cuda")]
pub(crate) fn with_devices(
    mut communicator: Communicator,
    deadline: Instant,
) -> Result<Communicator, Error> {
    if communicator.backend() == Backend::Host {
        return Ok(communicator);
    }
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
            reason: "this build lacks it: build with the cargo feature cuda".to_owned(),
        }),
    }
}
