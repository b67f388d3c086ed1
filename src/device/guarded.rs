//! What waits, the guard and allocations need of an engine.

use super::block;
use super::rank::DeviceRank;
use crate::error::Error;
use std::time::Duration;

/// An engine whose calls run later, and may have to be ended.
pub(super) trait Guarded: Send + Sync + 'static {
    /// The backend's communicator.
    type Backend: Send + 'static;

    /// How much longer than the timeout a call may take: so long, what the backend says about it is waited for.
    const GRACE: Duration = Duration::ZERO;

    /// The rank and its GPU.
    fn base(&self) -> &DeviceRank<Self::Backend>;

    /// The communicator's error, if it has failed; also what the backend has noticed meanwhile.
    fn check(&self) -> Result<(), Error>;

    /// Ends what runs; after that nothing can be enqueued any more. Where that cannot be done yet, the guard tries again.
    fn abort(&self);

    /// Whether memory was dropped that can be given back now.
    fn has_leftovers(&self) -> bool {
        block::any_is_over()
    }

    /// Whether memory was dropped that can be given back at some time, without the other ranks.
    fn will_free(&self) -> bool {
        block::any()
    }

    /// Gives back memory that was dropped, and is not in use any more.
    fn tidy(&self) {
        block::sweep();
    }
}
