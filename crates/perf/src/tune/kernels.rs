//! Tuning on GPUs: which kernel of our own is the fastest at which size.
//!
//! Each kernel has communicators of its own, whose file of measured choices names no other one.

use clap::Parser;

use super::TuneArgs;
use crate::call::collective::Collective;
use crate::cli;
use crate::cli::args::BackendArg;
use crate::cli::options::Options;
use crate::error::Error;
use crate::measure::Choice;
use crate::ranks::world::{self, World};

/// The measurement of a collective: its sweep runs several times, and of each size the best time
/// counts.
fn measured(args: &TuneArgs, collective: Collective) -> Result<cli::args::MeasureArgs, Error> {
    let [first, last] = [args.minbytes, args.maxbytes].map(|bytes| bytes.to_string());
    let words = ["spark-perf", collective.name(), "--backend", "engine"];
    let sizes = ["-b", &first, "-e", &last, "-f", "2"];
    let how = ["-G", "5", "-N", "3", "-c", "0"];
    let words = words.into_iter().chain(sizes).chain(how);
    let parsed = cli::args::MeasureArgs::try_parse_from(words);
    let mut parsed = parsed.map_err(|error| Error::usage(error.to_string()))?;
    parsed.ranks = args.ranks.clone();
    Ok(parsed)
}

/// Measures, prints, and writes the file.
pub(super) fn run(args: &TuneArgs) -> Result<u8, Error> {
    let all = args.collectives().into_iter();
    let all = all.map(|collective| measured(args, collective));
    let all = all.collect::<Result<Vec<_>, Error>>()?;
    let choice = Choice::new(&all[0])?;
    let all = all
        .iter()
        .map(|measured| Options::new(&choice.complete(measured)?, BackendArg::Engine));
    let all = all.collect::<Result<Vec<_>, Error>>()?;
    let world = World::find(all[0].ranks)?;
    world.ranks(all[0].ranks)?;
    let builder = world::builder(&all[0].links);
    if let World::Parent { processes } = world {
        return crate::ranks::start(processes, &builder, &[]);
    }
    on_gpus::run(world, &builder, &all)
}

#[cfg(not(feature = "cuda"))]
mod on_gpus {
    use super::{Error, Options, World};

    pub(super) fn run(_: World, _: &spark_ccl::Builder, _: &[Options]) -> Result<u8, Error> {
        unreachable!("only chosen where GPUs were found")
    }
}

#[cfg(feature = "cuda")]
mod on_gpus;
