//! Measures a collective: the command without a name.
//!
//! `run` is what each thread does: `bench` goes through types, operations, roots and sizes, on a
//! platform, `host` or `device`. Only these two know in which memory calls run. How results are
//! written is left to `report`, and how ranks start to `ranks`.

mod backend;
mod bench;
#[cfg(feature = "cuda")]
mod device;
mod header;
mod host;
#[cfg(feature = "cuda")]
mod nccl;
mod progress;
mod run;
pub(crate) mod timing;

pub(crate) use backend::Choice;
#[cfg(feature = "cuda")]
pub(crate) use bench::{Sink, run as sweep};
#[cfg(feature = "cuda")]
pub(crate) use device::Team;
use host::Host;
use spark_ccl::Builder;
#[cfg(feature = "cuda")]
use spark_ccl::Communicator;

use crate::cli::args::{BackendArg, MeasureArgs};
use crate::cli::options::Options;
#[cfg(feature = "cuda")]
use crate::cli::ranks::RankCounts;
use crate::error::Error;
use crate::limits;
use crate::ranks;
use crate::ranks::world::{self, World};

/// Measures, or starts the processes that do; returns the exit code.
pub(crate) fn run(args: &MeasureArgs) -> Result<u8, Error> {
    let choice = Choice::new(args)?;
    let mut options = Options::new(&choice.complete(args)?, choice.backend)?;
    options.notes.extend(choice.note.clone());
    let world = World::find(options.ranks)?;
    let count = world.ranks(options.ranks)?;
    options.check_ranks(count)?;
    if count == 1 {
        let hint = "--procs 2, or spark-perf launch with -H localhost:2 or --local 2, starts two";
        options
            .notes
            .push(format!("1 rank: nothing is exchanged; {hint}"));
    }
    if world.process() == 0 {
        run::check_files(&options.reports)?;
    }
    let host = choice.backend == BackendArg::Host;
    if host && matches!(world, World::Parent { .. } | World::Alone) {
        check_memory(&options, count)?;
    }
    let builder = world::builder(&options.links);
    if let World::Parent { processes } = world {
        return ranks::start(processes, &builder, &choice.child_arguments());
    }
    if host {
        return ranks::run(world, options.ranks, &builder, |comm| {
            choice.agree(&comm)?;
            run::thread(&comm, &mut Host::new(&comm)?, &options)
        });
    }
    on_gpus(world, &builder, &options, &choice)
}

/// Refuses a run for which this host has too little memory, before any of its ranks starts.
fn check_memory(options: &Options, ranks: usize) -> Result<(), Error> {
    let limits = vec![limits::here(); ranks];
    let need = |bytes| host::need(options, ranks, bytes);
    limits::clamp(options.sweep, &limits, need)
        .map(drop)
        .map_err(Error::usage)
}

/// Every thread has `ngpus` GPUs.
#[cfg(feature = "cuda")]
fn on_gpus(
    world: World,
    builder: &Builder,
    options: &Options,
    choice: &Choice,
) -> Result<u8, Error> {
    in_threads(world, builder, options.ranks, |comm, each| {
        choice.agree(&comm)?;
        let backends = options.backends.iter();
        let builders: Vec<_> = backends
            .map(|&backend| (backend, builder.clone()))
            .collect();
        let mut team = Team::connect(&comm, &builders, each, options)?;
        run::thread(&comm, &mut team, options)
    })
}

/// Runs `body` in each thread, which is a rank among the threads; it gets the number of its GPUs.
#[cfg(feature = "cuda")]
pub(crate) fn in_threads(
    world: World,
    builder: &Builder,
    counts: RankCounts,
    body: impl Fn(Communicator, usize) -> Result<u8, Error> + Sync,
) -> Result<u8, Error> {
    let threads = RankCounts {
        each: Some(1),
        ..counts
    };
    let each = counts.each();
    let results = world::run(world, threads, builder, |comm| body(comm, each))?;
    // Errors name a thread by its first rank.
    let results = results.into_iter();
    Ok(ranks::report(
        results
            .map(|(thread, result)| (thread * each, result))
            .collect(),
    ))
}

#[cfg(not(feature = "cuda"))]
fn on_gpus(_: World, _: &Builder, _: &Options, _: &Choice) -> Result<u8, Error> {
    unreachable!("only chosen where GPUs were found")
}
