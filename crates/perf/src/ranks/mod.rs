//! Where the ranks of a run come from, how they run, and what they tell each other about themselves.
//!
//! Knows the flags that say how many ranks there are. Must not know what the ranks do.

pub(crate) mod hosts;
pub(crate) mod spawn;
pub(crate) mod world;

use spark_ccl::{Builder, Communicator};

use crate::cli::ranks::RankArgs;
use crate::console;
use crate::error::Error;
use world::World;

/// Runs `body` as each rank of the world; returns the exit code.
pub(crate) fn run<F>(
    world: World,
    ranks: &RankArgs,
    builder: &Builder,
    body: F,
) -> Result<u8, Error>
where
    F: Fn(Communicator) -> Result<u8, Error> + Sync,
{
    if let World::Parent { processes } = world {
        return spawn::launch(processes, &builder.unique_id()?, &[]);
    }
    Ok(report(world::run(world, ranks, builder, body)?))
}

/// Prints the ranks' errors; returns the exit code of the first rank that failed.
pub(crate) fn report(results: world::Results<u8>) -> u8 {
    let mut code = 0;
    for (rank, result) in results {
        let own = match &result {
            Ok(code) => *code,
            Err(error) => {
                // Bad arguments are the same on every rank.
                if rank == 0 || !matches!(error, Error::Usage(_)) {
                    console::print_error(format_args!("rank {rank}: {error}"));
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
