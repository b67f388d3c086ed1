//! RDMA between hosts: the local ports, the rails to a peer, and links over them.

mod exchange;
pub mod link;
mod local;
mod port;
mod rails;
mod registry;

pub use exchange::{ExchangeError, decode, encode};
pub use local::{LocalDevice, LocalPort, devices, library};
pub use port::{Gid, Port, Roce, Unusable};
pub use rails::{Candidate, End, NoRail, Rail, candidates, choose};
pub use registry::{Keys, Memory, Registration, Registry};
