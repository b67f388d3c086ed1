//! RDMA ports, as ranks describe them to each other, and the rails between two ranks.

mod exchange;
mod port;
mod rails;

pub(crate) use exchange::shorten;
pub use exchange::{ExchangeError, MAX_BYTES, decode, encode};
pub use port::{Gid, Port, Roce, Unusable};
pub use rails::{Candidate, NoRail, Rail, RailEnd, candidates, choose};
