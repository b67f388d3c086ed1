//! RDMA without the library's links: `spark-perf rdma_bw` and `rdma_lat` measure it between two ranks, `gids` lists
//! what there is.
//!
//! The ranks come from the same sources as all ranks of spark-perf, and exchange what they need
//! with collectives over a communicator. Launchers, failed peers and errors are therefore handled
//! as everywhere. Knows no collective beyond that.

mod args;
mod bandwidth;
mod connect;
mod endpoint;
mod gids;
mod latency;
mod waiter;

use std::fmt::Write as _;
use std::time::Duration;

use spark_ccl::{Communicator, Net};

use crate::cli;
use crate::cli::ranks::RankArgs;
use crate::console::print;
use crate::error::{Error, exit};
use crate::ranks::{
    self,
    world::{self, World},
};
use args::{BandwidthArgs, LatencyArgs};
use endpoint::Endpoint;
pub(crate) use gids::gids;

/// How long a rank waits while the other measures. A rank that dies is noticed at once.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// What the queue pairs and the memory of a measurement must hold.
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
    let settings = cli::settings()?;
    run_both(&args.common.ranks, |comm, ranks_here| {
        let plan = Plan {
            sends: args.depth,
            receives: 2 * args.depth,
            bytes: sweep.last() as usize,
        };
        let endpoints = connect::connect(&comm, &settings, &args.common, plan)?;
        bandwidth::rank(&comm, args, sweep, endpoints, ranks_here)
    })
}

/// Measures latency; returns the exit code.
pub(crate) fn latency(args: &LatencyArgs) -> Result<u8, Error> {
    let sweep = args.sweep()?;
    let settings = cli::settings()?;
    run_both(&args.common.ranks, |comm, _| {
        let plan = Plan {
            sends: 64,
            receives: 64,
            bytes: sweep.last() as usize,
        };
        let endpoints = connect::connect(&comm, &settings, &args.common, plan)?;
        latency::rank(&comm, args, sweep, endpoints)
    })
}

/// Runs `body` as both ranks, each with its communicator and the number of ranks in this process.
fn run_both(
    ranks: &RankArgs,
    body: impl Fn(Communicator, usize) -> Result<u8, Error> + Sync,
) -> Result<u8, Error> {
    let world = World::find(ranks)?;
    let count = world.ranks(ranks)?;
    if count != 2 {
        return Err(Error::Usage(format!(
            "RDMA is measured between 2 ranks, and not {count}"
        )));
    }
    let here = world::local_ranks(ranks)?;
    // The communicator uses TCP, so that the measurement has the ports for itself.
    let builder = Communicator::builder()
        .operation_timeout(OPERATION_TIMEOUT)
        .network(Net::Tcp);
    ranks::run(world, ranks, &builder, |comm| body(comm, here))
}

/// Rank 0 prints its rails.
fn print_rails(comm: &Communicator, what: &str, endpoints: &[Endpoint]) -> Result<(), Error> {
    if comm.rank() != 0 {
        return Ok(());
    }
    let mut text = format!("# {what}\n");
    for (index, endpoint) in endpoints.iter().enumerate() {
        let _ = writeln!(text, "# rail {index}: {}", endpoint.name);
    }
    print(&text)
}

/// The seed of the bytes that a rank sends on an endpoint.
fn seed(size: usize, endpoint: usize, rank: usize) -> u64 {
    ((size * 256 + endpoint) * 2 + rank) as u64 + 1
}

fn exit_code(wrong: u64) -> u8 {
    if wrong == 0 { 0 } else { exit::WRONG }
}
