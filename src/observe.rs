//! Reports on running communicators, if the settings ask for it: to clients, in files, and after a
//! fault.
//!
//! Each engine notes its operations in a journal of its own, in the [`Observed`] of its
//! communicator. A thread of the process, the service, answers clients, writes the inspector's
//! files, and records faults. It only reads: no communicator depends on it. `Observed` and the
//! service exist only where a setting asks for one of these.

mod board;
mod inspector;
mod journal;
mod records;
mod server;
mod service;
mod snapshot;

use std::sync::Arc;

pub(crate) use board::Observed;
use board::Process;
#[cfg(feature = "cuda")]
pub(crate) use journal::{DEPTH, Journal};
use service::Service;
use spark_ccl_control::Watch;

use crate::error::Error;
use crate::world::{NO_CONTEXT, World};

/// An observed communicator, and the service that reports on it.
pub(crate) struct Observation {
    // Dropped before the service, whose last turn writes what is left of it.
    pub(crate) observed: Arc<Observed>,
    _service: Arc<Service>,
}

/// Starts to observe a communicator, if the settings ask for it.
pub(crate) fn start(
    world: &World,
    watch: &Arc<Watch>,
    context: u64,
    members: &[u32],
) -> Result<Option<Observation>, Error> {
    let settings = &world.settings;
    if !settings.observe.is_on() {
        return Ok(None);
    }
    let session = &world.session;
    let service = Service::of(&settings.observe).map_err(|error| Error::System {
        what: "starting the thread that tells what runs".to_owned(),
        problem: error.to_string(),
    })?;
    let process = |&member: &u32| {
        let peer = session.peer(member);
        Process {
            world: member,
            host: peer.host.clone(),
            pid: peer.pid,
        }
    };
    let own = session.rank();
    let observed = Observed::new(
        context,
        session.derive_context(NO_CONTEXT, 0, 0),
        members
            .iter()
            .position(|&member| member == own)
            .unwrap_or(0) as u32,
        members.iter().map(process).collect(),
        settings.operation_timeout,
        watch,
        service.board(),
    );
    Ok(Some(Observation {
        observed,
        _service: service,
    }))
}
