//! How often a rail that failed is tried.

use std::time::{Duration, Instant};

/// Before the first try.
const SHORTEST: Duration = Duration::from_secs(1);
/// Between tries, at most.
const LONGEST: Duration = Duration::from_secs(30);
/// A rail that has carried for so long is no worse than others.
const STEADY: Duration = Duration::from_secs(300);

/// The pause before a rail's next try, or what was the last one of a rail that carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pace {
    pause: Duration,
    since: Instant,
}

impl Pace {
    /// That of a rail with which nothing was wrong up to now.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            pause: SHORTEST,
            since: now,
        }
    }

    pub(super) fn is_over(self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= self.pause
    }

    /// After a try, whatever came of it: a rail that comes and goes costs time whenever it goes.
    pub(super) fn slower(self, now: Instant) -> Self {
        Self {
            pause: LONGEST.min(self.pause * 2),
            since: now,
        }
    }

    /// After a look that is as good as no try: the next one comes soon, and the pause stays.
    pub(super) fn again(self, now: Instant) -> Self {
        let passed = self.pause.saturating_sub(SHORTEST);
        Self {
            // A machine that has just started has no such time.
            since: now.checked_sub(passed).unwrap_or(now),
            ..self
        }
    }

    /// After the failure of a rail that has carried.
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
