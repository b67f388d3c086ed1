//! Estimates how long a collective takes, to choose between algorithms, and to predict the time for
//! numbers of ranks that are not available. Knows schedules and costs; measures nothing.
//!
//! Every message costs the processors at both ends an overhead. Every byte costs a copy or a
//! reduction at the ends, and time in the ports on its route ([`Fabric`]), which messages share.
//! Between the ends there is a latency. [`simulate`] follows every message; [`estimate`] is a
//! closed form that stays close to it.

mod closed;
mod fabric;
mod simulate;
mod timeline;

pub use closed::estimate;
pub use fabric::Fabric;
pub use simulate::simulate;

/// The costs of a link and of the processors at its ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkCost {
    /// From the end of sending to the start of receiving, in microseconds.
    pub latency_us: f64,
    /// Per message and end, in microseconds.
    pub overhead_us: f64,
    /// Per byte in a port, in microseconds; 0 if messages are passed through memory.
    pub wire_us_per_byte: f64,
    /// Per byte copied into or out of a message, in microseconds.
    pub copy_us_per_byte: f64,
    /// Per byte reduced with another, in microseconds.
    pub reduce_us_per_byte: f64,
    /// The bytes of a full message, at least 1. Should be the same on all links.
    pub slice_bytes: u64,
}
