//! The words in shared memory through which the two ends of a doorbell communicate.

use std::sync::atomic::AtomicU64;

/// The words of one end; all are zero at first.
#[derive(Debug)]
#[repr(C)]
pub(in super::super) struct Words {
    /// Whether this end blocks, or is about to.
    pub(super) asleep: AtomicU64,
    /// Whether this end rings when the other end is asleep; 0 until that has been decided.
    pub(super) rings: AtomicU64,
}
