//! Whether a communicator works: what becomes of messages that nobody will read. Knows the engine
//! and its lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::HostEngine;
use crate::error::Error;
use crate::host::unread::{Refusal, Unread};
use crate::host::watchdog::CAUSE_WITHIN;

/// How often a rank that has found an unread message looks for what the control plane says about
/// it.
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
    /// The fault. Where a message is unread, this takes until its sender has said what it has
    /// called.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let unread = self.with(|core| core.check().map(|()| core.unread()))??;
        unread.map_or(Ok(()), |unread| Err(self.fail_for(unread)))
    }

    /// Has the sender of an unread message compare the two calls, and waits for the fault that this
    /// is.
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
