//! The end of a session whose thread passes connections on. It waits a moment for others' bytes to
//! arrive before its rank, and perhaps its process, ends.

use std::thread::{ThreadId, current};
use std::time::{Duration, Instant};

use spark_ccl_log::{Condvar, Mutex};

/// After this long without a byte, no more are expected.
pub(super) const QUIET: Duration = Duration::from_millis(200);
/// The longest that draining may take.
pub(super) const LONGEST: Duration = Duration::from_secs(2);

/// Whether a session's thread passes connections on.
#[derive(Debug, Default)]
pub(crate) struct Draining {
    /// The thread, while it does.
    thread: Mutex<Option<ThreadId>>,
    changed: Condvar,
}

impl Draining {
    /// Records, for the session's thread, whether it passes connections on now.
    pub(crate) fn note(&self, is_busy: bool) {
        *self.thread.lock() = is_busy.then(|| current().id());
        self.changed.notify_all();
    }

    /// Waits until the thread, already told to end, has passed on what it had.
    pub(crate) fn wait(&self) {
        let deadline = Instant::now() + LONGEST + QUIET;
        let thread = self.thread.lock();
        // A session may be dropped by its own thread.
        let goes_on = |thread: &mut Option<ThreadId>| thread.is_some_and(|it| it != current().id());
        drop(self.changed.wait_while_until(thread, goes_on, deadline));
    }
}
