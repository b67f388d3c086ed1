//! A rail's notices of loans that it has read; `core/returns.rs` sends them.

use std::collections::VecDeque;

/// A rail's notices of lent messages that were read: their numbers, in this order.
#[derive(Debug, Default)]
pub(super) struct Returns {
    pub(super) unsaid: VecDeque<u64>,
    /// Notices that were sent, but may not have arrived.
    pub(super) said: VecDeque<u64>,
}
