//! Checks whether a communicator works, and turns messages that no call will read into faults.
//! Knows the engine and its lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::HostEngine;
use crate::error::Error;
use crate::host::unread::{Refusal, Unread};
use crate::host::watchdog::CAUSE_WITHIN;

/// How often a rank with an unread message asks the control plane about it.
const PAUSE: Duration = Duration::from_millis(1);

impl HostEngine {
    /// The error of a call that was not begun.
    #[cold]
    pub(super) fn refuse(&self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::Error(error) => error,
            Refusal::Unread(unread) => self.fail_for(unread),
        }
    }

    /// Whether the communicator works. It does not if a message has come that no call of this rank
    /// will read.
    ///
    /// # Errors
    /// The fault. With an unread message, this waits until its sender has said what it called.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let unread = self.with(|core| core.check().map(|()| core.unread()))??;
        unread.map_or(Ok(()), |unread| Err(self.fail_for(unread)))
    }

    /// Has the sender of an unread message compare the two calls, and waits for the resulting
    /// fault.
    fn fail_for(&self, unread: Unread) -> Error {
        let Unread { from, sequence } = unread;
        let found = self.with(|core| (Arc::clone(&core.watch), core.unread_fault(unread)));
        let (watch, fault) = match found {
            Ok(found) => found,
            Err(forked) => return forked.into(),
        };
        if let Some(words) = watch.called(sequence) {
            watch.announce(sequence, words, Some(from));
        }
        let deadline = Instant::now() + CAUSE_WITHIN;
        while !watch.failed() && Instant::now() < deadline {
            std::thread::sleep(PAUSE);
        }
        // The first one stays.
        watch.raise(fault.clone());
        let fault = watch.fault().unwrap_or_else(|| Arc::new(fault));
        Error::Failed(fault)
    }
}
