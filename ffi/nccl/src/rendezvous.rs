//! How ranks meet in communicators.

use std::ffi::c_int;
use std::sync::Arc;

use spark_ccl::{Builder, Cancel, Communicator, Error, UniqueId};
use spark_ccl_abi::arguments::{given, natural, slice};
use spark_ccl_abi::failure::{Failure, Kind, guarded};
use spark_ccl_abi::groups;

use crate::comm::enter;
use crate::config::Options;
use crate::making::{Plan, begin, make};
use crate::status::Status;
use crate::types::{ncclComm_t, ncclConfig_t, ncclUniqueId};

/// `ncclGetUniqueId`.
///
/// # Safety
/// `id` is null or can be written.
pub(crate) unsafe fn unique_id(id: *mut ncclUniqueId) -> Status {
    guarded(|| {
        let id = given(id, "uniqueId")?;
        let internal = *Communicator::builder().unique_id()?.as_bytes();
        // SAFETY: `given` has refused null, and otherwise `id` can be written (this function's
        // contract).
        unsafe { id.write(ncclUniqueId { internal }) };
        Ok(())
    })
}

/// `ncclCommInitRank`.
///
/// # Safety
/// `comm` is null or can be written.
pub(crate) unsafe fn init_rank(
    comm: *mut ncclComm_t,
    size: c_int,
    id: ncclUniqueId,
    rank: c_int,
) -> Status {
    // SAFETY: `comm` is null or can be written (this function's contract), and there is no
    // configuration.
    unsafe { init_rank_config(comm, size, id, rank, std::ptr::null_mut()) }
}

/// `ncclCommInitRankConfig`.
///
/// # Safety
/// `comm` is null or can be written. `config` is null, or [as it must be](Options::read).
pub(crate) unsafe fn init_rank_config(
    comm: *mut ncclComm_t,
    size: c_int,
    id: ncclUniqueId,
    rank: c_int,
    config: *mut ncclConfig_t,
) -> Status {
    let prepare = |options: &Options| {
        Ok(Plan::new(
            None,
            connect(options.builder(None)?, size, &id, rank)?,
        ))
    };
    // SAFETY: `comm` is null or can be written, and `config` is null, or as long as its `size`
    // says, and its strings and options end: the caller passes no other.
    unsafe { make(comm, config, prepare) }
}

/// `ncclCommInitRankScalable`: the ranks meet by the first id.
///
/// # Safety
/// `comm` is null or can be written, and `ids` is null or points to `count` ids. `config` is null,
/// or [as it must be](Options::read).
pub(crate) unsafe fn init_rank_scalable(
    comm: *mut ncclComm_t,
    size: c_int,
    rank: c_int,
    count: c_int,
    ids: *mut ncclUniqueId,
    config: *mut ncclConfig_t,
) -> Status {
    let prepare = |options: &Options| {
        // SAFETY: `ids` is null or points to `count` ids (this function's contract). The first is
        // copied within this closure, and the slice is not used longer.
        let ids = unsafe { slice(ids, natural(count, "nId")?, "commIds") }?;
        let Some(id) = ids.first() else {
            return Err(Failure::invalid("nId is 0, and ranks meet by an id"));
        };
        Ok(Plan::new(
            None,
            connect(options.builder(None)?, size, id, rank)?,
        ))
    };
    // SAFETY: `comm` is null or can be written, and `config` is null, or as long as its `size`
    // says, and its strings and options end: the caller passes no other.
    unsafe { make(comm, config, prepare) }
}

/// `ncclCommInitAll`: all ranks are in this process.
///
/// # Safety
/// `comms` is null, or `count` handles can be written there. `devices` is null or points to `count`
/// numbers.
pub(crate) unsafe fn init_all(
    comms: *mut ncclComm_t,
    count: c_int,
    devices: *const c_int,
) -> Status {
    guarded(|| {
        let (comms, size) = (given(comms, "comm")?, natural(count, "ndev")?);
        if size == 0 {
            return Err(Failure::invalid(
                "ndev is 0, and there is no communicator of no ranks",
            ));
        }
        let devices = if devices.is_null() {
            (0..size).collect()
        } else {
            // SAFETY: `devices` is not null, so it points to `count` numbers (this function's
            // contract), which are copied here.
            let devices = unsafe { slice(devices, size, "devlist") }?.iter();
            let devices = devices.map(|&device| natural(device, "a device of devlist"));
            devices.collect::<Result<Vec<_>, _>>()?
        };
        let internal = *Communicator::builder().unique_id()?.as_bytes();
        let id = ncclUniqueId { internal };
        groups::start()?;
        let mut outcome = Ok(());
        for (rank, device) in (0..).zip(devices) {
            let prepare = |options: &Options| {
                let builder = options.builder(None)?;
                let builder = builder.set("SPARK_CCL_DEVICE", &device.to_string());
                Ok(Plan::new(None, connect(builder, count, &id, rank)?))
            };
            // SAFETY: `given` has refused null, and otherwise `count` handles can be written (this
            // function's contract). `rank` is less than `count`. There is no configuration.
            let begun = unsafe { begin(comms.add(rank as usize), std::ptr::null(), prepare) };
            outcome = outcome.and(begun.map(drop));
        }
        outcome.and(groups::end().map(drop))
    })
}

