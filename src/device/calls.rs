//! Counts the enqueued calls, and watches one of them at a time. Knows events; knows no backend.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spark_ccl_control::{DeviceCalls, DevicePart};
use spark_ccl_cuda::{Error, RecordedEvent};

use crate::world::logging::REMARK_AFTER;

/// The number of captures that are remembered: as many as may be open at a time.
const CAPTURES: usize = 16;
/// The number of ends of calls that are kept beside the last one's.
const WAYPOINTS: usize = 64;

/// The calls that were enqueued with a communicator. They run one after the other, even if they are
/// in different streams.
pub(super) struct Calls {
    /// How long each call enqueued from now on may take.
    pub(super) timeout: Duration,
    /// The longest time limit of the calls that were enqueued since the last moment without any
    /// under way.
    longest: Duration,
    /// The number of calls.
    pub(super) count: u64,
    /// The collectives and messages in all of them.
    pub(super) made: DeviceCalls,
    /// The event after the last call, until it is known to have run.
    pub(super) last: Option<Arc<RecordedEvent>>,
    /// The last call that is known to have run.
    pub(super) passed: u64,
    /// The collectives and messages in the calls that are known to have run.
    pub(super) ran: DeviceCalls,
    waypoints: Waypoints,
    /// The watched call, until it has run.
    pub(super) mark: Option<Mark>,
    /// The last call in each of the last captures, by their numbers.
    captured: Vec<(u64, Arc<RecordedEvent>)>,
    /// Whether calls were captured: their graphs may be launched at any time.
    is_captured: bool,
    /// The collectives and messages in the captured calls.
    in_graphs: DeviceCalls,
}

/// The ends of some of the calls that are not known to have run, the oldest first. They tell many
/// calls that run one after the other from one call that takes too long.
struct Waypoints {
    ends: VecDeque<CallEnd>,
    /// Only calls whose number is a multiple of this have their end kept.
    stride: u64,
    /// The longest time limit of the calls behind the last of these ends.
    limit: Duration,
}

impl Default for Waypoints {
    fn default() -> Self {
        Self {
            ends: VecDeque::new(),
            stride: 1,
            limit: Duration::ZERO,
        }
    }
}

impl Waypoints {
    /// Adds the end of a call, which may take as long as `limit`.
    fn push(
        &mut self,
        calls: u64,
        made: &DeviceCalls,
        event: &Arc<RecordedEvent>,
        limit: Duration,
    ) {
        if self.ends.len() == WAYPOINTS {
            self.thin_out();
        }
        self.limit = self.limit.max(limit);
        if calls.is_multiple_of(self.stride) {
            self.ends.push_back(CallEnd {
                calls,
                made: made.clone(),
                event: Arc::clone(event),
                limit: std::mem::take(&mut self.limit),
            });
        }
    }

    /// Drops every other end. The calls of a dropped end count for the end after it.
    fn thin_out(&mut self) {
        self.stride *= 2;
        let (stride, mut dropped) = (self.stride, Duration::ZERO);
        self.ends.retain_mut(|end| {
            end.limit = end.limit.max(std::mem::take(&mut dropped));
            let is_kept = end.calls.is_multiple_of(stride);
            if !is_kept {
                dropped = end.limit;
            }
            is_kept
        });
        self.limit = self.limit.max(dropped);
    }

    fn pop(&mut self) -> Option<CallEnd> {
        let oldest = self.ends.pop_front();
        if oldest.is_none() {
            self.stride = 1;
        }
        oldest
    }
}

/// The end of a call, or of several calls if only the end of the last one is known.
pub(super) struct CallEnd {
    /// The number of calls up to it.
    pub(super) calls: u64,
    /// The collectives and messages in these calls.
    pub(super) made: DeviceCalls,
    event: Arc<RecordedEvent>,
    /// How long they may take: the longest time limit of any.
    pub(super) limit: Duration,
}

/// A call that is not known to have run.
pub(super) struct Mark {
    pub(super) end: CallEnd,
    pub(super) stall: Stall,
    /// A rank that the call needs and that has left, and when this was seen.
    pub(super) farewell: Option<(u32, Instant)>,
}

/// How long there has been no progress.
pub(super) struct Stall {
    since: Instant,
    progress: u64,
    is_remarked: bool,
}

impl Stall {
    /// A stall that begins now, at this progress.
    pub(super) fn new(progress: u64) -> Self {
        Self {
            since: Instant::now(),
            progress,
            is_remarked: false,
        }
    }

    /// The time since progress was last noted.
    pub(super) fn has_lasted(&self) -> Duration {
        self.since.elapsed()
    }

    /// Notes progress, if there was any, and returns the time since.
    pub(super) fn lasts(&mut self, progress: u64) -> Duration {
        if self.progress != progress {
            *self = Self {
                is_remarked: self.is_remarked,
                ..Self::new(progress)
            };
        }
        self.since.elapsed()
    }

    /// Whether to tell the user now that a call has waited for this long: once.
    pub(super) fn needs_remark(&mut self, waited: Duration) -> bool {
        waited >= REMARK_AFTER && !std::mem::replace(&mut self.is_remarked, true)
    }
}

