//! The bounded queue of lines and events, and the thread that empties it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, LockResult, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use spark_ccl_fork::PerProcess;

use crate::job::Job;
use crate::thread;

/// How long [`flush`] and the process's exit wait at most.
pub const PATIENCE: Duration = Duration::from_millis(200);
/// How many bytes wait in the queue at most.
const ROOM: usize = 1 << 20;
/// The thread ends when nothing has come for this long.
const IDLE: Duration = Duration::from_secs(1);

/// This process's queue. Its locks are held only to change it, never while something is written.
static QUEUE: PerProcess<Queue> = PerProcess::new();

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    /// Signalled when a job comes, and when one is done.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// The bytes of the jobs, including the one that is being done.
    bytes: usize,
    /// Lost jobs that nobody has been told of.
    dropped: u64,
    has_thread: bool,
    /// How many jobs are done.
    done: u64,
    /// How many were done when a flush last gave up.
    gave_up: Option<u64>,
}

/// Locks of this crate are never poisoned for their users.
#[inline]
pub(crate) fn unpoisoned<T>(result: LockResult<T>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

/// Adds a job, or counts it as dropped if there is no room for it.
pub(crate) fn push(job: Job) {
    flush_at_exit();
    let queue = QUEUE.get();
    let mut state = unpoisoned(queue.state.lock());
    if state.bytes + job.bytes() > ROOM {
        state.dropped += 1;
        return;
    }
    state.bytes += job.bytes();
    state.jobs.push_back(job);
    queue.changed.notify_all();
    if state.has_thread {
        return;
    }
    let started = Builder::new().name("spark-log".to_owned());
    state.has_thread = started.spawn(|| queue.empty()).is_ok();
    if !state.has_thread {
        state.dropped += state.jobs.len() as u64;
        state.jobs.clear();
        state.bytes = 0;
    }
}

/// Waits until everything is written, [`PATIENCE`] at most. Returns at once if an earlier flush
/// gave up and nothing was written since.
pub fn flush() {
    // A subscriber that drops a communicator would wait for itself.
    if thread::is_writer() {
        return;
    }
    let queue = QUEUE.get();
    let is_awaited = |state: &mut State| state.bytes > 0 && state.gave_up != Some(state.done);
    let state = unpoisoned(queue.state.lock());
    let wait = queue
        .changed
        .wait_timeout_while(state, PATIENCE, is_awaited);
    let (mut state, waited) = unpoisoned(wait);
    if waited.timed_out() {
        state.gave_up = Some(state.done);
    }
}

/// Flushes the log when it is dropped.
#[derive(Debug, Default)]
pub struct FlushOnDrop;

impl Drop for FlushOnDrop {
    fn drop(&mut self) {
        flush();
    }
}

impl Queue {
    /// Runs jobs until none has come for a while.
    fn empty(&self) {
        thread::become_writer();
        while let Some((job, dropped)) = self.next() {
            let work = || {
                if dropped > 0 {
                    job.confess(dropped);
                }
                job.run()
            };
            // A subscriber that panics loses the event; the panic is printed by the program's hook.
            let is_done = catch_unwind(AssertUnwindSafe(work)).unwrap_or(false);
            let mut state = unpoisoned(self.state.lock());
            state.bytes -= job.bytes();
            state.done += 1;
            state.dropped += u64::from(!is_done);
            self.changed.notify_all();
        }
    }

    /// The next job, and how many were dropped before it. `None` when the thread is to end.
    fn next(&self) -> Option<(Job, u64)> {
        let mut state = unpoisoned(self.state.lock());
        let is_idle = |state: &mut State| state.jobs.is_empty();
        (state, _) = unpoisoned(self.changed.wait_timeout_while(state, IDLE, is_idle));
        if state.jobs.is_empty() {
            state.has_thread = false;
            return None;
        }
        let dropped = std::mem::take(&mut state.dropped);
        state.jobs.pop_front().map(|job| (job, dropped))
    }
}

/// Makes the process's exit wait for the queue. A forked child inherits the handler, which waits
/// for its own queue.
fn flush_at_exit() {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    // Pairs with nothing: it only decides who registers the handler.
    if !IS_REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: the function has the signature that atexit expects, may be called at any time,
        // and does not unwind. glibc runs a library's handlers before it unloads the library.
        unsafe { libc::atexit(at_exit) };
    }
}

extern "C" fn at_exit() {
    flush();
}
