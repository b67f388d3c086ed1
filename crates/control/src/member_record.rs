//! This rank's knowledge about one member of a communicator.

use std::time::{Duration, Instant};

use crate::comparison::Comparison;
use crate::fault::{ALIVE, is_apart, is_in_stream};
use crate::leave::Leave;
use crate::standing::{Answer, Wait};
use crate::wire::{Content, LateReport, Notice, Progress, WaitingFor};

#[derive(Clone, Default)]
pub(crate) struct MemberRecord {
    /// Which of its notices have arrived.
    seen_notices: SeenNotices,
    /// The number of its latest progress notice.
    progressed: u64,
    pub(crate) at: Option<Instant>,
    finished: u64,
    entered: Option<Operation>,
    /// The wait of its thread.
    waiting: Option<Waiting>,
    /// The wait of its device, while its thread may go on.
    waiting_on_device: Option<Waiting>,
    /// Its leave, perhaps with calls in flight.
    pub(crate) left: Option<Box<Leave>>,
    /// The report of other members about it, if it does not send its notices to this rank.
    reported: Option<Reported>,
    /// Its last answer to this rank, and when that arrived.
    pub(crate) answered: Option<(Answer, Instant)>,
    /// How its calls of device memory compare with this rank's.
    pub(crate) comparison: Comparison,
}

#[derive(Clone, Copy)]
pub(crate) struct Operation {
    pub(crate) sequence: u64,
    pub(crate) signature: [u64; 2],
}

#[derive(Clone, Copy)]
pub(crate) struct Waiting {
    pub(crate) operation: Operation,
    pub(crate) whom: WaitingFor,
    /// When it was announced first, and last.
    pub(crate) since: Instant,
    pub(crate) at: Instant,
}

/// Which notices of one rank have arrived. They are forwarded by several ranks, so they come in any
/// order.
#[derive(Clone, Copy, Default)]
struct SeenNotices {
    last: u64,
    /// A bit for each number before `last`; the lowest bit is for `last - 1`.
    before: u64,
}

/// A report, and when it arrived.
#[derive(Clone, Copy)]
struct Reported {
    report: LateReport,
    at: Instant,
}

impl Waiting {
    /// The wait as an answer reports it; `None` if it is over.
    fn told(&self, finished: u64, now: Instant) -> Option<Wait> {
        let Operation {
            sequence,
            signature,
        } = self.operation;
        let is_over = if is_apart(sequence) {
            now.saturating_duration_since(self.at) > ALIVE
        } else {
            sequence <= finished
        };
        (!is_over).then(|| Wait {
            sequence,
            signature,
            for_rank: match self.whom {
                WaitingFor::Anyone => None,
                WaitingFor::Rank(rank) => Some(rank),
            },
            since: now.saturating_duration_since(self.since),
        })
    }
}

impl SeenNotices {
    /// Whether this number arrives for the first time. Numbers far behind the last count as known:
    /// their content is announced again anyway.
    fn is_new(&mut self, counter: u64) -> bool {
        let bit = |distance: u64| {
            let shift = u32::try_from(distance - 1).ok();
            shift.and_then(|shift| 1_u64.checked_shl(shift))
        };
        if let Some(ahead) = counter.checked_sub(self.last).filter(|&ahead| ahead > 0) {
            let shifted = u32::try_from(ahead).ok();
            let shifted = shifted.and_then(|shift| self.before.checked_shl(shift));
            self.before = shifted.unwrap_or(0) | bit(ahead).unwrap_or(0);
            self.last = counter;
            return true;
        }
        let behind = self.last - counter;
        let bit = if behind > 0 { bit(behind) } else { None };
        let is_new = bit.is_some_and(|bit| self.before & bit == 0);
        self.before |= bit.unwrap_or(0);
        is_new
    }
}

impl MemberRecord {
    /// Whether a notice is new: it arrives for the first time, and progress is at least as new as
    /// the latest.
    pub(crate) fn is_new(&mut self, notice: &Notice) -> bool {
        let is_progress = matches!(notice.content, Content::Progress(_));
        if is_progress && notice.counter < self.progressed {
            return false;
        }
        if is_progress {
            self.progressed = notice.counter;
        }
        self.seen_notices.is_new(notice.counter)
    }