impl Calls {
    /// No calls so far; each may take this long.
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            longest: Duration::ZERO,
            count: 0,
            made: DeviceCalls::default(),
            last: None,
            passed: 0,
            ran: DeviceCalls::default(),
            waypoints: Waypoints::default(),
            mark: None,
            captured: Vec::new(),
            is_captured: false,
            in_graphs: DeviceCalls::default(),
        }
    }

    /// How long a wait that begins now may last: no less than any call under way may take.
    pub(super) fn patience(&self) -> Duration {
        self.longest.max(self.timeout)
    }

    /// The time limit of the call under way, if it has passed.
    pub(super) fn overdue(&self) -> Option<Duration> {
        let mark = self.mark.as_ref()?;
        (mark.stall.has_lasted() > mark.end.limit).then_some(mark.end.limit)
    }

    /// Notes that a call was enqueued, which consists of these parts of this rank, and ends at an
    /// event. `limit` is the call's own time limit, if it has one.
    pub(super) fn was_enqueued(
        &mut self,
        parts: impl IntoIterator<Item = DevicePart>,
        end: &Arc<RecordedEvent>,
        limit: Option<Duration>,
    ) {
        let limit = limit.unwrap_or(self.timeout);
        self.longest = self.longest.max(limit);
        self.count += 1;
        for part in parts {
            self.made.add(part);
        }
        self.waypoints.push(self.count, &self.made, end, limit);
        self.last = Some(Arc::clone(end));
    }

    /// The last call in a capture. Only streams of that capture can wait for it.
    pub(super) fn last_in(&self, capture: u64) -> Option<&Arc<RecordedEvent>> {
        let mut captured = self.captured.iter();
        captured.find(|(of, _)| *of == capture).map(|(_, end)| end)
    }

    /// Notes that a call was captured, which consists of these parts. How often its graph is
    /// launched is not known.
    pub(super) fn add_captured(&mut self, parts: impl IntoIterator<Item = DevicePart>) {
        for part in parts {
            self.in_graphs.add(part);
        }
        self.count += 1;
        self.made.add_uncounted();
        self.is_captured = true;
    }

    /// Whether a call may run now or soon; true also if the state of a call is not known.
    pub(super) fn may_run(&self) -> bool {
        let runs = |last: &Arc<RecordedEvent>| !last.is_complete().unwrap_or(false);
        self.is_captured || self.last.as_ref().is_some_and(runs)
    }

    /// Whether the rank is needed by graphs, or by calls that were not known to have run at the
    /// last look.
    pub(super) fn may_need(&self, rank: u32) -> bool {
        self.in_graphs.need_more_of(rank, &DeviceCalls::default())
            || self.made.need_more_of(rank, &self.ran)
    }

    /// Notes that the last call was captured, and ends at an event.
    pub(super) fn was_captured(&mut self, capture: u64, end: Arc<RecordedEvent>) {
        self.captured.retain(|(of, _)| *of != capture);
        if self.captured.len() == CAPTURES {
            self.captured.remove(0);
        }
        self.captured.push((capture, end));
    }

    /// Checks the watched call. If it has run, watches the next one whose end is known, from this
    /// progress on.
    pub(super) fn look(&mut self, progress: u64) -> Result<(), Error> {
        if let Some(mark) = &self.mark {
            if !mark.end.event.is_complete()? {
                return Ok(());
            }
            self.passed = mark.end.calls;
            self.ran.clone_from(&mark.end.made);
            self.mark = None;
        }
        if let Some(end) = self.first_under_way()? {
            self.mark = Some(Mark {
                end,
                stall: Stall::new(progress),
                farewell: None,
            });
        }
        Ok(())
    }

    fn first_under_way(&mut self) -> Result<Option<CallEnd>, Error> {
        while let Some(end) = self.waypoints.pop() {
            if !end.event.is_complete()? {
                return Ok(Some(end));
            }
            (self.passed, self.ran) = (end.calls, end.made);
        }
        // The event stays where the driver does not answer: the calls before it may still run.
        let Some(event) = self.last.clone() else {
            return Ok(None);
        };
        if event.is_complete()? {
            (self.passed, self.last) = (self.count, None);
            self.ran.clone_from(&self.made);
            (self.longest, self.waypoints.limit) = (Duration::ZERO, Duration::ZERO);
            return Ok(None);
        }
        Ok(Some(CallEnd {
            calls: self.count,
            made: self.made.clone(),
            event,
            limit: self.waypoints.limit,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_remarked_on_once_also_after_some_progress() {
        let mut stall = Stall::new(0);
        assert!(!stall.needs_remark(REMARK_AFTER / 2));
        assert!(stall.needs_remark(REMARK_AFTER));
        stall.lasts(1);
        assert!(!stall.needs_remark(REMARK_AFTER * 2));
    }

    #[test]
    fn calls_need_a_rank_until_they_have_run_and_graphs_for_ever() {
        let mut calls = Calls::new(Duration::ZERO);
        calls.made.add(DevicePart::Collective);
        assert!(calls.may_need(1));
        calls.ran.clone_from(&calls.made);
        assert!(!calls.may_need(1));
        // Calls that need some of the ranks only.
        calls.made.add(DevicePart::SendTo(2));
        assert_eq!([1, 2].map(|rank| calls.may_need(rank)), [false, true]);
        calls.ran.clone_from(&calls.made);
        calls.add_captured([DevicePart::ReceiveFrom(3)]);
        assert_eq!([2, 3].map(|rank| calls.may_need(rank)), [false, true]);
    }
}
