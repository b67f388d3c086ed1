//! What is remembered of a call that is under way: its number, its end, and since when. The guard judges by it.

use spark_ccl_cuda::RecordedEvent;
use std::sync::Arc;
use std::time::Instant;

/// A call in a stream that is not known to have run.
pub(super) struct Mark {
    pub(super) end: Arc<RecordedEvent>,
    pub(super) calls: u64,
    pub(super) since: Instant,
    /// When a rank was seen to have left.
    pub(super) farewell: Option<(u32, Instant)>,
}
