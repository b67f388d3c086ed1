//! When communicators are made: at once, in the background, or at the end of a group. Does not know
//! how: that is a closure.

use std::sync::Arc;

use spark_ccl::{Cancel, Communicator};
use spark_ccl_abi::arguments::given;
use spark_ccl_abi::failure::{Failure, Kind};
use spark_ccl_abi::groups::{self, Progress};

use crate::comm::{Comm, InProgress, Maker, announce, forget};
use crate::config::Options;
use crate::status::{Status, progressing};
use crate::types::{ncclComm_t, ncclConfig_t};
use crate::{banner, fallback};

/// How a communicator is made.
pub(crate) struct Plan<W> {
    /// The communicator that it is made from, over which the ranks then agree, between their calls.
    parent: Option<(ncclComm_t, Arc<Comm>)>,
    /// Whether this rank will be in the new communicator.
    is_member: bool,
    work: W,
}

impl<W: FnOnce(&Cancel) -> Result<Option<Communicator>, Failure> + Send + 'static> Plan<W> {
    pub(crate) fn new(parent: Option<(ncclComm_t, Arc<Comm>)>, work: W) -> Self {
        Self {
            parent,
            is_member: true,
            work,
        }
    }

    /// Sets whether this rank, which takes part in any case, will be in the new communicator.
    pub(crate) fn of_member(self, is_member: bool) -> Self {
        Self { is_member, ..self }
    }

    /// The plan as work that ends by setting the result.
    fn into_work(
        self,
        maker: Option<Maker>,
        handle: usize,
        options: Options,
        meeting: Option<InProgress>,
    ) -> groups::Meeting {
        let cancel = maker.as_ref().map(Maker::cancel).unwrap_or_default();
        Box::new(move || {
            let made = (self.work)(&cancel);
            drop(meeting);
            banner::say();
            if let Ok(Some(made)) = &made {
                say(handle, made, options.name.as_deref());
            }
            let outcome = made.as_ref().map(drop).map_err(Clone::clone);
            if let Some(maker) = maker {
                let none = || Failure::new(Kind::Internal, "a member of no communicator");
                maker.set(
                    made.and_then(|made| {
                        made.map(|made| Comm::new(made, options)).ok_or_else(none)
                    }),
                );
            }
            outcome
        })
    }
}

/// Logs the new communicator, in the words that tools search for.
fn say(handle: usize, comm: &Communicator, name: Option<&str>) {
    let device = comm.device();
    let shown = device.map_or("-1".to_owned(), |device| device.to_string());
    spark_ccl_log::info!(
        "comm {handle:#x} rank {} nranks {} cudaDev {shown} busId {} commId {:#x}{} \
         - Init COMPLETE",
        comm.rank(),
        comm.size(),
        device.map_or("0".to_owned(), bus_id),
        comm.context_id(),
        name.map_or(String::new(), |name| format!(" commName {name}"))
    );
}

/// The PCI address of a device, as NCCL writes it: all its digits, as one number.
fn bus_id(device: usize) -> String {
    let digits = spark_ccl_cuda::bus_id(device).unwrap_or_default();
    let digits = digits.replace([':', '.'], "");
    match digits.trim_start_matches('0') {
        "" => "0".to_owned(),
        number => number.to_owned(),
    }
}

/// Makes a communicator as `prepare` plans it: now, in a thread of its own if it is not blocking,
/// or at the end of the group. The group fails if the making cannot begin.
///
/// # Safety
/// `to` is null or can be written. `config` is null, or [as it must be](Options::read).
pub(crate) unsafe fn make<
    W: FnOnce(&Cancel) -> Result<Option<Communicator>, Failure> + Send + 'static,
>(
    to: *mut ncclComm_t,
    config: *const ncclConfig_t,
    prepare: impl FnOnce(&Options) -> Result<Plan<W>, Failure>,
) -> Status {
    // SAFETY: `to` is null or can be written, and `config` is null, or as long as its `size` says,
    // and its strings and options end: the caller passes no other.
    progressing(|| unsafe { begin(to, config, prepare) })
}

/// [`make`] without its guard.
///
/// # Safety
/// That of [`make`].
pub(crate) unsafe fn begin<
    W: FnOnce(&Cancel) -> Result<Option<Communicator>, Failure> + Send + 'static,
>(
    to: *mut ncclComm_t,
    config: *const ncclConfig_t,
    prepare: impl FnOnce(&Options) -> Result<Plan<W>, Failure>,
) -> Result<Progress, Failure> {
    // SAFETY: `to` is null or can be written, and `config` is null, or as long as its `size` says,
    // and its strings and options end: the caller passes no other.
    unsafe { attempt(to, config, prepare) }.inspect_err(groups::keep_failure)
}

/// # Safety
/// That of [`make`].
unsafe fn attempt<W: FnOnce(&Cancel) -> Result<Option<Communicator>, Failure> + Send + 'static>(
    to: *mut ncclComm_t,
    config: *const ncclConfig_t,
    prepare: impl FnOnce(&Options) -> Result<Plan<W>, Failure>,
) -> Result<Progress, Failure> {
    let to = given(to, "the pointer to the new communicator")?;
    // SAFETY: `given` has refused null, and otherwise `to` can be written (this function's
    // contract).
    unsafe { to.write(std::ptr::null_mut()) };
    // SAFETY: `config` is null, or as long as its `size` says, and its strings and options end: the
    // caller passes no other.
    let mut options = unsafe { Options::read(config) }?;
    // So an unusable fallback is reported now, and not only when it is needed.
    fallback::real()?;
    let plan = prepare(&options)?;
    let (handle, maker) = if plan.is_member {
        let (handle, maker) = announce()?;
        (handle, Some(maker))
    } else {
        (std::ptr::null_mut(), None)
    };
    let (order, parent) = match &plan.parent {
        Some((order, parent)) => (order.addr(), Some(Arc::clone(parent))),
        None => (handle.addr(), None),
    };
    let inherited = parent.as_ref().is_none_or(|parent| parent.is_blocking);
    let is_blocking = *options.is_blocking.get_or_insert(inherited);
    let begun = if is_blocking {
        let work = plan.into_work(maker, handle.addr(), options, None);
        groups::meet(order, work).map(|()| Progress::Done)
    } else {
        let meeting = parent.as_ref().map(Comm::begin_meeting);
        let work = plan.into_work(maker, handle.addr(), options, meeting);
        groups::meet_in_background(order, work)
    };
    if begun.is_ok() {
        // SAFETY: `given` has refused null, and `to` can be written until this function returns
        // (its contract).
        unsafe { to.write(handle) };
    } else if !handle.is_null() {
        forget(handle)?;
    }
    begun
}
