//! What the two ends of a doorbell say to each other, in shared memory.

use std::sync::atomic::AtomicU64;

/// The words of one end, all zero at first.
#[derive(Debug)]
#[repr(C)]
pub(in super::super) struct Words {
    /// Whether it blocks, or is about to.
    pub(super) asleep: AtomicU64,
    /// Whether it rings when the other end is asleep; 0 before that is known.
    pub(super) rings: AtomicU64,
}
