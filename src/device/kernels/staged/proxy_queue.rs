//! State that a communicator's threads share with the thread that passes its pieces.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use spark_ccl_log::{Condvar, Mutex};

/// Connects threads that enqueue operations with the one that passes their pieces.
#[derive(Debug, Default)]
pub(super) struct ProxyQueue {
    /// How many operations and messages were enqueued, without those in graphs.
    expected: AtomicU64,
    /// Whether there were messages by pieces among them.
    has_messages: AtomicBool,
    /// Whether some were captured: graphs may be launched at any time.
    is_captured: AtomicBool,
    is_closed: AtomicBool,
    use_of_stage: Mutex<Use>,
    left: Mutex<Option<Box<dyn Any + Send>>>,
    has_ended: Condvar,
}

/// Whether the thread that passes pieces uses the stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Use {
    #[default]
    Used,
    /// Neither the stage nor its memory is used any more.
    Over,
    /// The process exits: the host engine may still have pieces, and nothing is freed.
    Abandoned,
}

/// Operations or messages that are about to be enqueued, and are counted as expected. A drop
/// without [`keep`](Self::keep) takes them off the count.
pub(super) struct Expected<'a>(&'a AtomicU64, u64);

impl Expected<'_> {
    /// They were enqueued: they stay expected until they are done.
    pub(super) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        // Relaxed: the number only says how long the thread that passes pieces may sleep.
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

// All accesses are relaxed: the fields say how long the thread that passes pieces may sleep, or
// that it shall leave. The thread finds the pieces themselves in the stage.
impl ProxyQueue {
    /// An operation is about to be enqueued, or captured into a graph.
    pub(super) fn expect(&self, is_captured: bool) -> Expected<'_> {
        self.expect_some(1, is_captured)
    }

    /// Messages are about to be enqueued, or captured into a graph: some by slots, and others by
    /// pieces.
    pub(super) fn expect_messages(
        &self,
        [by_slots, by_pieces]: [usize; 2],
        is_captured: bool,
    ) -> Expected<'_> {
        if by_pieces > 0 {
            self.has_messages.store(true, Ordering::Relaxed);
        }
        self.expect_some((by_slots + by_pieces) as u64, is_captured)
    }

    fn expect_some(&self, count: u64, is_captured: bool) -> Expected<'_> {
        if is_captured {
            self.is_captured.store(true, Ordering::Relaxed);
        }
        self.expected.fetch_add(count, Ordering::Relaxed);
        Expected(&self.expected, count)
    }

    /// Whether there have ever been messages by pieces.
    pub(super) fn has_messages(&self) -> bool {
        self.has_messages.load(Ordering::Relaxed)
    }

    /// Whether pieces may be there soon, if this number of operations and messages is done.
    pub(super) fn expects(&self, done: u64) -> bool {
        self.is_captured.load(Ordering::Relaxed) || self.expected.load(Ordering::Relaxed) > done
    }

    /// Stops passing pieces; those under way are given up.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Leaves something for the thread that ends the stage to drop.
    pub(super) fn leave(&self, left: Box<dyn Any + Send>) {
        *self.left.lock() = Some(left);
    }

    /// Takes the value given to [`leave`](Self::leave).
    pub(super) fn take_left(&self) -> Option<Box<dyn Any + Send>> {
        self.left.lock().take()
    }

    /// The thread does nothing for this queue any more.
    pub(super) fn end_use(&self, end: Use) {
        let mut seen = self.use_of_stage.lock();
        if *seen == Use::Used {
            *seen = end;
        }
        self.has_ended.notify_all();
    }

    /// Waits for [`end_use`](Self::end_use). Returns how the use has ended.
    pub(super) fn wait_for_end(&self) -> Use {
        let seen = self.use_of_stage.lock();
        *self.has_ended.wait_while(seen, |seen| *seen == Use::Used)
    }
}
