//! Links over RDMA: reliable connections between the ports of two hosts.
//!
//! Each end has memory that the other writes: for every channel, slots, as many as messages may be on
//! their way. The sender fills a slot of its own and has the device write it, header and payload in one
//! piece, to the peer's slot of the same place, with a number that says which message of which channel
//! has arrived. Nobody looks at memory to learn that; the device says it once all of the message is
//! there. The receiver lends its slot, and then sends back how far it has read, by a number alone.
//!
//! A link has one queue pair for each rail. A message goes by the rail that has the fewest bytes on
//! their way, so that rails carry what they can; messages overtake each other then, and are put in
//! order by their numbers. A rail that fails is dropped, and the others carry what it has not, until it
//! carries again.
//!
//! A long message whose payload lies in registered memory ([`Registry`](super::Registry)) is lent: the
//! message says where that is, and the receiver has its device read it, straight to registered memory of
//! its own, or to the message's slot where it is to be looked at.
//!
//! # Trust
//! The peer may write anything into its slots here at any time, and send any number. Numbers and
//! lengths are checked, so that the worst that a peer can do is to send wrong bytes.

mod connect;
mod control;
mod core;
#[cfg(test)]
mod cost;
mod depths;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod immediate;
mod lane;
mod lent;
mod message;
mod nics;
mod offer;
mod order;
mod pace;
mod plan;
mod rail;
mod report;
mod returns;
mod rx;
mod slots;
mod tx;

pub use connect::connect;
pub use nics::Nics;
pub use offer::{NoLink, Wait};
pub use rx::Rx;
pub use tx::Tx;

#[cfg(test)]
mod tests;
