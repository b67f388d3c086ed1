//! The backoff between tries of a failed rail.

use std::time::{Duration, Instant};

/// The pause before the first try.
const SHORTEST: Duration = Duration::from_secs(1);
/// The longest pause between tries.
const LONGEST: Duration = Duration::from_secs(30);
/// How long a rail must have worked to start again with the shortest pause.
const STEADY: Duration = Duration::from_secs(300);

/// The pause before a rail's next try or, for a rail in use, the last pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pace {
    pause: Duration,
    since: Instant,
}

impl Pace {
    /// The pace of a rail that has never failed.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            pause: SHORTEST,
            since: now,
        }
    }

    pub(super) fn is_over(self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= self.pause
    }

    /// After a try, whether it succeeded or not: each failure of an unstable rail costs time.
    pub(super) fn slower(self, now: Instant) -> Self {
        Self {
            pause: LONGEST.min(self.pause * 2),
            since: now,
        }
    }

    /// After a check that did not amount to a try: the next one follows soon, and the pause stays.
    pub(super) fn again(self, now: Instant) -> Self {
        let passed = self.pause.saturating_sub(SHORTEST);
        Self {
            // On a machine that has just booted, the clock cannot go back that far.
            since: now.checked_sub(passed).unwrap_or(now),
            ..self
        }
    }

    /// After the failure of a rail that was in use.
    pub(super) fn resumed(self, now: Instant) -> Self {
        let steady = now.saturating_duration_since(self.since) >= STEADY;
        let pause = if steady { SHORTEST } else { self.pause };
        Self { pause, since: now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_are_rarer_until_the_rail_is_steady() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        assert!(!pace.is_over(now));
        assert!(pace.is_over(now + SHORTEST));
        for seconds in [2, 4, 8, 16, 30, 30] {
            pace = pace.slower(now);
            assert!(!pace.is_over(now + Duration::from_millis(seconds * 1000 - 1)));
            assert!(pace.is_over(now + Duration::from_secs(seconds)));
        }
        let soon = now + Duration::from_secs(1);
        assert!(!pace.resumed(soon).is_over(soon + SHORTEST));
        let late = now + STEADY;
        assert_eq!(pace.resumed(late), Pace::new(late));
    }

    #[test]
    fn a_look_at_a_port_does_not_forget_how_often_its_rail_has_failed() {
        let now = Instant::now() + LONGEST;
        let mut pace = Pace::new(now);
        for seconds in [2, 4, 8, 16, 30, 30] {
            pace = pace.again(now);
            assert!(!pace.is_over(now));
            assert!(pace.is_over(now + SHORTEST));
            pace = pace.slower(now);
            assert!(!pace.is_over(now + Duration::from_millis(seconds * 1000 - 1)));
        }
    }
}
