//! spark-perf measures collectives, with the flags, table and checks of nccl-tests.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod args;
mod bench;
mod buffer;
mod check;
mod clock;
mod collective;
mod console;
mod error;
mod exact;
mod hosts;
mod invocation;
mod memory;
mod op;
mod options;
mod progress;
mod report;
mod run;
mod simulate;
mod size;
mod spawn;
mod stats;
mod sweep;
mod timing;
mod uneven;
mod world;

use std::process::ExitCode;

use clap::Parser;

use args::Args;
use error::{Error, exit};
use options::Options;
use world::World;

fn main() -> ExitCode {
    // nccl-tests' flags leave no room for subcommands, but its collectives have other names.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == "simulate")
    {
        let args = std::env::args_os().skip(1);
        return outcome(simulate::Args::try_parse_from(args), |args| {
            simulate::run(args).map(|()| 0)
        });
    }
    outcome(Args::try_parse(), start)
}

/// Runs with the arguments, if they can be read.
fn outcome<A>(args: Result<A, clap::Error>, run: impl FnOnce(&A) -> Result<u8, Error>) -> ExitCode {
    let args = match args {
        Ok(args) => args,
        Err(error) => {
            // Nothing can be done about a closed terminal.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(exit::USAGE)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    match run(&args) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            console::complain(format_args!("{error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

fn start(args: &Args) -> Result<u8, Error> {
    let options = Options::new(args)?;
    let world = World::find(args)?;
    let ranks = world.ranks(args)?;
    options.check_ranks(ranks)?;
    if world.process() == 0 {
        run::check_files(args)?;
    }
    if matches!(world, World::Parent { .. } | World::Alone) {
        run::check_memory(&options, ranks)?;
    }
    if let World::Parent { processes } = world {
        let id = world::builder(args).unique_id()?;
        return spawn::launch(processes, &id);
    }
    let results = world::run(world, args, |comm| run::rank(&comm, args, &options))?;
    Ok(report(results))
}

/// Prints the ranks' errors; the exit code of the first that did not succeed.
fn report(results: world::Results<u8>) -> u8 {
    let mut code = 0;
    for (rank, result) in results {
        let own = match &result {
            Ok(code) => *code,
            Err(error) => {
                // Bad arguments are the same on every rank.
                if rank == 0 || !matches!(error, Error::Usage(_)) {
                    console::complain(format_args!("rank {rank}: {error}"));
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
