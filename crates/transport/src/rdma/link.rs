//! Links over RDMA: reliable connections between the ports of two hosts.
//!
//! Each end has memory that the other writes: as many slots as messages may be in flight. The
//! sender fills a slot of its own, and has the device write it, header and payload in one piece, to
//! the peer's slot with the same index. An immediate value tells which message has arrived. Memory
//! is not polled for this: the completion comes once the whole message is there. The receiver gives
//! out its slot, and later sends back how far it has read, as an immediate value without data.
//!
//! A link has one queue pair for each rail. A message takes the rail with the fewest bytes in
//! flight, so that each rail carries what it can. Messages may therefore overtake each other, and
//! are put in order by their numbers. A rail that fails is dropped, and the others carry what it
//! has not delivered, until it works again. The polls of the link's users see to that, and where
//! nobody polls, a thread does ([`keep_polled`]).
//!
//! A long message whose payload is in registered memory ([`Registry`](super::Registry)) is lent.
//! The message holds the payload's address, and the receiver has its device read the payload. It
//! goes directly into registered memory of the receiver, or into the message's slot if it is to be
//! peeked at.
//!
//! A rank can also open registered memory to its peer, which then [puts](crate::LinkTx::put) data
//! there by plain writes, of which this end hears nothing.
//!
//! # Trust
//! The peer may write anything into the slots that it fills, at any time, and send any immediate
//! value. Numbers and lengths are checked, so the worst that a peer can do is to send wrong bytes.

mod connect;
mod control;
mod core;
#[cfg(test)]
mod cost;
mod depths;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod immediate;
mod lent;
mod message;
mod nics;
mod offer;
mod opened;
mod order;
mod pace;
mod plan;
mod rail;
mod report;
mod returns;
mod rx;
mod slots;
mod tx;
mod unconnected;

pub use connect::connect;
pub use nics::Nics;
pub use offer::{NoLink, Wait};
pub use rx::Rx;
pub use tx::{Tx, keep_polled};

#[cfg(test)]
mod tests;
