//! The slow path of waiting: deadlines, announcements, and what to make of obstacles.

use super::exec::Obstacle;
use super::{Active, Engine, POINT_TO_POINT, State, pair_words};
use crate::signature::describe;
use spark_ccl_control::{Fault, POINT_TO_POINT as POINT_TO_POINT_SEQUENCE, Watch};
use spark_ccl_sched::Rank;
use std::time::{Duration, Instant};

/// How long an operation waits before it tells the others what it is.
const ANNOUNCE_AFTER: Duration = Duration::from_millis(200);
/// How often it repeats that.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(1);
/// How long the control plane gets to name the cause of a broken link or a foreign message.
const CAUSE_WITHIN: Duration = Duration::from_millis(1500);
/// At a deadline: ranks that gave no sign for so long are the late ones.
const SIGN_OF_LIFE: Duration = Duration::from_millis(2500);

/// What is known about an operation that does not advance.
#[derive(Debug, Default)]
pub(super) struct Stall {
    pub(super) obstacle: Option<Obstacle>,
    since: Option<Instant>,
    /// When a foreign message or a link's end was first seen.
    suspicious: Option<Instant>,
    announced: Option<Instant>,
}

impl Stall {
    /// Notes why a channel is blocked; what is worse than waiting is not forgotten for it.
    pub(super) fn meet(&mut self, obstacle: Obstacle) {
        if self.obstacle.is_none() || !matches!(obstacle, Obstacle::Waiting(_)) {
            self.obstacle = Some(obstacle);
        }
    }
}

impl Engine {
    /// Looks after the operations at the heads of their queues. Called when waiting takes long.
    pub(super) fn patrol(&mut self, now: Instant) {
        let heads: Vec<usize> = self
            .collectives
            .front()
            .into_iter()
            .chain(
                self.streams
                    .iter()
                    .filter_map(|stream| stream.queue.front()),
            )
            .copied()
            .collect();
        for index in heads {
            let State::Active(active) = &mut self.ops[index].state else {
                continue;
            };
            let since = *active.stall.since.get_or_insert(now);
            let waited = now.saturating_duration_since(since);
            let fault = if waited >= self.timeout {
                Some(timed_out(active, &self.watch, self.wires.rank, waited))
            } else {
                inspect(active, &self.watch, self.wires.rank, now)
            };
            if let Some(fault) = fault {
                self.watch.raise(fault);
                return;
            }
            announce(active, &self.watch, now, waited);
        }
    }
}

/// Tells the other ranks which operation this is and for whom it waits.
fn announce(active: &mut Active, watch: &Watch, now: Instant, waited: Duration) {
    let suspicious = active.stall.suspicious.is_some();
    let due = match active.stall.announced {
        None => waited >= ANNOUNCE_AFTER || suspicious,
        Some(last) => now.saturating_duration_since(last) >= ANNOUNCE_EVERY,
    };
    if due {
        active.stall.announced = Some(now);
        let words = active.request.signature.words();
        watch.announce(marked(active), words, waiting_for(active));
    }
}

/// Whether the obstacle means that the operation can never be completed.
fn inspect(active: &mut Active, watch: &Watch, rank: Rank, now: Instant) -> Option<Fault> {
    let peer = waiting_for(active)?;
    let what = match active.stall.obstacle.as_ref()? {
        Obstacle::Waiting(_) => {
            active.stall.suspicious = None;
            if is_pair(active) && watch.left(peer).is_some() {
                "the peer has left the communicator".to_owned()
            } else {
                return None;
            }
        }
        Obstacle::Foreign { tag, .. } if is_pair(active) => format!(
            "expected {}, and it sent {}",
            pair_words(active.tag),
            pair_words(*tag)
        ),
        Obstacle::Foreign { tag, .. } => format!(
            "expected data of operation {} ({}), and it sent data of operation {} with another \
             signature; the calls of the ranks differ",
            active.sequence,
            describe(active.request.signature.words()),
            tag >> 32
        ),
        Obstacle::Link { error, .. } => error.to_string(),
    };
    let first = *active.stall.suspicious.get_or_insert(now);
    let give_up = now.saturating_duration_since(first) >= CAUSE_WITHIN;
    give_up.then(|| Fault::Link {
        by: watch.member(rank),
        peer: watch.member(peer),
        text: what,
    })
}

fn timed_out(active: &Active, watch: &Watch, rank: Rank, waited: Duration) -> Fault {
    let (words, late) = if is_pair(active) {
        let late = waiting_for(active).map(|peer| watch.last_seen(peer));
        let words = format!(
            "{}, {}",
            describe(active.request.signature.words()),
            pair_words(active.tag)
        );
        (words, late.into_iter().collect())
    } else {
        let late = watch.late(active.sequence, SIGN_OF_LIFE);
        (describe(active.request.signature.words()), late)
    };
    Fault::TimedOut {
        by: watch.member(rank),
        sequence: marked(active),
        words,
        waited,
        late,
    }
}

/// The sequence number as the control plane has it: those of pairs are marked.
fn marked(active: &Active) -> u64 {
    let mark = if is_pair(active) {
        POINT_TO_POINT_SEQUENCE
    } else {
        0
    };
    active.sequence | mark
}

fn is_pair(active: &Active) -> bool {
    active.base == POINT_TO_POINT
}

fn waiting_for(active: &Active) -> Option<Rank> {
    match active.stall.obstacle.as_ref()? {
        Obstacle::Waiting(peer) => *peer,
        Obstacle::Foreign { peer, .. } | Obstacle::Link { peer, .. } => Some(*peer),
    }
}
