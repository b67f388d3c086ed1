//! What a rail says about what it has read; `core/returns.rs` has it say so.

use std::collections::VecDeque;

/// A lent message that is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Read {
    pub(super) channel: usize,
    pub(super) number: u64,
}

/// What a rail says about lent messages that are read, in this order.
#[derive(Debug, Default)]
pub(super) struct Returns {
    pub(super) unsaid: VecDeque<Read>,
    /// Those that the peer may not have heard.
    pub(super) said: VecDeque<Read>,
}
