//! Measures a collective: the command without a name.
//!
//! `run` is what each thread does: `bench` goes through types, operations, roots and sizes, on a platform, `host` or
//! `device`. Only these two know in which memory calls run. How results are written is left to `report`, and how ranks
//! start to `ranks`.

mod backend;
mod bench;
#[cfg(feature = "cuda")]
mod device;
mod header;
mod host;
#[cfg(feature = "cuda")]
mod nccl;
mod run;
pub(crate) mod timing;

use spark_ccl::Builder;

use crate::cli::args::{Args, BackendArg};
use crate::cli::options::Options;
use crate::error::Error;
use crate::memory;
use crate::ranks;
use crate::ranks::world::{self, World};
use backend::Choice;
use host::Host;

/// Measures, or starts the processes that do; returns the exit code.
pub(crate) fn run(args: &Args) -> Result<u8, Error> {
    let choice = Choice::new(args)?;
    let args = &choice.complete(args)?;
    let mut options = Options::new(args, choice.backend)?;
    options.notes.extend(choice.note.clone());
    let world = World::find(&args.ranks)?;
    let count = world.ranks(&args.ranks)?;
    options.check_ranks(count)?;
    if world.process() == 0 {
        run::check_files(args)?;
    }
    let host = choice.backend == BackendArg::Host;
    if host && matches!(world, World::Parent { .. } | World::Alone) {
        check_memory(&options, count)?;
    }
    let builder = world::builder(args);
    if let World::Parent { processes } = world {
        return ranks::start(processes, &builder, &choice.child_arguments());
    }
    if host {
        return ranks::run(world, &args.ranks, &builder, |comm| {
            choice.agree(&comm)?;
            run::thread(&comm, &mut Host::new(&comm)?, args, &options)
        });
    }
    on_gpus(world, &builder, args, &options, &choice)
}

/// Refuses a run for which this host has too little memory, before any of its ranks starts.
fn check_memory(options: &Options, ranks: usize) -> Result<(), Error> {
    let limits = vec![memory::limits(); ranks];
    let need = |bytes| host::need(options, ranks, bytes);
    memory::clamp(options.sweep, &limits, need)
        .map(drop)
        .map_err(Error::Usage)
}

/// Every thread is a rank among the threads, and has `ngpus` GPUs.
#[cfg(feature = "cuda")]
fn on_gpus(
    world: World,
    builder: &Builder,
    args: &Args,
    options: &Options,
    choice: &Choice,
) -> Result<u8, Error> {
    let threads = crate::cli::ranks::RankArgs {
        ngpus: Some(1),
        ..args.ranks.clone()
    };
    let each = args.ranks.ngpus.unwrap_or(1);
    let results = world::run(world, &threads, builder, |comm| {
        choice.agree(&comm)?;
        let mut team = device::Team::connect(&comm, builder, each, options)?;
        run::thread(&comm, &mut team, args, options)
    })?;
    // Errors name a thread by its first rank.
    let results = results.into_iter();
    Ok(ranks::report(
        results
            .map(|(thread, result)| (thread * each, result))
            .collect(),
    ))
}

#[cfg(not(feature = "cuda"))]
fn on_gpus(_: World, _: &Builder, _: &Args, _: &Options, _: &Choice) -> Result<u8, Error> {
    unreachable!("only chosen where GPUs were found")
}
