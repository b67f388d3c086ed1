//! Hosts for tests, written from public descriptions of the machines. One DGX Spark, two with a
//! cable, three in a ring, four at a switch, and a server with eight GPUs.
//!
//! Each is a recorded tree, so a test reads it as a machine is read.

mod recorded;
mod server;
mod sparks;

pub use recorded::Recorded;
pub use server::nvlink_server;
pub use sparks::{pair, ring, spark, switch};

use crate::Host;

/// The hosts of several recorded trees.
pub fn hosts(recorded: &[Recorded]) -> Vec<Host> {
    recorded.iter().map(Recorded::host).collect()
}
