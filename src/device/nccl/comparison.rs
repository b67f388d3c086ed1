//! NCCL does not check that all ranks make the same calls: where they differ, it may end in success
//! with wrong data. So ranks that wait for results tell each other a digest of their calls, over
//! the control plane; see [`Watch::record_call`](spark_ccl_control::Watch::record_call).

use std::time::{Duration, Instant};

use spark_ccl_control::{DEVICE_MARK, Fault};
use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_cuda::is_capturing;

use super::NcclEngine;
use crate::device::watched_engine::WatchedEngine;
use crate::error::Error;
use crate::memory::device::pause::pause;
use crate::task::Task;

/// The pause between two checks of a wait that hears nothing: the missing rank may have left.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// How often a wait asks again: questions and answers may get lost.
const ASK_EVERY: Duration = Duration::from_millis(200);

impl NcclEngine {
    /// Whether the ranks compare a call. They do not compare a captured call, which its graph may
    /// launch at any time or never, nor a message, which only two ranks know.
    pub(super) fn is_compared(&self, task: &Task, stream: &CudaStream) -> Result<bool, Error> {
        let is_of_all = self.base.size > 1 && !task.operation().is_of_pairs();
        Ok(is_of_all && !self.base.own(is_capturing(stream))?)
    }

    /// Asks the other ranks about calls that are not compared yet; they answer while this one waits
    /// for its stream.
    pub(super) fn ask_about(&self, made: u64) {
        let watch = &self.base.watch;
        if watch.calls_compared() < made {
            watch.ask_of_calls();
        }
    }

    /// Waits until the other ranks have compared this rank's calls up to `made`, which have run. A
    /// rank that has yet to make them is not waited for: it compares them later.
    pub(super) fn compare_up_to(&self, made: u64) -> Result<(), Error> {
        let watch = &self.base.watch;
        if watch.calls_compared() >= made {
            return Ok(());
        }
        let start = Instant::now();
        let mut limit = None;
        let (mut question, mut asked) = (watch.ask_of_calls(), start);
        let (mut heard, mut looked) = (0, start);
        while watch.calls_compared() < made && !watch.failed() {
            let claims = watch.calls_claimed();
            if claims != heard || looked.elapsed() >= LOOK_EVERY {
                (heard, looked) = (claims, Instant::now());
                let missing = watch.uncompared(made, question);
                if missing.is_empty() {
                    break;
                }
                // A thread that holds the lock enqueues a call; the time is checked at a later
                // look.
                if limit.is_none() {
                    let state = self.base.state.try_lock();
                    limit = state.map(|state| state.calls.patience());
                }
                if limit.is_some_and(|limit| start.elapsed() > limit) {
                    watch.raise(self.unanswered(made, start.elapsed(), &missing));
                }
            }
            if asked.elapsed() >= ASK_EVERY {
                (question, asked) = (watch.ask_of_calls(), Instant::now());
            }
            pause(start.elapsed());
        }
        self.check()
    }

    /// The fault of ranks that do not say which calls they have made.
    fn unanswered(&self, made: u64, waited: Duration, missing: &[u32]) -> Fault {
        let late = missing
            .iter()
            .map(|&rank| self.base.watch.last_seen(rank))
            .collect();
        Fault::TimedOut {
            by: self.base.member(),
            sequence: DEVICE_MARK | made,
            words: format!(
                "comparing what all ranks have called on device {}",
                self.base.device()
            ),
            waited,
            late,
        }
    }
}
