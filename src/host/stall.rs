//! Keeps what an operation waits for, and since when. The consequences are drawn in `watchdog.rs`.

use std::time::{Duration, Instant};

use super::wires::Obstacle;

/// After a pause of this length, the process was stopped or in no call, and the others may have
/// given it up.
const PAUSE: Duration = Duration::from_millis(500);
/// How long the control plane then has to report that, before this rank calls the others late.
const NEWS_WITHIN: Duration = Duration::from_millis(500);

/// An operation that does not advance: why, and since when.
#[derive(Debug, Default)]
pub(super) struct Stall {
    pub(super) obstacle: Option<Obstacle>,
    since: Option<Instant>,
    /// When a message of another tag, or a link's end, was first seen.
    pub(super) suspicious: Option<Instant>,
    pub(super) announced: Option<Instant>,
    checked: Option<Instant>,
    /// A remark on the wait was made.
    pub(super) is_remarked: bool,
    /// When, after the deadline has passed, the others count as late.
    judged_at: Option<Instant>,
}

impl Stall {
    /// Notes why a channel is blocked. A wait never replaces an error.
    pub(super) fn meet(&mut self, obstacle: Obstacle) {
        if self.obstacle.is_none() || !obstacle.is_wait() {
            self.obstacle = Some(obstacle);
        }
    }

    /// Notes that the operation moves on: nothing is wrong with it.
    pub(super) fn ease(&mut self) {
        self.suspicious = None;
    }

    /// The time that the operation has waited, and whether that is too long.
    pub(super) fn wait(&mut self, now: Instant, limit: Duration) -> (Duration, bool) {
        let waited = now.saturating_duration_since(*self.since.get_or_insert(now));
        let last = self.checked.replace(now).unwrap_or(now);
        if waited < limit {
            return (waited, false);
        }
        let paused = now.saturating_duration_since(last) >= PAUSE;
        let grace = if paused { NEWS_WITHIN } else { Duration::ZERO };
        let judged_at = *self.judged_at.get_or_insert(now + grace);
        (waited, now >= judged_at)
    }
}
