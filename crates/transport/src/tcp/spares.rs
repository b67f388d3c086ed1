//! Connections that a link gets later, when all that it had are silent: another network may join
//! the two hosts. Either end asks for one, and both get it.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use spark_ccl_log::Mutex;

use super::stream::Stream;

/// How long it may take to make a spare connection. After that a link asks for the next one.
pub const SPARE_WITHIN: Duration = Duration::from_secs(30);

/// How long a link waits before it asks again, if a spare connection has soon fallen silent: the
/// cable may be the same one, and pass only small packets. Doubles up to [`SPARE_WITHIN`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The most spare connections of a link by one route. Each is kept until it is lost: a silent one
/// may answer again. Further ones by that route are only read, until they are lost or closed at
/// both ends, and the link goes on asking for others.
pub(super) const MOST: usize = 8;

/// Asks for the connection with this number. Nothing comes back from these addresses of the peer.
pub(super) type Ask = Box<dyn Fn(usize, &[IpAddr]) + Send + Sync>;

/// The connections of a link beyond those with which it began.
#[derive(Default)]
pub(super) struct Spares {
    /// The connections that are not read yet.
    fresh: Mutex<Vec<Arc<dyn Stream>>>,
    ask: OnceLock<Ask>,
    asked: Mutex<Asked>,
}

#[derive(Default)]
struct Asked {
    /// The least number that this end has not asked for, above all numbers that have come.
    next: usize,
    /// No connection is asked for before this time.
    not_before: Option<Instant>,
    /// When the last one came, unless it is known that all are silent.
    came: Option<Instant>,
    /// How long the link has waited before it asked for the last one.
    pause: Duration,
}

impl Spares {
    pub(super) fn ask_by(&self, ask: Ask) {
        let _ = self.ask.set(ask);
    }

    /// Asks for another one, since all are silent, unless one is awaited or it is too early. The
    /// link has begun with `homes` connections. `peers`: the peer's addresses to which its
    /// connections lead, or have led.
    pub(super) fn ask(&self, homes: usize, peers: &[IpAddr], now: Instant) {
        let Some(ask) = self.ask.get() else { return };
        let mut asked = self.asked.lock();
        if let Some(came) = asked.came.take() {
            asked.pause = if now < came + SPARE_WITHIN {
                (asked.pause * 2).clamp(FIRST_PAUSE, SPARE_WITHIN)
            } else {
                Duration::ZERO
            };
            asked.not_before = Some(now + asked.pause);
        }
        if asked.not_before.is_some_and(|time| now < time) {
            return;
        }
        // No number is asked for twice: a connection that failed here may exist at the other end.
        let number = asked.next.max(homes);
        (asked.next, asked.not_before) = (number + 1, Some(now + SPARE_WITHIN));
        drop(asked);
        ask(number, peers);
    }

    /// Takes the connection with this number.
    pub(super) fn add(&self, number: usize, stream: Arc<dyn Stream>, now: Instant) {
        self.fresh.lock().push(stream);
        let mut asked = self.asked.lock();
        // The other end may have asked for those before, in vain.
        (asked.next, asked.came) = (asked.next.max(number + 1), Some(now));
    }

    /// Takes the connections that have come since the last call, to be read.
    pub(super) fn take(&self) -> Vec<Arc<dyn Stream>> {
        std::mem::take(&mut self.fresh.lock())
    }

    /// Whether some have come since the last call of [`take`](Self::take).
    pub(super) fn have_come(&self) -> bool {
        !self.fresh.lock().is_empty()
    }

    /// Closes lost connections without bytes to be read: an end that only sends takes none.
    pub(super) fn close_lost(&self) {
        let is_of_use = |one: &Arc<dyn Stream>| one.silence().is_ok() || one.unread() > 0;
        self.fresh.lock().retain(is_of_use);
    }
}
