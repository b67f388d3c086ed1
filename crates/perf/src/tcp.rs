//! `spark-perf tcp_bw`: TCP between two ranks over pairs of network interfaces, without the
//! library's links.
//!
//! `pair` has the parts that do not depend on TCP.

mod args;
mod bandwidth;
mod connect;
mod connections;
mod stream;

pub(crate) use args::TcpArgs;
use spark_ccl_console::settings;

use crate::error::Error;
use crate::pair::run_both;

/// Measures bandwidth, and the round trip of each rail; returns the exit code.
pub(crate) fn run(args: &TcpArgs) -> Result<u8, Error> {
    let sweep = args.sweep()?;
    let settings = settings()?;
    run_both(&args.pair, &settings, |rank| {
        let lanes = connect::connect(&rank.comm, &settings, args)?;
        bandwidth::measure(&rank, args, sweep, &lanes)
    })
}