/// `ncclCommSplit`.
///
/// # Safety
/// `part` is null or can be written. `config` is null, or [as it must be](Options::read).
pub(crate) unsafe fn split(
    comm: ncclComm_t,
    color: c_int,
    key: c_int,
    part: *mut ncclComm_t,
    config: *mut ncclConfig_t,
) -> Status {
    let prepare = |_: &Options| {
        let parent = enter(comm)?;
        // With a negative color, the rank is in no part.
        let color = u32::try_from(color).ok();
        let own = Some((comm, Arc::clone(&parent)));
        let split = move |cancel: &Cancel| Ok(parent.inner.split_unless(cancel, color, key)?);
        let plan = Plan::new(own, split);
        Ok(plan.of_member(color.is_some()))
    };
    // SAFETY: `part` is null or can be written, and `config` is null, or as long as its `size`
    // says, and its strings and options end: the caller passes no other.
    unsafe { make(part, config, prepare) }
}

/// `NCCL_SHRINK_ABORT`.
const ABORT: c_int = 1;

/// `ncclCommShrink`.
///
/// # Safety
/// `lost` is null or points to `count` ranks. `rest` is null or can be written. `config` is null,
/// or [as it must be](Options::read).
pub(crate) unsafe fn shrink(
    comm: ncclComm_t,
    lost: *mut c_int,
    count: c_int,
    rest: *mut ncclComm_t,
    config: *mut ncclConfig_t,
    flags: c_int,
) -> Status {
    let prepare = |_: &Options| {
        if flags & !ABORT != 0 {
            return Err(Failure::invalid(format!(
                "shrinkFlags is {flags}, not 0 or 1"
            )));
        }
        let parent = enter(comm)?;
        // SAFETY: `lost` is null or points to `count` ranks (this function's contract), which
        // are copied within this closure.
        let lost = unsafe {
            slice(
                lost,
                natural(count, "excludeRanksCount")?,
                "excludeRanksList",
            )
        }?;
        let lost = lost.iter().map(|&rank| natural(rank, "an excluded rank"));
        let lost = lost.collect::<Result<Vec<_>, _>>()?;
        let own = Some((comm, Arc::clone(&parent)));
        Ok(Plan::new(own, move |cancel: &Cancel| {
            if flags == ABORT {
                parent.inner.abort("ncclCommShrink with NCCL_SHRINK_ABORT");
            }
            without(cancel, &parent.inner, &lost)
        }))
    };
    // SAFETY: `rest` is null or can be written, and `config` is null, or as long as its `size`
    // says, and its strings and options end: the caller passes no other.
    unsafe { make(rest, config, prepare) }
}

/// A communicator of the ranks that were not excluded, if all of them are still there.
fn without(
    cancel: &Cancel,
    parent: &Communicator,
    lost: &[usize],
) -> Result<Option<Communicator>, Failure> {
    let rest = parent.shrink_unless(cancel, lost)?;
    let mut excluded = lost.to_vec();
    excluded.sort_unstable();
    excluded.dedup();
    let expected = parent.size() - excluded.len();
    if rest.size() != expected {
        return Err(Failure::new(
            Kind::Remote,
            format!(
                "{} of {} ranks are left without those excluded, and {expected} were expected: \
                 others have ended; exclude them, too",
                rest.size(),
                parent.size()
            ),
        ));
    }
    Ok(Some(rest))
}

/// Joins the ranks of an id.
pub(crate) fn connect(
    builder: Builder,
    size: c_int,
    id: &ncclUniqueId,
    rank: c_int,
) -> Result<impl FnOnce(&Cancel) -> Result<Option<Communicator>, Failure> + Send + 'static, Failure>
{
    let (size, rank) = (natural(size, "nranks")?, natural(rank, "rank")?);
    if rank >= size {
        return Err(Failure::invalid(format!(
            "rank is {rank}, and nranks {size}: ranks are 0 to nranks - 1"
        )));
    }
    let id = UniqueId::from_bytes(&id.internal).map_err(Error::from)?;
    Ok(move |cancel: &Cancel| Ok(Some(builder.cancel_by(cancel).connect(&id, rank, size)?)))
}
