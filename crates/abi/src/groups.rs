//! Groups: a thread's calls that proceed together, and its meetings with other ranks, which may be
//! ranks of the same thread. Knows calls; does not know their arguments.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use spark_ccl::UntypedCall;
use spark_ccl::cuda::cudarc::driver::sys::{CUevent, CUstream};
use spark_ccl_fork::Process;

use crate::comm::{Comm, Planned};
use crate::copies::copy_messages;
use crate::enqueued::Enqueued;
use crate::failure::{Failure, Kind};
use crate::started::{Held, Started};

/// The number of the next group. A count on its own: relaxed.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The groups that a thread has opened.
struct Group {
    number: u64,
    /// The process that has opened them. A forked child's copy means nothing there.
    owner: Process,
    /// The number of open groups, one within the other.
    depth: usize,
    /// The calls on host memory in their order, also calls that could not begin.
    calls: Vec<Result<Call, Failure>>,
    /// The calls that are to be enqueued in streams.
    enqueued: Vec<Enqueued>,
    /// The meetings that the group's end waits for, by `order`: equal ones run one after the other.
    meetings: BTreeMap<usize, Vec<Meeting>>,
    /// The meetings that the group's end does not wait for, by `order`.
    background: BTreeMap<usize, Vec<Meeting>>,
}

/// A call on host memory.
enum Call {
    Started(Started),
    Held(Held),
}

/// Something that ranks do together and that is no call: making a communicator, for instance.
pub type Meeting = Box<dyn FnOnce() -> Result<(), Failure> + Send>;

/// Whether calls go on when a function returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Nothing.
    Done,
    /// A meeting in a thread of its own.
    Background,
}

thread_local! {
    static GROUP: RefCell<Option<Group>> = const { RefCell::new(None) };
}

/// Opens a group in this thread, within the one that is open if there is one.
///
/// # Errors
/// The thread is about to end.
pub fn start() -> Result<(), Failure> {
    let is_open = with_group(|group| {
        let group = group.get_or_insert_with(|| Group {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            owner: Process::here(),
            depth: 0,
            calls: Vec::new(),
            enqueued: Vec::new(),
            meetings: BTreeMap::new(),
            background: BTreeMap::new(),
        });
        group.depth += 1;
    });
    is_open.ok_or_else(|| usage("this thread is about to end, and opens no group"))
}

/// Closes this thread's innermost group; if it is the outermost, too, ends its calls.
///
/// # Errors
/// There is none; else the first failure of its calls.
pub fn end() -> Result<Progress, Failure> {
    let ended = with_group(|own| {
        let group = own.as_mut()?;
        group.depth -= 1;
        Some(own.take_if(|group| group.depth == 0))
    });
    match ended.flatten() {
        None => Err(none_is_open()),
        Some(None) => Ok(Progress::Done),
        Some(Some(group)) => group.end(),
    }
}

/// Closes this thread's innermost group. If it is the outermost, too, returns its calls, and begins
/// none.
///
/// # Errors
/// No group is open; the group also makes or ends communicators, or has begun calls, so all of it
/// is dropped; or a call of it failed.
pub fn abandon() -> Result<Option<Vec<Planned>>, Failure> {
    let closed = with_group(|own| {
        let group = own.as_mut().ok_or_else(none_is_open)?;
        group.depth -= 1;
        Ok(own.take_if(|group| group.depth == 0))
    });
    let closed = closed.unwrap_or_else(|| Err(none_is_open()))?;
    closed.map(Group::into_calls).transpose()
}

impl Group {
    /// Whether it has only calls that begin at its end.
    fn is_of_calls(&self) -> bool {
        let has_begun = |call: &Result<Call, Failure>| matches!(call, Ok(Call::Started(_)));
        self.meetings.is_empty() && self.background.is_empty() && !self.calls.iter().any(has_begun)
    }

    fn into_calls(self) -> Result<Vec<Planned>, Failure> {
        if !self.is_of_calls() {
            return Err(usage(
                "the group makes or ends communicators, or has begun, so it is dropped as a whole: \
                 such groups end by ncclGroupEnd",
            ));
        }
        let held = self.calls.into_iter().filter_map(|call| match call {
            Ok(Call::Held(held)) => Some(Ok(held.into_call())),
            Ok(Call::Started(_)) => None,
            Err(failure) => Some(Err(failure)),
        });
        let enqueued = self.enqueued.into_iter().map(Enqueued::into_call);
        held.chain(enqueued.map(Ok)).collect()
    }

