//! Remembers which thread made the first call of an engine. Knows threads by numbers of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

static THREADS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// Relaxed: the number only has to differ between threads.
    static THREAD: u64 = THREADS.fetch_add(1, Ordering::Relaxed);
}

/// The number of the thread that made the first call; 0 before that.
#[derive(Default)]
pub(super) struct FirstCaller {
    is_known: bool,
    thread: Arc<AtomicU64>,
}

/// The same number, to be read without the engine's lock.
pub(super) struct FirstCallerView(Arc<AtomicU64>);

impl FirstCaller {
    /// Notes this thread before the first call.
    #[inline]
    pub(super) fn note(&mut self) {
        if !self.is_known {
            self.note_first();
        }
    }

    #[cold]
    fn note_first(&mut self) {
        self.is_known = true;
        // Relaxed: it publishes no other data.
        self.thread
            .store(THREAD.with(|thread| *thread), Ordering::Relaxed);
    }

    pub(super) fn view(&self) -> FirstCallerView {
        FirstCallerView(Arc::clone(&self.thread))
    }
}

impl FirstCallerView {
    /// Whether no thread but this one has made the first call.
    pub(super) fn is_none_but_this(&self) -> bool {
        // Relaxed: the number orders no other memory.
        let first = self.0.load(Ordering::Relaxed);
        first == 0 || first == THREAD.with(|thread| *thread)
    }
}
