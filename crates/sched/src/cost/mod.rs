//! How long a collective takes, estimated: for choosing between algorithms, and for numbers of
//! ranks that are not at hand.
//!
//! Every message costs the processors at both ends an overhead; every byte costs a copy or a
//! reduction there, and time in the ports on its way ([`Fabric`]), which it shares with the other
//! messages there; and there is a latency between the ends. [`simulate`] follows every message;
//! [`estimate`] is a closed form that stays close to it.

mod calendar;
mod closed;
mod fabric;
mod simulate;

pub use closed::estimate;
pub use fabric::Fabric;
pub use simulate::simulate;

/// What links and processors cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkCost {
    /// From the end of sending to the start of receiving, in microseconds.
    pub latency_us: f64,
    /// Per message and end, in microseconds.
    pub overhead_us: f64,
    /// Per byte in a port, in microseconds; 0 where messages are memory.
    pub wire_us_per_byte: f64,
    /// Per byte copied into or out of a message, in microseconds.
    pub copy_us_per_byte: f64,
    /// Per byte reduced with another, in microseconds.
    pub reduce_us_per_byte: f64,
    /// Bytes of a full message, at least 1. Should be the same on all links.
    pub slice_bytes: u64,
}
