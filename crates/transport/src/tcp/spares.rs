//! Connections that a link over several rails gets later, because all it had have fallen silent:
//! another network may join the two hosts. Either end asks for one, and both get it.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use spark_ccl_log::Mutex;

use super::stream::Stream;

/// How long it may take to make a spare connection. After that a link asks for the next one.
pub const SPARE_WITHIN: Duration = Duration::from_secs(30);

/// Asks for the connection with this number.
pub(super) type Ask = Box<dyn Fn(usize) + Send + Sync>;

/// The connections of a link beyond those with which it began.
#[derive(Default)]
pub(super) struct Spares {
    streams: Mutex<Vec<Arc<dyn Stream>>>,
    ask: OnceLock<Ask>,
    asked: Mutex<Asked>,
}

#[derive(Default)]
struct Asked {
    /// The least number that this end has not asked for.
    next: usize,
    /// Since when one is awaited.
    since: Option<Instant>,
}

impl Spares {
    pub(super) fn ask_by(&self, ask: Ask) {
        let _ = self.ask.set(ask);
    }

    /// Asks for another one, unless one is awaited. `count`: those that the link has.
    pub(super) fn ask(&self, count: usize) {
        let Some(ask) = self.ask.get() else { return };
        let now = Instant::now();
        let mut asked = self.asked.lock();
        if asked.since.is_some_and(|since| now < since + SPARE_WITHIN) {
            return;
        }
        // One that was not made may exist at the other end.
        let number = asked.next.max(count);
        (asked.next, asked.since) = (number + 1, Some(now));
        drop(asked);
        ask(number);
    }

    pub(super) fn add(&self, stream: Arc<dyn Stream>) {
        self.streams.lock().push(stream);
        self.asked.lock().since = None;
    }

    /// Those after the first `known`.
    pub(super) fn after(&self, known: usize) -> Vec<Arc<dyn Stream>> {
        self.streams.lock()[known..].to_vec()
    }
}