    /// Stores another member's report about this one.
    pub(crate) fn report(&mut self, report: LateReport, now: Instant) {
        self.reported = Some(Reported { report, at: now });
    }

    /// Its last operation and how long ago anything was heard of it, if others report it late for
    /// this collective.
    pub(crate) fn reported(
        &self,
        sequence: u64,
        window: Duration,
        now: Instant,
    ) -> Option<(Option<Operation>, Option<Duration>)> {
        let Reported { report, at } = self.reported?;
        let since = now.saturating_duration_since(at);
        let last = report.last.map(|(sequence, signature)| Operation {
            sequence,
            signature,
        });
        let is_late = report.sequence == sequence && since <= window;
        is_late.then(|| (last, report.age.map(|age| age.saturating_add(since))))
    }

    pub(crate) fn update(&mut self, progress: &Progress, now: Instant) {
        self.at = Some(now);
        self.finished = self.finished.max(progress.finished);
        let operation = Operation {
            sequence: progress.sequence,
            signature: progress.signature,
        };
        let collective = !is_apart(operation.sequence);
        if collective && operation.sequence > self.entered.map_or(0, |entered| entered.sequence) {
            self.entered = Some(operation);
        }
        if let Some(whom) = progress.waiting {
            let place = if is_in_stream(operation.sequence) {
                &mut self.waiting_on_device
            } else {
                &mut self.waiting
            };
            let known = place.filter(|known| {
                (
                    known.operation.sequence,
                    known.operation.signature,
                    known.whom,
                ) == (operation.sequence, operation.signature, whom)
                    && now.saturating_duration_since(known.at) <= ALIVE
            });
            *place = Some(Waiting {
                operation,
                whom,
                since: known.map_or(now, |known| known.since),
                at: now,
            });
            if collective {
                // Collectives finish in order.
                self.finished = self.finished.max(operation.sequence.saturating_sub(1));
            }
        }
        let finished = self.finished;
        for place in [&mut self.waiting, &mut self.waiting_on_device] {
            place.take_if(|waiting| {
                waiting.operation.sequence <= finished
                    || now.saturating_duration_since(waiting.at) > ALIVE
            });
        }
    }

    /// The wait that it is in. `finished` is the last collective that it has finished.
    pub(crate) fn wait(&self, finished: u64, now: Instant) -> Option<Wait> {
        let mut waits = self.waits();
        waits.find_map(|waiting| waiting.told(finished, now))
    }

    /// Like [`wait`](Self::wait), but only if it was announced after `start`: an older wait for a
    /// message may be over, since its end is not announced.
    pub(crate) fn wait_after(&self, start: Instant, finished: u64, now: Instant) -> Option<Wait> {
        let mut waits = self.waits().filter(|waiting| waiting.at >= start);
        waits.find_map(|waiting| waiting.told(finished, now))
    }

    fn waits(&self) -> impl Iterator<Item = Waiting> {
        [self.waiting, self.waiting_on_device].into_iter().flatten()
    }

    /// How long ago anything was heard of it.
    pub(crate) fn age(&self, now: Instant) -> Option<Duration> {
        self.at.map(|at| now.saturating_duration_since(at))
    }

    /// The rank that its thread waits for, if it announced that within `window`.
    pub(crate) fn waits_lately(&self, window: Duration, now: Instant) -> Option<WaitingFor> {
        let waiting = self.waiting.filter(|waiting| {
            now.saturating_duration_since(waiting.at) <= window
                && waiting.operation.sequence > self.finished
        });
        waiting.map(|waiting| waiting.whom)
    }

    /// The world rank that it waits for in a message or on its device, and in which operation.
    pub(crate) fn awaits_one(&self, now: Instant) -> Option<(u32, u64)> {
        // The device first: what its thread waits in may wait for that.
        let waits = [self.waiting_on_device, self.waiting];
        waits.iter().flatten().find_map(|waiting| {
            let Wait {
                sequence, for_rank, ..
            } = waiting.told(self.finished, now)?;
            let rank = for_rank.filter(|_| is_apart(sequence))?;
            Some((rank, sequence))
        })
    }

