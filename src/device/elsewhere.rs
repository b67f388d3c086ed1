//! Calls of NCCL's that wait for all ranks, for ever if need be.

use crate::error::Error;
use crate::world::deadline_in;
use spark_ccl_control::Watch;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How often waiting for NCCL looks for faults.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Does something on a thread of its own, which is left behind when a rank fails meanwhile, or when it takes
/// longer than `timeout`.
pub(super) fn elsewhere<R: Send + 'static>(
    what: &str,
    watch: &Watch,
    timeout: Duration,
    work: impl FnOnce() -> Result<R, Error> + Send + 'static,
) -> Result<R, Error> {
    let (sender, done) = channel();
    let thread = std::thread::Builder::new().name("spark-nccl-call".to_owned());
    let run = move || {
        // Nobody hears it who has been told of a fault.
        let _ = sender.send(work());
    };
    thread.spawn(run).map_err(|error| Error::System {
        what: "starting a thread for NCCL".to_owned(),
        problem: error.to_string(),
    })?;
    let deadline = deadline_in(timeout);
    loop {
        match done.recv_timeout(LOOK_EVERY) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::Nccl(format!(
                    "{what}: the thread of the call panicked"
                )));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(fault) = watch.fault() {
            return Err(Error::Failed(fault));
        }
        if Instant::now() > deadline {
            return Err(Error::Nccl(format!(
                "{what}: NCCL is not done after {timeout:?}; NCCL_DEBUG=INFO tells more"
            )));
        }
    }
}
