//! RDMA without the library's links: `spark-perf rdma_bw` and `rdma_lat` measure it between two
//! ranks, `gids` lists ports and addresses.
//!
//! `pair` has the parts that do not depend on RDMA.

mod args;
mod bandwidth;
mod connect;
mod endpoint;
mod gids;
mod latency;
mod waiter;

use args::{BandwidthArgs, LatencyArgs};
pub(crate) use gids::gids;
use spark_ccl_console::settings;

use crate::error::Error;
use crate::pair::{Rank, run_both};

/// The sizes that the queue pairs and the memory of a measurement must hold.
#[derive(Debug, Clone, Copy)]
struct Plan {
    /// The number of requests.
    sends: u32,
    /// The number of messages.
    receives: u32,
    /// The bytes of the largest message.
    bytes: usize,
}

/// Measures bandwidth; returns the exit code.
pub(crate) fn bandwidth(args: &BandwidthArgs) -> Result<u8, Error> {
    let sweep = args.sweep()?;
    let settings = settings()?;
    run_both(&args.common.pair, &settings, |rank| {
        let plan = Plan {
            sends: args.depth,
            receives: 2 * args.depth,
            bytes: sweep.last() as usize,
        };
        let endpoints = connect::connect(&rank, &settings, &args.common, plan)?;
        let Rank { comm, here, .. } = rank;
        bandwidth::rank(&comm, args, sweep, endpoints, here)
    })
}

/// Measures latency; returns the exit code.
pub(crate) fn latency(args: &LatencyArgs) -> Result<u8, Error> {
    let sweep = args.sweep()?;
    let settings = settings()?;
    run_both(&args.common.pair, &settings, |rank| {
        let plan = Plan {
            sends: 64,
            receives: 64,
            bytes: sweep.last() as usize,
        };
        let endpoints = connect::connect(&rank, &settings, &args.common, plan)?;
        latency::rank(&rank.comm, args, sweep, endpoints)
    })
}
