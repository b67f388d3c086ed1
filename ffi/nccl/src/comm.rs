//! Communicators: their handles, queries about them, and how this rank leaves one. How they are
//! made is in `rendezvous.rs`.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use spark_ccl::{Cancel, Communicator, Error};
use spark_ccl_abi::arguments::given;
use spark_ccl_abi::failure::{Failure, Kind, guarded};
use spark_ccl_abi::groups::{self, Progress};
use spark_ccl_abi::handles::Table;
use spark_ccl_abi::{Comm as _, Process};
use spark_ccl_log::Mutex;

use crate::config::Options;
use crate::ending::Ending;
use crate::factors::Factors;
use crate::shadow::Shadow;
use crate::status::{Status, progressing};
use crate::types::ncclComm_t;

/// Handles are addresses within this array, 16 bytes apart. Nobody writes to it. If a user passes
/// one of our handles to NCCL itself, NCCL reads up to 1 MiB of zeros there, and refuses the
/// handle; it would take any other number for an address, and crash.
static ROOM: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
const WORDS: usize = BYTES / size_of::<u64>();
const BYTES: usize = 64 << 20;
const LAST: usize = (BYTES - (1 << 20)) / APART;
const APART: usize = 16;

/// The next handle. Not per process: a handle that a forked child has inherited never becomes valid
/// there.
static NEXT: AtomicUsize = AtomicUsize::new(0);

static MEMBERS: Table<Member> = Table::new("communicator");

/// The object behind a handle: a communicator that is ready, or that is being made.
#[derive(Default)]
pub(crate) struct Member {
    made: OnceLock<Result<Arc<Comm>, Failure>>,
    /// Cancels the making.
    cancel: Cancel,
    /// Whether a thread leaves, and then removes the handle: until then, an abort can end its wait.
    /// Orders no other memory: relaxed.
    is_leaving: AtomicBool,
}

/// Sets the result of making a communicator: a failure, if this is dropped without a result.
pub(crate) struct Maker(Arc<Member>);

/// A communicator that is ready. Its fields are dropped in their order: the shadow's orderly end
/// may wait for other ranks, which must know by then that this one leaves.
pub(crate) struct Comm {
    pub(crate) inner: Communicator,
    pub(crate) factors: Factors,
    pub(crate) shadow: Arc<Shadow>,
    /// Whether its functions wait for other ranks.
    pub(crate) is_blocking: bool,
    /// The user's name for it.
    name: Option<String>,
    /// The meetings that go on in the background over its links, or that begin at the end of an
    /// open group. The key is the group in which the program called for the meeting.
    meetings: Mutex<Vec<Option<u64>>>,
}

/// A meeting of a communicator's ranks in the background. Until it ends, others are refused.
pub(crate) struct InProgress {
    comm: Arc<Comm>,
    group: Option<u64>,
    /// The process that has begun it.
    process: Process,
}

impl spark_ccl_abi::Comm for Comm {
    fn inner(&self) -> &Communicator {
        &self.inner
    }

    fn explain(&self, failure: Failure) -> Failure {
        match &self.name {
            Some(name) => Failure::new(
                failure.kind(),
                format!("communicator {name:?}: {}", failure.message()),
            ),
            None => failure,
        }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        self.shadow.decide(&self.inner);
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        // A forked child may have inherited the lock while another thread held it.
        if !self.process.is_here() {
            return;
        }
        let mut meetings = self.comm.meetings.lock();
        if let Some(own) = meetings.iter().position(|&group| group == self.group) {
            meetings.swap_remove(own);
        }
    }
}

impl Comm {
    pub(crate) fn new(inner: Communicator, options: Options) -> Self {
        Self {
            inner,
            factors: Factors::default(),
            shadow: Arc::default(),
            is_blocking: options.is_blocking.unwrap_or(true),
            name: options.name,
            meetings: Mutex::default(),
        }
    }

    fn is_in_progress(&self) -> bool {
        !self.meetings.lock().is_empty()
    }

    /// Whether a meeting goes on. Those of the group that this thread has open have not begun: what
    /// the group calls comes one after the other.
    fn is_busy(&self) -> bool {
        let open = groups::number();
        let meetings = self.meetings.lock();
        meetings
            .iter()
            .any(|&group| group.is_none() || group != open)
    }

    /// Notes that a meeting goes on.
    pub(crate) fn begin_meeting(self: &Arc<Self>) -> InProgress {
        let group = groups::number();
        self.meetings.lock().push(group);
        InProgress {
            comm: Arc::clone(self),
            group,
            process: Process::here(),
        }
    }
}

impl Maker {
    pub(crate) fn set(self, made: Result<Comm, Failure>) {
        // Nobody else sets it, and this is called once.
        let _ = self.0.made.set(made.map(Arc::new));
    }

    /// The handle that cancels the making.
    pub(crate) fn cancel(&self) -> Cancel {
        self.0.cancel.clone()
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        // Does nothing if the result is set.
        let _ = self.0.made.set(Err(Failure::new(
            Kind::Internal,
            "the communicator was not made: the group that makes it has failed, or its thread",
        )));
    }
}

