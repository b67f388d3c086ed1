//! Where the time of a step goes. Knows no calls.

use std::time::{Duration, Instant};

/// Where the time of a step went, on this rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepTimes {
    /// From the end of the step before to its own end.
    pub total: Duration,
    /// The time in which the caller did its own work: all but the next two.
    pub compute: Duration,
    /// The time for which it was blocked in a wait for other ranks: communication that no
    /// computation has covered.
    pub exposed: Duration,
    /// The time in which this thread copied gradients and drove communication without waiting.
    pub driving: Duration,
    /// The time in which a call was in flight, as far as this rank noticed its end.
    pub communication: Duration,
}

impl StepTimes {
    /// The share of the step for which this rank was blocked: 0 to 1.
    pub fn exposed_share(&self) -> f64 {
        self.exposed.as_secs_f64() / self.total.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Adds up the times of a step.
#[derive(Debug)]
pub(crate) struct Timeline {
    began: Instant,
    in_flight: usize,
    flying_since: Instant,
    times: StepTimes,
}

impl Timeline {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            began: now,
            in_flight: 0,
            flying_since: now,
            times: StepTimes::default(),
        }
    }

    /// A call has been started.
    pub(crate) fn started(&mut self) {
        if self.in_flight == 0 {
            self.flying_since = Instant::now();
        }
        self.in_flight += 1;
    }

    /// A call has ended.
    pub(crate) fn ended(&mut self) {
        self.in_flight -= 1;
        if self.in_flight == 0 {
            self.times.communication += self.flying_since.elapsed();
        }
    }

    /// This thread was blocked since then.
    pub(crate) fn waited(&mut self, since: Instant) {
        self.times.exposed += since.elapsed();
    }

    /// This thread copied, or drove calls, since then.
    pub(crate) fn drove(&mut self, since: Instant) {
        self.times.driving += since.elapsed();
    }

    /// The step ends, and the next one begins.
    pub(crate) fn end(&mut self) -> StepTimes {
        let ended = std::mem::replace(self, Self::new());
        let total = self.began.duration_since(ended.began);
        let times = ended.times;
        StepTimes {
            total,
            compute: total.saturating_sub(times.exposed + times.driving),
            ..times
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only the relation of the times counts, on a machine of any speed.
    #[test]
    fn times_add_up() {
        let mut timeline = Timeline::new();
        timeline.started();
        timeline.started();
        let since = Instant::now();
        std::thread::sleep(Duration::from_millis(2));
        timeline.waited(since);
        timeline.ended();
        timeline.ended();
        let times = timeline.end();
        assert!(times.exposed >= Duration::from_millis(2));
        assert!(times.communication >= times.exposed);
        assert!(times.total >= times.communication);
        assert_eq!(times.compute + times.exposed + times.driving, times.total);
        assert!(times.exposed_share() > 0.0 && times.exposed_share() <= 1.0);
        assert_eq!(timeline.end().exposed, Duration::ZERO);
    }
}
