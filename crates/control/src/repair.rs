//! Reopening a broken control stream: when to try, and when to declare the neighbour dead or lost.
//! Pure decisions: the caller does the dialling (`Dial`).

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spark_ccl_seal::Stream;

use crate::wire::Failure;

/// The pause between attempts: the first one, and the longest that backoff reaches.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(2);
/// The longest pause for an unresponsive process: each attempt queues one more connection for when
/// it resumes.
const LAST_PAUSE_OF_STOPPED: Duration = Duration::from_secs(10);
/// A neighbour whose open stream has been silent for this long is probed by a new connection.
pub(crate) const SILENT: Duration = Duration::from_secs(3);
/// The longest pause while the host refuses connections and may still accept them again.
const LAST_PAUSE_OF_REFUSED: Duration = Duration::from_millis(250);
/// A process counts as dead once its host has refused connections to it for this long and this
/// often. Before that, a firewall may be about to let them through again, or another rank's news of
/// it may be in flight.
const REFUSED_FOR: Duration = Duration::from_secs(1);
const REFUSALS: u32 = 4;
/// By how much the number of a new stream may exceed the current one. There are never more failed
/// attempts than that.
const MOST_AHEAD: u32 = 1 << 20;

/// Reopens control streams. The other end of each new stream goes to the peer's
/// [`Adopter::adopt`](crate::Adopter::adopt).
pub trait Dial: Send + Sync {
    /// Opens a new stream to a rank, authenticated as strictly as the first one. `number`
    /// distinguishes it from all earlier streams to that rank.
    ///
    /// # Errors
    /// [`Unreached`], by the deadline or soon after it.
    fn dial(&self, peer: u32, number: u32, deadline: Instant) -> Result<Stream, Unreached>;

    /// The next hop of notices to a rank, past the ranks that are `gone`.
    fn next_hop(&self, _to: u32, _gone: &dyn Fn(u32) -> bool) -> NextHop {
        NextHop::Closer
    }
}

/// How notices reach a rank that may be no neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextHop {
    /// By whichever neighbour is closest to it: the streams are those of
    /// [`neighbours`](crate::neighbours).
    Closer,
    /// By this neighbour; not at all if `None`.
    By(Option<u32>),
}

/// Why a rank could not be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unreached {
    /// Its host refuses the connection: the process no longer listens, or a firewall keeps this
    /// rank from it.
    Refused(String),
    /// No route to its host exists, or none answers.
    NoAnswer(String),
    /// Its host accepts the connection, but the process sends nothing: it is stopped, or too busy.
    Unresponsive(String),
}

/// The means by which broken control streams are reopened.
#[derive(Clone)]
pub struct Redial {
    /// Opens the new streams.
    pub dial: Arc<dyn Dial>,
    /// How long a rank may be silent here while no common neighbour hears it either.
    pub unheard: Duration,
    /// How long a rank may be silent here while a common neighbour still hears it.
    pub heard: Duration,
}

/// The state of reopening one stream.
#[derive(Default)]
pub(crate) struct Repair {
    /// The number of the current stream; the first one's is 0.
    pub(crate) number: u32,
    /// Whether the higher of the two ranks opened it.
    by_higher: bool,
    /// The stream was reopened, and nothing has arrived on it yet.
    is_unproven: bool,
    /// Why the stream broke; `None` while it works.
    pub(crate) broken: Option<String>,
    next_try: Option<Instant>,
    pause: Duration,
    pub(crate) attempt_in_flight: bool,
    refused: Option<Refused>,
    outcome: Option<Unreached>,
}

/// A run of refusals, uninterrupted by any other outcome.
#[derive(Clone, Copy)]
struct Refused {
    first: Instant,
    last: Instant,
    count: u32,
}

