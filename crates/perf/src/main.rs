//! spark-perf measures collectives, with the flags, the table and the checks of nccl-tests.

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod args;
mod backend;
mod bench;
mod buffer;
mod check;
mod clock;
mod collective;
mod console;
mod error;
mod exact;
mod gids;
mod host;
mod hosts;
mod invocation;
mod memory;
#[cfg(feature = "cuda")]
mod nccl;
mod op;
mod options;
mod pair;
mod progress;
mod ranks;
mod rdma;
mod report;
mod run;
mod simulate;
mod size;
mod spawn;
mod stats;
mod sweep;
mod timing;
mod tune;
mod uneven;
mod world;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, BackendArg};
use backend::Choice;
use error::{Error, exit};
use host::Host;
use options::Options;
use ranks::RankArgs;
use spark_ccl::{Builder, Communicator};
use spark_ccl_config::{Env, Settings};
use world::World;

fn main() -> ExitCode {
    // nccl-tests' flags leave no room for clap's subcommands, but no collective has one of these
    // names.
    let arguments = std::env::args_os().skip(1);
    match std::env::args_os().nth(1) {
        Some(word) if word == "simulate" => {
            outcome(simulate::Args::try_parse_from(arguments), |args| {
                simulate::run(args).map(|()| 0)
            })
        }
        Some(word) if word == "gids" => outcome(gids::Args::try_parse_from(arguments), |_| {
            gids::run(&settings()?).map(|()| 0)
        }),
        Some(word) if word == "rdma_bw" => outcome(
            rdma::BandwidthArgs::try_parse_from(arguments),
            rdma::bandwidth,
        ),
        Some(word) if word == "rdma_lat" => {
            outcome(rdma::LatencyArgs::try_parse_from(arguments), rdma::latency)
        }
        Some(word) if word == "tune" => outcome(tune::Args::try_parse_from(arguments), tune::run),
        _ => outcome(Args::try_parse(), start),
    }
}

/// Runs `run` with the arguments, if they are valid.
fn outcome<A>(args: Result<A, clap::Error>, run: impl FnOnce(&A) -> Result<u8, Error>) -> ExitCode {
    let args = match args {
        Ok(args) => args,
        Err(error) => {
            // A failure to print cannot be reported.
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
            console::print_error(format_args!("{error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

fn start(args: &Args) -> Result<u8, Error> {
    let choice = Choice::new(args)?;
    let args = &choice.complete(args)?;
    let mut options = Options::new(args, choice.backend)?;
    options.notes.extend(choice.note.clone());
    let world = World::find(&args.ranks)?;
    let ranks = world.ranks(&args.ranks)?;
    options.check_ranks(ranks)?;
    if world.process() == 0 {
        run::check_files(args)?;
    }
    let host = choice.backend == BackendArg::Host;
    if host && matches!(world, World::Parent { .. } | World::Alone) {
        run::check_memory(&options, ranks)?;
    }
    let builder = world::builder(args);
    if let World::Parent { processes } = world {
        return spawn::launch(processes, &builder.unique_id()?, &choice.child_arguments());
    }
    if host {
        return run_ranks(world, &args.ranks, &builder, |comm| {
            choice.agree(&comm)?;
            run::thread(&comm, &mut Host::new(&comm)?, args, &options)
        });
    }
    on_gpus(world, &builder, args, &options, &choice)
}

/// With NCCL: every thread is a rank among the threads, and has `ngpus` GPUs.
#[cfg(feature = "cuda")]
fn on_gpus(
    world: World,
    builder: &Builder,
    args: &Args,
    options: &Options,
    choice: &Choice,
) -> Result<u8, Error> {
    let threads = RankArgs {
        ngpus: Some(1),
        ..args.ranks.clone()
    };
    let each = args.ranks.ngpus.unwrap_or(1);
    let results = world::run(world, &threads, builder, |comm| {
        choice.agree(&comm)?;
        let mut team = nccl::Team::connect(&comm, builder, each, options)?;
        run::thread(&comm, &mut team, args, options)
    })?;
    // Errors name a thread by its first rank.
    let results = results.into_iter();
    Ok(report(
        results
            .map(|(thread, result)| (thread * each, result))
            .collect(),
    ))
}

#[cfg(not(feature = "cuda"))]
fn on_gpus(_: World, _: &Builder, _: &Args, _: &Options, _: &Choice) -> Result<u8, Error> {
    unreachable!("only chosen where GPUs were found")
}

/// Runs `body` as each rank of the world; returns the exit code.
fn run_ranks<F>(world: World, ranks: &RankArgs, builder: &Builder, body: F) -> Result<u8, Error>
where
    F: Fn(Communicator) -> Result<u8, Error> + Sync,
{
    if let World::Parent { processes } = world {
        return spawn::launch(processes, &builder.unique_id()?, &[]);
    }
    Ok(report(world::run(world, ranks, builder, body)?))
}

/// Prints the ranks' errors; returns the exit code of the first rank that failed.
fn report(results: world::Results<u8>) -> u8 {
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

/// The settings from this process's environment.
fn settings() -> Result<Settings, Error> {
    Settings::from_env(&Env::from_process()).map_err(|error| Error::Usage(error.to_string()))
}
