//! The stop flag of this crate's threads, and the bell that wakes them to see it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::net::Bell;

/// Tells a thread that sleeps in [`net::poll`](crate::net::poll) to end.
pub(crate) struct Stop {
    flag: AtomicBool,
    bell: Arc<Bell>,
}

impl Stop {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self::ringing(Arc::new(Bell::new()?)))
    }

    /// A flag for a thread that serves others, too, woken by `bell`.
    pub(crate) fn ringing(bell: Arc<Bell>) -> Self {
        Stop {
            flag: AtomicBool::new(false),
            bell,
        }
    }

    pub(crate) fn stop(&self) {
        // Relaxed, as its load: the flag publishes no other data, and the bell below makes the
        // thread check it.
        self.flag.store(true, Ordering::Relaxed);
        self.bell.ring();
    }

    pub(crate) fn stopped(&self) -> bool {
        // Relaxed, as its store: no other data is read because of it.
        self.flag.load(Ordering::Relaxed)
    }

    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }
}

impl std::fmt::Debug for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stop")
            .field("stopped", &self.stopped())
            .finish_non_exhaustive()
    }
}
