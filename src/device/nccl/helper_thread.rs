//! NCCL calls that wait for all ranks, and may never return: they run on a thread that may be left
//! behind.

use std::time::{Duration, Instant};

use crossbeam::channel::{RecvTimeoutError, bounded};
use spark_ccl_control::Watch;

use crate::error::Error;
use crate::memory::device::helper_thread::spawn;
use crate::world::deadline::deadline_in;

/// How often waiting for NCCL looks for faults.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Does something on a thread of its own. The thread is left behind when a rank fails meanwhile, or
/// when it takes longer than `timeout`: `hint` says what may be the matter then.
pub(super) fn on_helper_thread<R: Send + 'static>(
    what: &str,
    hint: &str,
    watch: &Watch,
    timeout: Duration,
    work: impl FnOnce() -> Result<R, Error> + Send + 'static,
) -> Result<R, Error> {
    let (sender, done) = bounded(1);
    spawn("spark-nccl-call", move || {
        // Fails if the caller has returned already because of a fault or the deadline.
        let _ = sender.send(work());
    })?;
    let deadline = deadline_in(timeout);
    loop {
        match done.recv_timeout(LOOK_EVERY) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::System {
                    what: format!("{what} by NCCL"),
                    problem: "the thread of the call panicked".to_owned(),
                });
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(fault) = watch.fault() {
            return Err(Error::Failed(fault));
        }
        if Instant::now() > deadline {
            return Err(Error::System {
                what: format!("{what} by NCCL"),
                problem: format!(
                    "not done after {timeout:.1?}; {hint}; NCCL_DEBUG=INFO tells more"
                ),
            });
        }
    }
}
