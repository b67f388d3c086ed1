//! Counts the enqueued calls, and watches one of them at a time. Knows events; knows no backend.

use spark_ccl_cuda::{Error, RecordedEvent};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How many captures are remembered: as many as may be open at a time.
const CAPTURES: usize = 16;

/// What was enqueued with a communicator. Its calls run one after the other, even if they are in different streams.
#[derive(Default)]
pub(super) struct Calls {
    /// The number of calls.
    pub(super) count: u64,
    /// The event after the last call, until it is known to have run.
    pub(super) last: Option<Arc<RecordedEvent>>,
    /// The watched call, until it has run.
    pub(super) mark: Option<Mark>,
    /// The last call in each of the last captures, by their numbers.
    captured: Vec<(u64, Arc<RecordedEvent>)>,
}

/// A call in a stream that is not known to have run.
pub(super) struct Mark {
    pub(super) end: Arc<RecordedEvent>,
    pub(super) calls: u64,
    pub(super) stall: Stall,
    /// When a rank was seen to have left.
    pub(super) farewell: Option<(u32, Instant)>,
}

/// How long there has been no progress.
pub(super) struct Stall {
    since: Instant,
    progress: u64,
}

impl Stall {
    /// Begins now, with this progress.
    pub(super) fn new(progress: u64) -> Self {
        Self {
            since: Instant::now(),
            progress,
        }
    }

    /// How long there has been none, after a look at it.
    pub(super) fn lasts(&mut self, progress: u64) -> Duration {
        if self.progress != progress {
            *self = Self::new(progress);
        }
        self.since.elapsed()
    }
}

impl Calls {
    /// The last call in a capture. Only streams of that capture can wait for it.
    pub(super) fn last_in(&self, capture: u64) -> Option<&Arc<RecordedEvent>> {
        let mut captured = self.captured.iter();
        captured.find(|(of, _)| *of == capture).map(|(_, end)| end)
    }

    /// A call was captured, and it ends at an event.
    pub(super) fn was_captured(&mut self, capture: u64, end: Arc<RecordedEvent>) {
        self.captured.retain(|(of, _)| *of != capture);
        if self.captured.len() == CAPTURES {
            self.captured.remove(0);
        }
        self.captured.push((capture, end));
    }

    /// Checks the watched call. If it has run, watches the last call instead, from this progress on.
    pub(super) fn look(&mut self, progress: u64) -> Result<(), Error> {
        if let Some(mark) = &self.mark {
            if !mark.end.is_complete()? {
                return Ok(());
            }
            self.mark = None;
        }
        let Some(end) = &self.last else {
            return Ok(());
        };
        if end.is_complete()? {
            self.last = None;
            return Ok(());
        }
        self.mark = Some(Mark {
            end: Arc::clone(end),
            calls: self.count,
            stall: Stall::new(progress),
            farewell: None,
        });
        Ok(())
    }
}