impl Repair {
    /// Notes that the stream broke. It is reopened at once, or after a pause if nothing ever
    /// arrived on it.
    pub(crate) fn mark_broken(&mut self, error: String, now: Instant) {
        let pause = if self.is_unproven {
            self.pause
        } else {
            Duration::ZERO
        };
        self.broken = Some(error);
        self.next_try = Some(now + pause);
        self.pause = (pause * 2).clamp(FIRST_PAUSE, LAST_PAUSE);
    }

    /// Notes that something has arrived on the stream.
    pub(crate) fn mark_heard(&mut self) {
        self.is_unproven = false;
    }

    /// Notes that the stream is open, but has been silent since then.
    pub(crate) fn suspect(&mut self, silent_since: Instant) {
        if self.next_try.is_none() {
            self.next_try = Some(silent_since + SILENT);
            self.pause = FIRST_PAUSE;
        }
    }

    /// Ends the probing of a neighbour that was heard lately.
    pub(crate) fn clear_suspicion(&mut self) {
        if self.broken.is_none() {
            (self.next_try, self.refused, self.outcome) = (None, None, None);
        }
    }

    /// When the next attempt is due; `None` while one is in flight or none is needed.
    pub(crate) fn next_try(&self) -> Option<Instant> {
        self.next_try.filter(|_| !self.attempt_in_flight)
    }

    /// The number of the stream to open, if an attempt is due now.
    pub(crate) fn attempt(&mut self, now: Instant) -> Option<u32> {
        self.next_try().filter(|&at| at <= now)?;
        self.attempt_in_flight = true;
        Some(self.number.saturating_add(1))
    }

    /// Notes that an attempt has ended without a stream.
    pub(crate) fn failed(&mut self, outcome: Unreached, now: Instant) {
        let refused = matches!(outcome, Unreached::Refused(_));
        self.refused = refused.then(|| Refused::one_more(self.refused, now));
        let longest = match outcome {
            Unreached::Unresponsive(_) => LAST_PAUSE_OF_STOPPED,
            Unreached::Refused(_) if !self.is_refused_for_good() => LAST_PAUSE_OF_REFUSED,
            _ => LAST_PAUSE,
        };
        self.next_try = Some(now + self.pause.min(longest));
        self.pause = (self.pause * 2).min(LAST_PAUSE_OF_STOPPED);
        self.outcome = Some(outcome);
    }

    /// Whether a new stream replaces the current one. If both ranks opened one at the same time,
    /// both keep the higher rank's. A number that is far ahead is refused, since it would leave
    /// none for later streams.
    pub(crate) fn accepts(&self, number: u32, by_higher: bool) -> bool {
        let is_next = number > self.number && number - self.number <= MOST_AHEAD;
        is_next || number == self.number && by_higher && !self.by_higher
    }

    /// Notes that a new stream is in use.
    pub(crate) fn renewed(&mut self, number: u32, by_higher: bool) {
        *self = Self {
            number,
            by_higher,
            is_unproven: true,
            attempt_in_flight: self.attempt_in_flight,
            pause: self.pause,
            ..Self::default()
        };
    }

    fn is_refused_for_good(&self) -> bool {
        let refused = self.refused.as_ref();
        refused.is_some_and(|Refused { first, last, count }| {
            *count >= REFUSALS && last.saturating_duration_since(*first) >= REFUSED_FOR
        })
    }

    /// The reason why the rank counts as lost, once there is one. `silence` is how long it has been
    /// silent; `witness` is a neighbour that still hears it.
    pub(crate) fn failure(
        &self,
        silence: Duration,
        witness: Option<&str>,
        redial: &Redial,
    ) -> Option<Failure> {
        let outcome = self.outcome.as_ref()?;
        if self.is_refused_for_good() && witness.is_none() {
            return Some(Failure::Refused);
        }
        let broken = self.broken.as_ref()?;
        let (Unreached::Refused(text) | Unreached::NoAnswer(text)) = outcome else {
            // A stopped process is not dead, and operations that wait for it have a deadline.
            return None;
        };
        let limit = witness.map_or(redial.unheard, |_| redial.heard);
        (silence >= limit).then(|| {
            let others = witness.map_or_else(
                || "and no common neighbour hears it".to_owned(),
                |witness| format!("although {witness} hears it"),
            );
            Failure::Lost(format!(
                "{broken}; silent for {silence:.1?}, not reached again ({text}), {others}"
            ))
        })
    }
}

