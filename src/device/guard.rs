//! The thread that ends what runs when it cannot come to its end: a program may wait for its streams in
//! ways that know nothing of communicators.

use super::Engine;
use crate::error::Error;
use spark_ccl_control::{DEVICE, Fault};
use spark_ccl_cuda::cudarc::driver::CudaEvent;
use spark_ccl_cuda::{checked, is_capturing};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often it looks. A rank's death is noticed within milliseconds, and nobody waits for less.
const TICK: Duration = Duration::from_millis(50);
/// For so long a call may go on after a rank has left that had its own part done.
const AFTER_A_FAREWELL: Duration = Duration::from_secs(2);

/// Watches over an engine until that is gone.
pub(super) fn start(engine: &Arc<Engine>) -> Result<(), Error> {
    let engine = Arc::downgrade(engine);
    std::thread::Builder::new()
        .name("spark-nccl".to_owned())
        .spawn(move || watch_over(&engine))
        .map(drop)
        .map_err(|error| Error::System {
            what: "starting the thread that watches over NCCL".to_owned(),
            problem: error.to_string(),
        })
}

/// Something that was enqueued, and is waited for.
struct Mark {
    event: CudaEvent,
    calls: u64,
    since: Instant,
    /// When a rank was seen to have left.
    farewell: Option<(u32, Instant)>,
}

fn watch_over(engine: &Weak<Engine>) {
    let (mut mark, mut seen) = (None, 0);
    loop {
        std::thread::sleep(TICK);
        let Some(engine) = engine.upgrade() else {
            return;
        };
        if engine.watch.failed() {
            engine.abort();
            return;
        }
        engine.look(&mut mark, &mut seen);
    }
}

impl Engine {
    fn look(&self, mark: &mut Option<Mark>, seen: &mut u64) {
        if mark.as_ref().is_some_and(|mark| mark.event.is_complete()) {
            *mark = None;
        }
        match mark {
            Some(mark) => self.judge(mark),
            None => match self.mark(*seen) {
                Ok(made) => {
                    *mark = made;
                    *seen = mark.as_ref().map_or(*seen, |mark| mark.calls);
                }
                Err(error) => tracing::debug!("rank {}: {error}", self.rank),
            },
        }
    }

    /// Marks the place in the stream that the last call has, if there were new ones. Behind a mark in a graph
    /// that is being captured, nothing would ever come.
    fn mark(&self, seen: u64) -> Result<Option<Mark>, Error> {
        let (calls, last) = {
            let state = self.state.lock();
            (state.calls.count, state.calls.stream.clone())
        };
        let Some(stream) = last.filter(|_| calls != seen) else {
            return Ok(None);
        };
        if is_capturing(&stream)? {
            return Ok(None);
        }
        let device = self.device();
        let event = checked("cuEventCreate", device, self.context.new_event(None))?;
        checked("cuEventRecord", device, event.record(&stream))?;
        Ok(Some(Mark {
            event,
            calls,
            since: Instant::now(),
            farewell: None,
        }))
    }

    /// Fails the communicator where a call takes too long, or waits for a rank that has left.
    fn judge(&self, mark: &mut Mark) {
        let timeout = self.state.lock().timeout;
        if mark.since.elapsed() > timeout {
            self.raise_timeout(mark.calls, mark.since.elapsed());
        }
        let left = (0..self.size as u32).find(|&rank| self.watch.left(rank).is_some());
        match (mark.farewell, left) {
            (None, Some(rank)) => mark.farewell = Some((rank, Instant::now())),
            (Some((rank, since)), _) if since.elapsed() > AFTER_A_FAREWELL => {
                self.watch.raise(Fault::Left {
                    rank: self.watch.member(rank),
                    last_sequence: self.watch.left(rank).unwrap_or(0),
                    sequence: DEVICE | mark.calls,
                    words: format!("the last that was enqueued on device {}", self.device()),
                });
            }
            _ => {}
        }
    }
}
