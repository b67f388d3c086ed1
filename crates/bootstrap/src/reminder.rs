//! Log lines that tell a user which ranks this process waits for.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The time for which a wait is silent. Most ranks join within this time.
const FIRST: Duration = Duration::from_secs(5);
/// The longest time between two lines.
const LONGEST: Duration = Duration::from_secs(30);

/// When a line is due: after 5 s, then ever more rarely, at least every 30 s.
#[derive(Debug)]
pub(crate) struct Pace {
    next: Instant,
    pause: Duration,
}

impl Pace {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            next: now + FIRST,
            pause: FIRST,
        }
    }

    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// Whether a line is due now. If so, schedules the next one.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.next <= now;
        if is_due {
            self.pause = (self.pause * 2).min(LONGEST);
            self.next = now + self.pause;
        }
        is_due
    }
}

/// Calls `wait`, which blocks until the deadline at most. Meanwhile logs `text` of the time left.
pub(crate) fn while_waiting<T>(
    text: impl Fn(&str) -> String + Send + 'static,
    deadline: Instant,
    wait: impl FnOnce() -> T,
) -> T {
    let (_waits, ended) = channel::<()>();
    let remind = move || {
        let mut pace = Pace::new(Instant::now());
        let mut now = Instant::now();
        while ended.recv_timeout(pace.next() - now) == Err(RecvTimeoutError::Timeout) {
            now = Instant::now();
            if pace.is_due(now) {
                spark_ccl_log::remark(&text(&left(deadline, now)));
            }
        }
    };
    // If the thread cannot start, the wait is silent.
    let _started = spark_ccl_log::spawn("spark-ccl-wait", remind);
    wait()
}

/// The time until a deadline, in words.
pub(crate) fn left(deadline: Instant, now: Instant) -> String {
    let left = deadline.saturating_duration_since(now);
    format!("{} s", left.as_secs_f64().round())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_due_after_5_s_and_then_at_least_every_30_s() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let second = |second| start + Duration::from_secs(second);
        let due = (0..130).filter(|&at| pace.is_due(second(at)));
        assert_eq!(due.collect::<Vec<_>>(), [5, 15, 35, 65, 95, 125]);
        assert_eq!(pace.next(), second(155));
        assert_eq!(left(second(120), second(5)), "115 s");
    }
}
