//! Since when a call or a message does not progress, and when the other ranks were told.

use std::time::Instant;

use crate::host::is_to_be_told;

pub(super) struct Stall {
    seen: [u64; 2],
    since: Instant,
    told: Option<Instant>,
}

impl Stall {
    pub(super) fn new() -> Self {
        Self {
            seen: [0; 2],
            since: Instant::now(),
            told: None,
        }
    }

    /// Whether to tell the other ranks now. `seen` changes with each progress.
    pub(super) fn is_to_be_told(&mut self, seen: [u64; 2], now: Instant) -> bool {
        if self.seen != seen {
            (self.seen, self.since, self.told) = (seen, now, None);
        }
        let waited = now.saturating_duration_since(self.since);
        is_to_be_told(self.told, waited, now)
    }

    /// When the last progress was seen.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// Notes that the other ranks were told.
    pub(super) fn note_told(&mut self, now: Instant) {
        self.told = Some(now);
    }
}