impl Member {
    fn ready(&self) -> Result<Arc<Comm>, Failure> {
        match self.made.get() {
            Some(made) => made.clone(),
            None => Err(Failure::invalid(
                "the communicator is not ready: end the group that makes it, or ask \
                 ncclCommGetAsyncError until it is no longer ncclInProgress",
            )),
        }
    }
}

/// A handle for a communicator that is being made.
pub(crate) fn announce() -> Result<(ncclComm_t, Maker), Failure> {
    // Pairs with nothing: only the number counts.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    if number >= LAST {
        return Err(Failure::new(
            Kind::System,
            format!("this process has made {LAST} communicators: no more handles are left"),
        ));
    }
    let handle = ROOM.as_ptr().wrapping_byte_add(number * APART);
    let handle: ncclComm_t = handle.cast_mut().cast();
    let member = MEMBERS.insert_at(handle.addr() as u64, Member::default());
    Ok((handle, Maker(member)))
}

/// Whether a handle is one of this library's, perhaps of a communicator that has ended.
pub(crate) fn is_ours(comm: ncclComm_t) -> bool {
    let start = ROOM.as_ptr().addr();
    (start..start + BYTES).contains(&comm.addr())
}

/// The communicator of a handle.
pub(crate) fn find(comm: ncclComm_t) -> Result<Arc<Comm>, Failure> {
    let member = MEMBERS.get(comm.addr() as u64)?;
    if member.is_leaving.load(Ordering::Relaxed) {
        return Err(destroyed());
    }
    member.ready()
}

/// The communicator of a handle, for calls. A failure fails the open group, too.
pub(crate) fn enter(comm: ncclComm_t) -> Result<Arc<Comm>, Failure> {
    let entered = find(comm).and_then(|comm| {
        if comm.is_busy() {
            return Err(Failure::invalid(
                "a split, shrink, grow or finalize of the communicator goes on: ask \
                 ncclCommGetAsyncError until it is no longer ncclInProgress",
            ));
        }
        Ok(comm)
    });
    entered.inspect_err(groups::keep_failure)
}

/// Removes a handle.
pub(crate) fn forget(comm: ncclComm_t) -> Result<Arc<Member>, Failure> {
    MEMBERS.remove(comm.addr() as u64)
}

/// `ncclCommCount`.
///
/// # Safety
/// `count` is null or can be written.
pub(crate) unsafe fn count(comm: ncclComm_t, count: *mut c_int) -> Status {
    // SAFETY: `count` is null or can be written (this function's contract).
    unsafe { number(comm, count, "count", |comm| comm.inner.size()) }
}

/// `ncclCommUserRank`.
///
/// # Safety
/// `rank` is null or can be written.
pub(crate) unsafe fn user_rank(comm: ncclComm_t, rank: *mut c_int) -> Status {
    // SAFETY: `rank` is null or can be written (this function's contract).
    unsafe { number(comm, rank, "rank", |comm| comm.inner.rank()) }
}

/// `ncclCommCuDevice`: -1 if the communicator has no GPU.
///
/// # Safety
/// `device` is null or can be written.
pub(crate) unsafe fn device(comm: ncclComm_t, device: *mut c_int) -> Status {
    let own = |comm: &Comm| comm.inner.device().unwrap_or(usize::MAX);
    // SAFETY: `device` is null or can be written (this function's contract).
    unsafe { number(comm, device, "device", own) }
}

/// `ncclCommGetAsyncError`. The message of an error becomes the thread's last one, since users ask
/// for that next.
///
/// # Safety
/// `error` is null or can be written.
pub(crate) unsafe fn async_error(comm: ncclComm_t, error: *mut Status) -> Status {
    guarded(|| {
        let error = given(error, "asyncError")?;
        let member = MEMBERS.get(comm.addr() as u64)?;
        let state = match member.made.get() {
            None => Status::InProgress,
            Some(Ok(comm)) if comm.is_in_progress() => Status::InProgress,
            Some(Ok(comm)) => match comm.inner.check() {
                // The communicator was finalized, which is no error of its calls: users ask
                // afterwards.
                Err(Error::Invalid { .. }) => Status::Success,
                checked => guarded(|| checked.map_err(|error| comm.explain(error.into()))),
            },
            Some(Err(failure)) => guarded(|| Err(failure.clone())),
        };
        // SAFETY: `given` has refused null, and otherwise `error` can be written (this function's
        // contract).
        unsafe { error.write(state) };
        Ok(())
    })
}

/// How long each later call of a communicator may take, in milliseconds. NCCL does not have this
/// function.
#[unsafe(no_mangle)]
extern "C" fn spark_nccl_set_timeout(comm: ncclComm_t, milliseconds: u32) -> Status {
    guarded(|| {
        let limit = Duration::from_millis(milliseconds.into());
        Ok(enter(comm)?.inner.set_timeout(limit)?)
    })
}

