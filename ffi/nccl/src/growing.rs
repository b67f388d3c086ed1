//! Communicators that grow: the old ranks pass a new unique id among themselves, and all meet anew.

use std::ffi::c_int;
use std::sync::Arc;

use spark_ccl::{Cancel, Communicator, UniqueId};
use spark_ccl_abi::arguments::given;
use spark_ccl_abi::failure::{Failure, guarded};

use crate::comm::{enter, find};
use crate::config::Options;
use crate::making::{Plan, make};
use crate::rendezvous::{self, connect, init_rank_config};
use crate::status::Status;
use crate::types::{ncclComm_t, ncclConfig_t, ncclUniqueId};

/// `ncclCommGetUniqueId`: an id for [`grow`].
///
/// # Safety
/// `id` is null or can be written.
pub(crate) unsafe fn unique_id(comm: ncclComm_t, id: *mut ncclUniqueId) -> Status {
    match guarded(|| find(comm).map(drop)) {
        // SAFETY: `id` is null or can be written (this function's contract).
        Status::Success => unsafe { rendezvous::unique_id(id) },
        failed => failed,
    }
}

/// `ncclCommGrow`. One of the old ranks passes the id; old ranks keep their numbers. A new rank
/// passes its number, the id, and no communicator.
///
/// # Safety
/// `id` is null or points to an id. `new` is null or can be written. `config` is null, or [as it
/// must be](Options::read).
pub(crate) unsafe fn grow(
    comm: ncclComm_t,
    size: c_int,
    id: *const ncclUniqueId,
    rank: c_int,
    new: *mut ncclComm_t,
    config: *mut ncclConfig_t,
) -> Status {
    let mut own = None;
    if !id.is_null() {
        // SAFETY: `id` is not null, so it points to an id (this function's contract).
        own = Some(unsafe { id.read() });
    }
    if comm.is_null() {
        let Some(id) = own else {
            return guarded(|| given(id, "uniqueId of a new rank").map(drop));
        };
        // SAFETY: `new` is null or can be written, and `config` is null, or as long as its `size`
        // says, and its strings and options end: the caller passes no other.
        return unsafe { init_rank_config(new, size, id, rank, config) };
    }
    let prepare = |options: &Options| {
        let parent = enter(comm)?;
        let grown = usize::try_from(size).unwrap_or(0);
        if grown <= parent.inner.size() {
            return Err(Failure::invalid(format!(
                "nRanks is {size}, and there are {} ranks already",
                parent.inner.size()
            )));
        }
        if rank != -1 {
            return Err(Failure::invalid(format!(
                "rank is {rank}: ranks of the communicator keep theirs, and pass -1"
            )));
        }
        let builder = options.builder(parent.inner.device())?;
        let from = Some((comm, Arc::clone(&parent)));
        Ok(Plan::new(from, move |cancel: &Cancel| {
            let id = {
                let its = Arc::clone(&parent);
                // Fails only in a forked child, which has nothing to leave.
                let _on_cancel = cancel.on_cancel(move || drop(its.inner.leave()));
                shared(&parent.inner, own)?
            };
            let rank = c_int::try_from(parent.inner.rank()).unwrap_or(c_int::MAX);
            connect(builder, size, &id, rank)?(cancel)
        }))
    };
    // SAFETY: `new` is null or can be written, and `config` is null, or as long as its `size` says,
    // and its strings and options end: the caller passes no other.
    unsafe { make(new, config, prepare) }
}

/// The id that one of the ranks has.
fn shared(comm: &Communicator, own: Option<ncclUniqueId>) -> Result<ncclUniqueId, Failure> {
    const LEN: usize = UniqueId::LEN;
    let own = own.map_or([0; LEN], |id| id.internal);
    let mut all = vec![0; LEN * comm.size()];
    comm.all_gather(&own[..], &mut all[..]).run()?;
    let mut given = all
        .chunks_exact(LEN)
        .filter(|id| id.iter().any(|&byte| byte != 0));
    let (Some(id), None) = (given.next(), given.next()) else {
        return Err(Failure::invalid(
            "not exactly one rank of the communicator passes a uniqueId: the one that called \
             ncclCommGetUniqueId does, and the others pass null",
        ));
    };
    let internal = id.try_into().unwrap_or([0; LEN]);
    Ok(ncclUniqueId { internal })
}
