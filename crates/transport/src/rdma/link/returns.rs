//! A rail's notices of loans that it has read; `core/returns.rs` sends them.

use std::collections::VecDeque;

/// A lent message that was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Read {
    pub(super) channel: usize,
    pub(super) number: u64,
}

/// A rail's notices of lent messages that were read, in this order.
#[derive(Debug, Default)]
pub(super) struct Returns {
    pub(super) unsaid: VecDeque<Read>,
    /// Notices that were sent, but may not have arrived.
    pub(super) said: VecDeque<Read>,
}