    /// Collectives that it is known to have entered.
    pub(crate) fn operations(&self) -> impl Iterator<Item = Operation> {
        let waiting = self.waiting.map(|waiting| waiting.operation);
        let waiting = waiting.filter(|operation| !is_apart(operation.sequence));
        let last = self.left.iter().flat_map(|leave| &leave.calls);
        let last = last.map(|&(sequence, signature)| Operation {
            sequence,
            signature,
        });
        waiting.into_iter().chain(self.entered).chain(last)
    }

    /// Its leave, if nothing is in flight.
    pub(crate) fn has_left(&self) -> Option<&Leave> {
        self.left.as_deref().filter(|leave| !leave.is_in_flight)
    }

    /// The operation that it was last known to be in.
    pub(crate) fn last(&self) -> Option<Operation> {
        let latest = self.waits().max_by_key(|waiting| waiting.at);
        latest.map(|waiting| waiting.operation).or(self.entered)
    }

    pub(crate) fn takes_part(&self, sequence: u64, window: Duration, now: Instant) -> bool {
        let waits = self.waiting.is_some_and(|waiting| {
            let since = now.saturating_duration_since(waiting.at);
            waiting.operation.sequence == sequence && since <= window
        });
        let has_left = self.has_left();
        waits
            || self.finished >= sequence
            || has_left.is_some_and(|leave| leave.last_sequence >= sequence)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::fault::{DEVICE_MARK, POINT_TO_POINT_MARK};

    #[test]
    fn a_wait_on_the_device_is_none_of_the_thread() {
        // Of a call, and of a message.
        for on_device in [DEVICE_MARK | 3, POINT_TO_POINT_MARK | DEVICE_MARK | 3] {
            assert_wait_is_apart(on_device);
        }
    }

    #[test]
    fn a_wait_that_was_announced_before_is_left_out() {
        let (mut record, before) = (MemberRecord::default(), Instant::now());
        let at = before + Duration::from_millis(1);
        let sequence = POINT_TO_POINT_MARK | 3;
        let progress = Progress {
            context: 1,
            finished: 0,
            sequence,
            signature: [0; 2],
            waiting: Some(WaitingFor::Rank(2)),
        };
        record.update(&progress, at);
        let after = at + Duration::from_millis(1);
        let told = |start| record.wait_after(start, 0, after).map(|wait| wait.sequence);
        assert_eq!([told(before), told(at)], [Some(sequence); 2]);
        assert_eq!(told(after), None);
    }

    fn assert_wait_is_apart(on_device: u64) {
        let (mut record, now) = (MemberRecord::default(), Instant::now());
        let mut announce = |sequence, rank| {
            let progress = Progress {
                context: 1,
                finished: 4,
                sequence,
                signature: [0; 2],
                waiting: Some(WaitingFor::Rank(rank)),
            };
            record.update(&progress, now);
            record.clone()
        };
        let lately = |record: &MemberRecord| record.waits_lately(ALIVE, now);
        let record = announce(on_device, 2);
        assert_eq!(lately(&record), None);
        assert!(!record.takes_part(5, ALIVE, now));
        announce(5, 1);
        let record = announce(on_device, 2);
        assert_eq!(lately(&record), Some(WaitingFor::Rank(1)));
        assert!(record.takes_part(5, ALIVE, now));
        assert_eq!(record.awaits_one(now), Some((2, on_device)));
    }

    proptest! {
        /// In any order, each number is new once, unless it is far behind the last.
        #[test]
        fn each_telling_is_new_once(counters in prop::collection::vec(prop_oneof![1_u64..200, any::<u64>()], 1..300)) {
            let (mut seen_notices, mut seen, mut last) = (SeenNotices::default(), HashSet::from([0]), 0);
            for counter in counters {
                let is_far_behind = counter.saturating_add(64) < last;
                prop_assert_eq!(seen_notices.is_new(counter), seen.insert(counter) && !is_far_behind);
                last = counter.max(last);
            }
        }
    }
}
