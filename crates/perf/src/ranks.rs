//! Where the ranks of a run come from, how they run, and what they tell each other about
//! themselves.
//!
//! Knows how many ranks flags ask for. Must not know what the ranks do.

pub(crate) mod hosts;
pub(crate) mod world;

use std::os::unix::process::CommandExt;
use std::process::Command;

use spark_ccl::{Builder, Communicator};
use spark_ccl_console::{Failure, print_error};
use world::World;

use crate::cli::ranks::RankCounts;
use crate::error::Error;
use crate::spawn;

/// Runs `body` as each rank of the world; returns the exit code.
pub(crate) fn run<F>(
    world: World,
    counts: RankCounts,
    builder: &Builder,
    body: F,
) -> Result<u8, Error>
where
    F: Fn(Communicator) -> Result<u8, Error> + Sync,
{
    if let World::Parent { processes } = world {
        return start(processes, builder, &[]);
    }
    Ok(report(world::run(world, counts, builder, body)?))
}

/// Starts this program's command line as several processes, with the further arguments `more`;
/// returns the exit code for all.
pub(crate) fn start(processes: usize, builder: &Builder, more: &[String]) -> Result<u8, Error> {
    let command = || {
        let mut arguments = std::env::args_os();
        let name = arguments.next().unwrap_or_else(|| "spark-perf".into());
        let mut command = Command::new("/proc/self/exe");
        command.arg0(name).args(arguments).args(more);
        command
    };
    spawn::run(processes, &builder.unique_id()?, command)
}

/// Prints the ranks' errors; returns the exit code of the first rank that failed.
pub(crate) fn report(results: world::Results<u8>) -> u8 {
    let mut code = 0;
    for (rank, result) in results {
        let own = match &result {
            Ok(code) => *code,
            Err(error) => {
                // Bad arguments are the same on every rank.
                if rank == 0 || !matches!(error, Error::Common(spark_ccl_console::Error::Usage(_)))
                {
                    print_error(format_args!("rank {rank}: {error}"));
                }
                error.exit_code()
            }
        };
        if code == 0 {
            code = own;
        }
    }
    code
}