    /// Begins the calls and meetings that have waited for the end, unless a call could not begin.
    /// Then other ranks may have begun nothing either, and this one would wait for them in vain.
    fn end(mut self) -> Result<Progress, Failure> {
        // Leaked by a panic: a call may still send from it then.
        let copied = copy_messages(self.calls.iter_mut().filter_map(held)).map(ManuallyDrop::new);
        let copies = copied.unwrap_or_else(|failure| {
            self.calls.push(Err(failure));
            ManuallyDrop::default()
        });
        let is_whole = self.calls.iter().all(Result::is_ok);
        let enqueued = if is_whole {
            Enqueued::enqueue(&self.enqueued)
        } else {
            Ok(())
        };
        let calls = begin(self.calls, is_whole && enqueued.is_ok());
        let met = if enqueued.is_ok() && calls.iter().all(Result::is_ok) {
            // Background meetings come first: the meetings below may wait for them.
            let began = in_background(self.background);
            together(self.meetings).and(began)
        } else {
            Ok(Progress::Done)
        };
        // Waits for all calls, also after a failure: afterwards, their buffers are the caller's
        // again.
        let wait = |call: Result<Started, Failure>| call.and_then(|started| started.wait());
        let outcomes: Vec<_> = calls.into_iter().map(wait).collect();
        drop(ManuallyDrop::into_inner(copies));
        let outcome: Result<(), _> = outcomes.into_iter().collect();
        outcome.and(enqueued).and(met)
    }
}

/// A call that waits for the end of its group.
fn held(call: &mut Result<Call, Failure>) -> Option<&mut Held> {
    match call {
        Ok(Call::Held(held)) => Some(held),
        _ => None,
    }
}

/// Starts held calls up to the first that fails; none unless `all`.
fn begin(calls: Vec<Result<Call, Failure>>, mut all: bool) -> Vec<Result<Started, Failure>> {
    let begin = |call| match call {
        Ok(Call::Started(started)) => Some(Ok(started)),
        Ok(Call::Held(held)) => all
            .then(|| held.start())
            .inspect(|begun| all &= begun.is_ok()),
        Err(failure) => Some(Err(failure)),
    };
    calls.into_iter().filter_map(begin).collect()
}

/// Holds meetings that may wait for each other: all but the last in threads of their own.
fn together(mut meetings: BTreeMap<usize, Vec<Meeting>>) -> Result<(), Failure> {
    let Some((_, last)) = meetings.pop_last() else {
        return Ok(());
    };
    let threads = meetings
        .into_values()
        .map(|own| spawn("spark-group", move || one_by_one(own)));
    let threads: Vec<_> = threads.collect();
    let outcome = one_by_one(last);
    let join = |thread: JoinHandle<_>| thread.join().unwrap_or_else(|_| Err(panicked()));
    let met = threads.into_iter().map(|thread| thread.and_then(join));
    met.fold(outcome, |outcome, met| met.and(outcome))
}

fn one_by_one(meetings: Vec<Meeting>) -> Result<(), Failure> {
    let met = meetings.into_iter().map(attempt);
    met.fold(Ok(()), Result::and)
}

/// Holds each meeting in a thread of its own, for which nobody waits.
fn in_background(meetings: BTreeMap<usize, Vec<Meeting>>) -> Result<Progress, Failure> {
    let mut progress = Ok(Progress::Done);
    for own in meetings.into_values() {
        let began = spawn("spark-meeting", || one_by_one(own));
        progress = progress.and(began.map(|_| Progress::Background));
    }
    progress
}

/// A meeting that panics must not keep the others from being waited for.
fn attempt(meeting: Meeting) -> Result<(), Failure> {
    // Whatever a panic leaves half done belongs to a communicator, which copes with that itself.
    catch_unwind(AssertUnwindSafe(meeting)).unwrap_or_else(|_| Err(panicked()))
}

fn panicked() -> Failure {
    Failure::new(Kind::Internal, "a rank panicked as it met others")
}

fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Failure> {
    let text = |error| format!("no thread can be started for a rank: {error}");
    spark_ccl_log::spawn(name, work).map_err(|error| Failure::new(Kind::System, text(error)))
}

/// Has this rank meet others: now, or at the end of the open group, beside the group's other
/// meetings, but after those of the same `order`.
///
/// # Errors
/// The meeting's, if no group is open.
pub fn meet(order: usize, meeting: Meeting) -> Result<(), Failure> {
    let mut meeting = Some(meeting);
    with_group(|group| {
        if let Some(group) = group {
            let same = group.meetings.entry(order).or_default();
            same.extend(meeting.take());
        }
    });
    meeting.map_or(Ok(()), attempt)
}

/// Has this rank meet others in a thread of its own, from now on, or from the end of the open group
/// on. The meeting comes after the group's background meetings of the same `order`. Returns whether
/// the meeting goes on.
///
/// # Errors
/// No group is open, and no thread can be started.
pub fn meet_in_background(order: usize, meeting: Meeting) -> Result<Progress, Failure> {
    let mut meeting = Some(meeting);
    with_group(|group| {
        if let Some(group) = group {
            let same = group.background.entry(order).or_default();
            same.extend(meeting.take());
        }
    });
    let alone = meeting.map(|meeting| (order, vec![meeting]));
    in_background(alone.into_iter().collect())
}

fn none_is_open() -> Failure {
    usage("no group is open in this thread")
}

/// Whether this thread has an open group.
pub fn is_open() -> bool {
    number().is_some()
}

