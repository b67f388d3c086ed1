//! Looks at messages that no call has asked for yet. Knows the engine and its links; receives
//! nothing.

use std::time::{Duration, Instant};

use spark_ccl_control::{Fault, POINT_TO_POINT_MARK};
use spark_ccl_sched::Rank;
use spark_ccl_types::{DType, Operation, Signature};

use super::pair_tag::PairTag;
use super::watchdog::{ANNOUNCE_AFTER, ANNOUNCE_EVERY};
use super::{Core, Direction, HostEngine};
use crate::error::Error;
use crate::mesh::POINT_TO_POINT_LANE;

/// A wait for a message, as other ranks and errors know it.
const WORDS: &str = "probe_wait";

/// The wait for the next message from a rank.
struct Awaited {
    from: Rank,
    since: Instant,
    limit: Duration,
    /// When the other ranks are told of it next.
    announce_at: Instant,
}

impl HostEngine {
    /// The next message from a rank: its type and elements. `None` if none has come, or a call
    /// waits for it. Does not wait.
    ///
    /// # Errors
    /// The fault that has ended this communicator.
    pub(crate) fn probe(&self, from: Rank) -> Result<Option<(DType, u64)>, Error> {
        self.with(|core| core.probe(from))?
    }

    /// Waits for the next message from a rank, as long as an operation may take.
    ///
    /// # Errors
    /// The fault that has ended this communicator, also because that time has passed.
    pub(crate) fn await_message(&self, from: Rank) -> Result<(DType, u64), Error> {
        let since = Instant::now();
        let mut awaited = Awaited {
            from,
            since,
            limit: self.timeout()?,
            announce_at: since + ANNOUNCE_AFTER,
        };
        self.drive(|core| core.look_for(&mut awaited).transpose())?
    }
}

impl Core {
    fn probe(&mut self, from: Rank) -> Result<Option<(DType, u64)>, Error> {
        self.progress();
        self.check()?;
        let pair = self.pair_queues.get(&(from, Direction::In));
        if pair.is_some_and(|pair| !pair.queue.is_empty()) {
            return Ok(None);
        }
        // A link that has ended is found by the control plane, or by the call that needs it.
        let link = self.wires.rx(from, POINT_TO_POINT_LANE);
        let tag = link.ok().and_then(|rx| rx.next_tag().ok().flatten());
        Ok(tag.and_then(|tag| PairTag::from_bits(tag).elements()))
    }

    /// The message, if it is there. Fails the communicator if it will not come, or not in time.
    fn look_for(&mut self, awaited: &mut Awaited) -> Result<Option<(DType, u64)>, Error> {
        let found = self.probe(awaited.from)?;
        if found.is_none() {
            let now = Instant::now();
            if let Some(fault) = self.hopeless(awaited, now) {
                self.watch.raise(fault);
                self.check()?;
            } else if now >= awaited.announce_at {
                awaited.announce_at = now + ANNOUNCE_EVERY;
                let words = Signature::plain(Operation::Recv, DType::U8, 0).words();
                let sequence = self.next_from(awaited.from);
                self.watch.announce(sequence, words, Some(awaited.from));
            }
        }
        Ok(found)
    }

    /// Why the message is not waited for any longer.
    fn hopeless(&self, awaited: &Awaited, now: Instant) -> Option<Fault> {
        let &Awaited { from, since, .. } = awaited;
        let (own, sequence) = (self.wires.rank, self.next_from(from));
        let waited = now.saturating_duration_since(since);
        if waited >= awaited.limit {
            return Some(Fault::TimedOut {
                by: self.watch.member(own),
                sequence,
                words: WORDS.to_owned(),
                waited,
                late: self.watch.awaited(from),
            });
        }
        // Asked for as rarely as others are told: it takes the lock of all communicators.
        let leave = (now >= awaited.announce_at).then(|| self.watch.left(from));
        let leave = leave.flatten()?;
        let number = sequence & !POINT_TO_POINT_MARK;
        let lacks = leave.has_sent(own, number) == Some(false);
        let left = || Fault::Left {
            rank: self.watch.member(from),
            last_sequence: leave.last_sequence,
            sequence,
            words: WORDS.to_owned(),
        };
        lacks.then(|| leave.cause.clone().unwrap_or_else(left))
    }

    /// The number of the next message from a rank, marked as the control plane has it.
    fn next_from(&self, from: Rank) -> u64 {
        let pair = self.pair_queues.get(&(from, Direction::In));
        (pair.map_or(0, |pair| pair.sequence) + 1) | POINT_TO_POINT_MARK
    }
}
