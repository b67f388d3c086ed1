//! How threads of this crate are told to end.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::net::Bell;

/// Ends a thread that sleeps in [`net::poll`](crate::net::poll).
pub(crate) struct Stop {
    flag: AtomicBool,
    bell: Bell,
}

impl Stop {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Stop {
            flag: AtomicBool::new(false),
            bell: Bell::new()?,
        })
    }

    pub(crate) fn stop(&self) {
        // Carries nothing but itself; the bell brings the thread to look.
        self.flag.store(true, Ordering::Relaxed);
        self.bell.ring();
    }

    pub(crate) fn stopped(&self) -> bool {
        // Nothing is read on its account.
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