/// `ncclCommFinalize`.
pub(crate) fn finalize(comm: ncclComm_t) -> Status {
    progressing(|| {
        if comm.is_null() {
            return Ok(Progress::Done);
        }
        let (known, order) = (enter(comm)?, comm.addr());
        if known.is_blocking {
            let finalize = move || Ok(end_in_order(&known.inner)?);
            return groups::meet(order, Box::new(finalize)).map(|()| Progress::Done);
        }
        let meeting = known.begin_meeting();
        let finalize = move || {
            let finalized = end_in_order(&known.inner);
            drop(meeting);
            Ok(finalized?)
        };
        groups::meet_in_background(order, Box::new(finalize))
    })
}

/// Waits for this rank's calls, and for no other rank: one that has its calls behind it may leave,
/// and others that make more are told so.
fn end_in_order(comm: &Communicator) -> Result<(), Error> {
    comm.settle()?;
    comm.check()
}

/// `ncclCommDestroy`: returns at once, and a thread leaves when this rank's own calls have run.
pub(crate) fn destroy(comm: ncclComm_t) -> Status {
    guarded(|| {
        if comm.is_null() {
            return Ok(());
        }
        let handle = comm.addr() as u64;
        let known = MEMBERS.get(handle).inspect_err(groups::keep_failure)?;
        if known.is_leaving.swap(true, Ordering::Relaxed) {
            return Err(destroyed()).inspect_err(groups::keep_failure);
        }
        let made = known.ready();
        let has_shadow = made.is_ok_and(|comm| comm.shadow.get().is_some());
        let ending = has_shadow.then(Ending::begin);
        let leaving = Leaving(Some(known));
        let leave = move || {
            leaving.begin();
            let left = leave(handle);
            drop(ending);
            if let Err(failure) = &left {
                // `ncclCommGetAsyncError` returns the failure, too, so no warning is needed.
                spark_ccl_log::debug!("a communicator that is destroyed: {}", failure.message());
            }
            left
        };
        // Within a group, the thread starts at the group's end, which does not wait for it. The
        // group still counts as done.
        let order = comm.addr();
        let begin = move || groups::meet_in_background(order, Box::new(leave)).map(drop);
        groups::meet(order, Box::new(begin))
    })
}

/// A destroy that has not begun. In a group of which a call could not begin it never does, and then
/// the application may destroy the communicator again.
struct Leaving(Option<Arc<Member>>);

impl Leaving {
    fn begin(mut self) {
        self.0 = None;
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some(member) = &self.0 {
            member.is_leaving.store(false, Ordering::Relaxed);
        }
    }
}

fn destroyed() -> Failure {
    Failure::invalid("no such communicator: it has been destroyed")
}

/// Waits for this rank's own calls, and then removes the handle, unless an abort has removed it.
fn leave(handle: u64) -> Result<(), Failure> {
    let Ok(member) = MEMBERS.get(handle) else {
        return Ok(());
    };
    let settled = match member.ready() {
        Ok(comm) => match comm.inner.drain() {
            // The communicator was finalized.
            Err(Error::Invalid { .. }) => Ok(()),
            settled => settled,
        },
        // The communicator leaves as soon as it is ready.
        Err(_) => Ok(()),
    };
    // Fails if the communicator was aborted meanwhile.
    drop(MEMBERS.remove(handle));
    Ok(settled?)
}

/// `ncclCommAbort`. Ends the calls under way on this rank, which then leaves. Cancels the making of
/// a communicator.
pub(crate) fn abort(comm: ncclComm_t) -> Status {
    guarded(|| {
        if comm.is_null() {
            return Ok(());
        }
        let member = forget(comm)?;
        member.cancel.cancel();
        // If the making cannot be cancelled any more, the communicator leaves as soon as it is
        // ready.
        member.ready().map_or(Ok(()), |comm| {
            comm.shadow.abort();
            Ok(comm.inner.leave()?)
        })
    })
}

/// `ncclCommRevoke`.
pub(crate) fn revoke(comm: ncclComm_t, flags: c_int) -> Status {
    guarded(|| {
        if flags != 0 {
            return Err(Failure::invalid(format!("revokeFlags is {flags}, not 0")));
        }
        find(comm)?.inner.abort("ncclCommRevoke");
        Ok(())
    })
}

/// `ncclCommSuspend`: all memory stays.
pub(crate) fn suspend(comm: ncclComm_t, _flags: c_int) -> Status {
    guarded(|| find(comm).map(drop))
}

/// `ncclCommResume`.
pub(crate) fn resume(comm: ncclComm_t) -> Status {
    guarded(|| find(comm).map(drop))
}

/// Writes a number of a communicator; -1 if it does not fit into an `int`.
///
/// # Safety
/// `out` is null or can be written.
unsafe fn number(
    comm: ncclComm_t,
    out: *mut c_int,
    name: &'static str,
    get: impl FnOnce(&Comm) -> usize,
) -> Status {
    guarded(|| {
        let value = c_int::try_from(get(&*find(comm)?)).unwrap_or(-1);
        // SAFETY: `given` refuses null, and otherwise `out` can be written (this function's
        // contract).
        unsafe { given(out, name)?.write(value) };
        Ok(())
    })
}
