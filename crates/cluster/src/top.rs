//! `spark-perf top`: shows the ranks of a running job, again and again.
//!
//! It asks at the address where the job's processes, or NCCL's, answer. Knows no rank itself.

mod client;
mod table;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::Parser;
use spark_ccl_config::HostPort;
use spark_ccl_console::{print, print_error, settings};
use spark_ccl_status::ras::Report;

use crate::error::Error;

/// Clears a terminal, from its upper left corner.
const CLEAR: &str = "\x1b[H\x1b[J";

const AFTER_HELP: &str = "\
What it shows:
  For each communicator of the process that answers a line for each rank: host
  and process; how many calls it has made, also on device memory, and how many
  in a second. And, of host memory alone: how many collectives it has finished;
  the one that it has entered last; what it waits for, or by how much it is
  late, that is, how long others have waited in a call that it has not entered.
  Also whether it answers, is dead or has left.

Where it asks:
  At --host and --port, or where SPARK_CCL_RAS or NCCL_RAS_ADDR say, or at
  localhost:28028. The job must be started with SPARK_CCL_RAS=1. A job of NCCL
  answers there, too, with less.

Exit codes:
  0 success     2 nobody answers there     6 bad arguments

Examples:
  SPARK_CCL_RAS=1 spark-perf all_reduce -b 1G -e 1G -n 1000 &
  spark-perf top                  until Ctrl-C
  spark-perf top --once           once
  spark-perf top --once --json    NCCL's JSON, and more in spark_ccl";

/// Shows the ranks of a running job.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "spark-perf top",
    after_long_help = AFTER_HELP,
    after_help = "More with --help."
)]
pub(crate) struct TopArgs {
    /// The host to ask
    #[arg(long)]
    host: Option<String>,
    /// The port to ask
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    every: f64,
    /// Seconds that ranks may take to answer
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=60))]
    timeout: u32,
    /// Look once
    #[arg(long)]
    once: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Shows what runs; returns the exit code.
pub(crate) fn run(args: &TopArgs) -> Result<u8, Error> {
    let usual = settings()?.observe.ras_address();
    let address = HostPort {
        host: args.host.clone().unwrap_or(usual.host),
        port: args.port.unwrap_or(usual.port),
    };
    let timeout = Duration::from_secs(args.timeout.into());
    let clears = !args.once && !args.json && std::io::stdout().is_terminal();
    let pause = Duration::from_secs_f64(args.every);
    let mut earlier: Option<(Instant, Report)> = None;
    loop {
        let now = Instant::now();
        let report = match client::ask(&address, timeout) {
            Ok(report) => report,
            // The process that was asked may have ended. If the next one does not answer either,
            // the job has.
            Err(error) if !args.once && earlier.take().is_some() => {
                print_error(format_args!("{error}"));
                std::thread::sleep(pause);
                continue;
            }
            Err(error) => return Err(error),
        };
        let text = if args.json {
            report
                .json()
                .map_err(|error| unreadable(&address, &error))?
        } else {
            let since = earlier.as_ref().map(|(at, report)| (now - *at, report));
            table::table(&report, &address, since)
        };
        print(&if clears {
            format!("{CLEAR}{text}")
        } else {
            text
        })?;
        if args.once {
            return Ok(0);
        }
        earlier = Some((now, report));
        std::thread::sleep(pause);
    }
}

fn unreadable(address: &HostPort, error: &serde_json::Error) -> Error {
    let failed = Error::system(format!("reading what {address} says"));
    failed(std::io::Error::other(error.to_string()))
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if (0.1..=3600.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("expected 0.1 to 3600".to_owned())
    }
}