/// The number of the outermost group that this thread has open. No other group of the process has
/// it.
pub fn number() -> Option<u64> {
    with_group(|group| group.as_ref().map(|group| group.number)).flatten()
}

/// An error if this thread has an open group. For functions that wait for other ranks themselves.
///
/// # Errors
/// A group is open; the message names the function.
pub fn must_be_closed(function: &str) -> Result<(), Failure> {
    if !is_open() {
        return Ok(());
    }
    Err(usage(format!(
        "{function} waits for other ranks, and cannot be called within a group: end the group of \
         this thread first"
    )))
}

/// Runs a call on host memory; in an open group, starts it, and the group's end waits for it.
///
/// # Safety
/// The call's buffers are as [`run_untyped`](spark_ccl::Communicator::run_untyped) demands until it
/// is done, also where that is at the end of the group.
///
/// # Errors
/// Those of `run_untyped`.
pub unsafe fn run(comm: Arc<dyn Comm>, call: &UntypedCall) -> Result<(), Failure> {
    if !is_open() {
        // SAFETY: `call` is done when this returns. Until then, the caller keeps the memory that it
        // sends initialised and unchanged. The caller keeps the memory that it receives writable,
        // and lets nobody else use that.
        let ran = unsafe { comm.inner().run_untyped(call) };
        return ran.map_err(|error| comm.explain(error.into()));
    }
    // SAFETY: `call` is done at the end of the group at last. Until then, the caller keeps the
    // memory that it sends initialised and unchanged. The caller keeps the memory that it receives
    // writable, and lets nobody else use that.
    push(Ok(Call::Started(unsafe { Started::start(comm, call) }?)));
    Ok(())
}

/// Runs a call on host memory; in an open group, checks it, and the group's end starts it and waits
/// for it.
///
/// # Safety
/// The call's buffers are as [`run_untyped`](spark_ccl::Communicator::run_untyped) demands until it
/// is done, also where that is at the end of the group. Messages of a group may be sent out of
/// memory where others of it are received: the contents from before are sent.
///
/// # Errors
/// Those of `run_untyped`.
pub unsafe fn hold(comm: Arc<dyn Comm>, call: UntypedCall) -> Result<(), Failure> {
    if !is_open() {
        // SAFETY: `call` is done when `run` returns, since no group is open. Until then, the caller
        // keeps the memory that it sends initialised and unchanged. The caller keeps the memory
        // that it receives writable, and lets nobody else use that.
        return unsafe { run(comm, &call) };
    }
    // SAFETY: `call` is done at the end of the group at last, and a group that never ends does not
    // start it. Until then, the caller keeps the memory that it sends initialised, and lets only
    // messages of this group change it. Of changed memory, the end of the group sends a copy. The
    // caller keeps the memory that it receives writable, and lets nobody else use that.
    push(Ok(Call::Held(unsafe { Held::new(comm, call) }?)));
    Ok(())
}

/// Enqueues a call in a stream, at the end of the open group if there is one, and behind it `event`
/// unless that is null.
///
/// # Safety
/// The stream is a default one, or lives until the call is enqueued, and so does the event, which
/// is of the communicator's device. The call's buffers are as
/// [`enqueue_untyped`](spark_ccl::Communicator::enqueue_untyped) demands until it has run.
///
/// # Errors
/// Those of `enqueue_untyped`, if no group is open.
pub unsafe fn enqueue(
    comm: Arc<dyn Comm>,
    call: UntypedCall,
    stream: CUstream,
    event: CUevent,
) -> Result<(), Failure> {
    // SAFETY: the event is of the communicator's device. The caller keeps it and the stream, unless
    // that is a default one, until the call is enqueued: `call` uses neither after that. The caller
    // keeps the buffers, and all other uses of them away, until the call has run.
    let mut call = Some(unsafe { Enqueued::new(comm, call, stream, event) });
    with_group(|group| {
        if let Some(group) = group {
            group.enqueued.extend(call.take());
        }
    });
    call.map_or(Ok(()), |alone| Enqueued::enqueue(&[alone]))
}

/// Has the open group, if there is one, end with this failure.
pub fn keep_failure(failure: &Failure) {
    if is_open() {
        push(Err(failure.clone()));
    }
}

fn push(call: Result<Call, Failure>) {
    with_group(|group| {
        if let Some(group) = group {
            group.calls.push(call);
        }
    });
}

/// This thread's groups, if there are any; `None` while the thread ends.
fn with_group<R>(work: impl FnOnce(&mut Option<Group>) -> R) -> Option<R> {
    let inherited = |group: &mut Option<Group>| group.take_if(|group| !group.owner.is_here());
    let result = GROUP.try_with(|group| {
        // Dropped after the borrow ends.
        let parents = inherited(&mut group.borrow_mut());
        drop(parents);
        work(&mut group.borrow_mut())
    });
    result.ok()
}

fn usage(message: impl Into<String>) -> Failure {
    Failure::new(Kind::Usage, message)
}

#[cfg(test)]
mod tests;
