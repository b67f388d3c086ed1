//! Reports of kernels and of the driver, as the communicator's fault.

use std::time::Duration;

use spark_ccl_control::{DEVICE_MARK, Fault, POINT_TO_POINT_MARK};
use spark_ccl_gpu as gpu;
use spark_ccl_types::describe_message;

use super::engine::KernelEngine;
use super::messages::describe_received;
use super::refused::refused;
use crate::error::Error;
use crate::task::names::describe;

impl KernelEngine {
    /// Checks whether a kernel has given up; if so, all ranks hear of it.
    pub(super) fn reported(&self) -> Result<(), Error> {
        let said = self.member().map_or(Ok(()), |member| member.check());
        said.map_err(|error| self.failed(error))
    }

    /// An error as the library's. If kernels are not in step after it, the communicator fails on
    /// all ranks.
    pub(super) fn failed(&self, error: gpu::Error) -> Error {
        let base = &self.base;
        match error {
            gpu::Error::Cuda(error) => return base.lost(error),
            // Not in step with the peers any more, whatever the error is.
            error @ gpu::Error::InPart(_) => base.give_up(error.to_string()),
            gpu::Error::Late { peer, seconds, .. } => {
                let calls = base.state.try_lock().map(|state| state.calls.count);
                let waited = Duration::try_from_secs_f64(seconds).unwrap_or_default();
                let late = base.watch.awaited(peer as u32);
                base.watch
                    .raise(base.timed_out(calls.unwrap_or_default(), waited, late));
            }
            gpu::Error::Mismatch {
                peer,
                own,
                theirs,
                operation,
                ..
            } => base.watch.raise(Fault::Mismatch {
                sequence: DEVICE_MARK | operation,
                rank_a: base.member(),
                words_a: describe(own),
                rank_b: base.watch.member(peer as u32),
                words_b: if theirs == own {
                    format!("{}, before or after others", describe(theirs))
                } else {
                    describe(theirs)
                },
            }),
            gpu::Error::OtherMessage {
                peer,
                own,
                theirs,
                message,
                ..
            } => base.watch.raise(Fault::Mismatch {
                sequence: POINT_TO_POINT_MARK | message,
                rank_a: base.member(),
                words_a: describe_received(own),
                rank_b: base.watch.member(peer as u32),
                words_b: describe_message(theirs),
            }),
            gpu::Error::Unanswered { seconds, .. } => {
                let calls = base.state.try_lock().map(|state| state.calls.count);
                let waited = Duration::try_from_secs_f64(seconds).unwrap_or_default();
                base.raise_timeout(calls.unwrap_or_default(), waited);
            }
            // The cause is known already, or nothing has failed, and the communicator is over.
            gpu::Error::Aborted { .. } | gpu::Error::Ended { .. } => {}
            other => return refused(other, base.rank),
        }
        base.gone()
    }
}
