//! Making a control stream anew: when to try, and when to give up.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::Socket;

/// The pause between tries, at first and at last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(2);
/// The longest for a process that is stopped: each try is one more that it finds when it goes on.
const LAST_PAUSE_OF_STOPPED: Duration = Duration::from_secs(10);
/// A neighbour whose stream is open, but silent for so long, is asked whether it is there.
pub(crate) const SILENT: Duration = Duration::from_secs(3);
/// The longest while the host refuses, and that may pass.
const LAST_PAUSE_OF_REFUSED: Duration = Duration::from_millis(250);
/// A process whose host refuses connections to it for this long, and this often, is known not to be there. Before that,
/// a firewall may be about to let them through again, or a word of the others be on its way.
const REFUSED_FOR: Duration = Duration::from_secs(1);
const REFUSALS: u32 = 4;
/// By how much the number of a new stream may exceed that of the present one. Tries that failed are no more than that.
const MOST_AHEAD: u32 = 1 << 20;

/// Opens control streams anew. What the process at the other end so opens goes to
/// [`Adopter::adopt`](crate::Adopter::adopt) there.
pub trait Dial: Send + Sync {
    /// A new stream to a rank, as well authenticated as the first one; `number` tells it from all that it had before.
    ///
    /// # Errors
    /// [`Unreached`], by the deadline, or soon after.
    fn dial(&self, peer: u32, number: u32, deadline: Instant) -> Result<Socket, Unreached>;
}

/// How a rank could not be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unreached {
    /// Its host refuses connections to it: the process is not there any more.
    Refused(String),
    /// There is no way to its host, or none that answers.
    NoAnswer(String),
    /// Its host takes the connection, but the process says nothing: it is stopped, or too busy.
    Unresponsive(String),
}

/// How control streams that break are made anew.
#[derive(Clone)]
pub struct Redial {
    /// What opens them.
    pub dial: Arc<dyn Dial>,
    /// For so long a rank may be silent that no neighbour hears.
    pub unheard: Duration,
    /// For so long it may be silent here while a common neighbour still hears it.
    pub heard: Duration,
}

/// What is done about one stream.
#[derive(Default)]
pub(crate) struct Repair {
    /// That of the stream; the first one's is 0.
    pub(crate) number: u32,
    /// Whether the higher one of the two ranks opened it.
    by_higher: bool,
    /// It was made anew, and nothing has come by it yet.
    is_unproven: bool,
    /// How it broke, while it is broken.
    pub(crate) broken: Option<String>,
    next_try: Option<Instant>,
    pause: Duration,
    pub(crate) attempt_in_flight: bool,
    refused: Option<Refused>,
    outcome: Option<Unreached>,
}

/// Refusals without anything else between them.
#[derive(Clone, Copy)]
struct Refused {
    first: Instant,
    last: Instant,
    count: u32,
}

/// What has become of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Died,
    Lost(String),
}

impl Repair {
    /// The stream broke; it is to be made anew, at once where it was of use.
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

    /// Something has come by the stream.
    pub(crate) fn mark_heard(&mut self) {
        self.is_unproven = false;
    }

    /// The stream is open, and silent since then.
    pub(crate) fn suspect(&mut self, silent_since: Instant) {
        if self.next_try.is_none() {
            self.next_try = Some(silent_since + SILENT);
            self.pause = FIRST_PAUSE;
        }
    }

    /// The neighbour was heard lately.
    pub(crate) fn clear_suspicion(&mut self) {
        if self.broken.is_none() {
            (self.next_try, self.refused, self.outcome) = (None, None, None);
        }
    }

    /// When it is to be tried next.
    pub(crate) fn next_try(&self) -> Option<Instant> {
        self.next_try.filter(|_| !self.attempt_in_flight)
    }

    /// The number of the stream that a try is to make, if it is time for one.
    pub(crate) fn attempt(&mut self, now: Instant) -> Option<u32> {
        self.next_try().filter(|&at| at <= now)?;
        self.attempt_in_flight = true;
        Some(self.number.saturating_add(1))
    }

    /// A try has ended without a stream.
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

    /// Whether a new stream takes the place of the present one. Where both ranks opened one at a time, both keep
    /// that of the higher rank. A number that is far ahead would leave none for the next streams.
    pub(crate) fn accepts(&self, number: u32, by_higher: bool) -> bool {
        let is_next = number > self.number && number - self.number <= MOST_AHEAD;
        is_next || number == self.number && by_higher && !self.by_higher
    }

    /// There is a new stream.
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

    /// What has become of the rank, once that is clear. It was silent for so long, and `hearer` still hears it.
    pub(crate) fn verdict(
        &self,
        silence: Duration,
        witness: Option<&str>,
        redial: &Redial,
    ) -> Option<Verdict> {
        let outcome = self.outcome.as_ref()?;
        if self.is_refused_for_good() && witness.is_none() {
            return Some(Verdict::Died);
        }
        let broken = self.broken.as_ref()?;
        let (Unreached::Refused(text) | Unreached::NoAnswer(text)) = outcome else {
            // A process that is stopped is not dead; who waits for it has a deadline.
            return None;
        };
        let limit = witness.map_or(redial.unheard, |_| redial.heard);
        (silence >= limit).then(|| {
            let others = witness.map_or_else(
                || "and no common neighbour hears it".to_owned(),
                |witness| format!("although {witness} hears it"),
            );
            Verdict::Lost(format!(
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

/// The system's error, for a try that could not even begin.
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
        fn dial(&self, _: u32, _: u32, _: Instant) -> Result<Socket, Unreached> {
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

    /// Tries at the times that the repair asks for, until there is a verdict; when that is.
    fn verdict_after(
        repair: &mut Repair,
        start: Instant,
        outcome: impl Fn(Duration) -> Unreached,
    ) -> (Verdict, Duration) {
        for _ in 0..1000 {
            let now = repair.next_try().unwrap();
            let since = now - start;
            assert!(repair.attempt(now).is_some());
            repair.attempt_in_flight = false;
            repair.failed(outcome(since), now);
            if let Some(verdict) = repair.verdict(since, None, &redial()) {
                return (verdict, since);
            }
        }
        panic!("no verdict");
    }

    #[test]
    fn a_host_that_refuses_for_a_moment_is_no_death() {
        let start = Instant::now();
        let mut repair = Repair::default();
        repair.mark_broken("reset".into(), start);
        let (verdict, after) = verdict_after(&mut repair, start, |_| refused());
        assert_eq!(verdict, Verdict::Died);
        assert!((REFUSED_FOR..2 * REFUSED_FOR).contains(&after), "{after:?}");
        // What is no refusal begins the time anew.
        let pause = REFUSED_FOR * 3 / 4;
        let mut repair = Repair::default();
        repair.mark_broken("reset".into(), start);
        let outcome = |since| match since {
            since if since < pause || since > pause * 2 => refused(),
            _ => Unreached::NoAnswer("no answer in time".into()),
        };
        let (verdict, after) = verdict_after(&mut repair, start, outcome);
        assert_eq!(verdict, Verdict::Died);
        assert!(after >= pause * 2 + REFUSED_FOR, "{after:?}");
    }

    /// The other end takes streams, and ends them at once: it does not know this rank any more, or has another one.
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
