//! Finds out which ranks answer this one, while it waits for them to agree. Knows the control
//! plane's questions and time.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use spark_ccl_control::Watch;

/// The time after which a rank that does not answer is asked whether it is there. Most agree before
/// that.
const ASK_AFTER: Duration = Duration::from_millis(100);
/// The pause between two questions.
const ASK_EVERY: Duration = Duration::from_millis(250);
/// After a pause of this length, this process was stopped, and what the others did meanwhile is not
/// known.
const PAUSE: Duration = Duration::from_millis(500);

/// Since when this rank has waited for others, and when it last asked them.
pub(crate) struct Hearing {
    /// A rank that has been waited for, and has not answered, for this long is silent. Its monitor
    /// answers, also while the rank computes or waits, so this allows for a busy machine and a slow
    /// network only.
    silent_after: Duration,
    since: HashMap<u32, Instant>,
    asked: Option<Instant>,
    looked: Option<Instant>,
}

impl Hearing {
    pub(crate) fn new(silent_after: Duration) -> Self {
        Self {
            silent_after,
            since: HashMap::new(),
            asked: None,
            looked: None,
        }
    }

    /// Asks those of the awaited ranks of the world that are due. Returns the silent ones among
    /// them.
    pub(crate) fn silent(
        &mut self,
        watch: &Watch,
        awaited: &BTreeSet<u32>,
        now: Instant,
    ) -> BTreeSet<u32> {
        let last = self.looked.replace(now);
        if last.is_some_and(|last| now.saturating_duration_since(last) >= PAUSE) {
            self.since.clear();
        }
        self.since.retain(|rank, _| awaited.contains(rank));
        for &rank in awaited {
            self.since.entry(rank).or_insert(now);
        }
        let waited = |rank: &u32| {
            let since = self.since.get(rank);
            since.map_or(Duration::ZERO, |since| {
                now.saturating_duration_since(*since)
            })
        };
        let long = awaited.iter().copied();
        let long: BTreeSet<u32> = long.filter(|rank| waited(rank) >= ASK_AFTER).collect();
        let asked = |at| now.saturating_duration_since(at) < ASK_EVERY;
        if long.is_empty() {
            return long;
        }
        if !self.asked.is_some_and(asked) {
            self.asked = Some(now);
            watch.ask_some(&long);
        }
        let answered = watch.answered();
        let quiet = |rank: &u32| {
            let answer = answered.get(rank).copied().unwrap_or(Duration::MAX);
            answer.min(waited(rank))
        };
        let silent = long.into_iter();
        silent
            .filter(|rank| quiet(rank) >= self.silent_after)
            .collect()
    }
}