impl Refused {
    fn one_more(before: Option<Self>, now: Instant) -> Self {
        Self {
            first: before.map_or(now, |before| before.first),
            last: now,
            count: before.map_or(0, |before| before.count) + 1,
        }
    }
}

/// The system's error, for an attempt that could not even start.
impl From<io::Error> for Unreached {
    fn from(error: io::Error) -> Self {
        Self::NoAnswer(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;

    impl Dial for Nobody {
        fn dial(&self, _: u32, _: u32, _: Instant) -> Result<Stream, Unreached> {
            Err(refused())
        }
    }

    fn redial() -> Redial {
        Redial {
            dial: Arc::new(Nobody),
            unheard: Duration::from_secs(60),
            heard: Duration::from_secs(60),
        }
    }

    fn refused() -> Unreached {
        Unreached::Refused("connection refused".into())
    }

    /// Makes attempts when they are due until the rank counts as lost. Returns why and when.
    fn failure_after(
        repair: &mut Repair,
        start: Instant,
        outcome: impl Fn(Duration) -> Unreached,
    ) -> (Failure, Duration) {
        for _ in 0..1000 {
            let now = repair.next_try().unwrap();
            let since = now - start;
            assert!(repair.attempt(now).is_some());
            repair.attempt_in_flight = false;
            repair.failed(outcome(since), now);
            if let Some(failure) = repair.failure(since, None, &redial()) {
                return (failure, since);
            }
        }
        panic!("no failure");
    }

    #[test]
    fn a_host_that_refuses_for_a_moment_is_no_death() {
        let start = Instant::now();
        let mut repair = Repair::default();
        repair.mark_broken("reset".into(), start);
        let (failure, after) = failure_after(&mut repair, start, |_| refused());
        assert_eq!(failure, Failure::Refused);
        assert!((REFUSED_FOR..2 * REFUSED_FOR).contains(&after), "{after:?}");
        // Any other outcome restarts the time.
        let pause = REFUSED_FOR * 3 / 4;
        let mut repair = Repair::default();
        repair.mark_broken("reset".into(), start);
        let outcome = |since| match since {
            since if since < pause || since > pause * 2 => refused(),
            _ => Unreached::NoAnswer("no answer in time".into()),
        };
        let (failure, after) = failure_after(&mut repair, start, outcome);
        assert_eq!(failure, Failure::Refused);
        assert!(after >= pause * 2 + REFUSED_FOR, "{after:?}");
    }

    /// The other end accepts streams and ends them at once, because it has given this rank up, or
    /// keeps another stream.
    #[test]
    fn streams_that_carry_nothing_are_made_more_and_more_rarely() {
        let mut now = Instant::now();
        let mut repair = Repair::default();
        repair.mark_broken("reset".into(), now);
        let mut pauses = Vec::new();
        for number in 1..8 {
            let next = repair.next_try().unwrap();
            pauses.push(next - now);
            now = next;
            assert_eq!(repair.attempt(now), Some(number));
            repair.attempt_in_flight = false;
            repair.renewed(number, true);
            repair.mark_broken("it was closed".into(), now);
        }
        assert_eq!(pauses[..2], [Duration::ZERO, FIRST_PAUSE]);
        assert!(pauses.is_sorted() && pauses[6] == LAST_PAUSE, "{pauses:?}");
        repair.mark_heard();
        repair.mark_broken("reset".into(), now);
        assert_eq!(repair.next_try(), Some(now));
    }
}
