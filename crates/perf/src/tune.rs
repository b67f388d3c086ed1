//! `spark-perf tune`: measures which algorithms and kernels are fastest, and stores the result for
//! the library.
//!
//! Knows the library's algorithms and its tuning file. Has timing of its own in host memory, since
//! it compares calls with each other; on GPUs (`kernels`), it has `measure` take turns.

mod args;
mod fastest;
mod kernels;
mod measure;
mod table;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use args::BackendArg;
pub(crate) use args::TuneArgs;
use fastest::{Point, steps};
use measure::Comparison;
use spark_ccl::Communicator;
use spark_ccl_config::{Tuning, TuningEntry, TuningStep};
use spark_ccl_console::{print, print_error, settings};
use spark_ccl_sched::Algorithm;

use crate::call::collective::Collective;
use crate::error::Error;
use crate::ranks::{self, world::World};

/// The time limit for reading the file, which may be a pipe.
const PATIENCE: Duration = Duration::from_secs(5);

/// Measures, prints, and writes the file.
pub(crate) fn run(args: &TuneArgs) -> Result<u8, Error> {
    args.check()?;
    if args.backend == BackendArg::Engine {
        return kernels::run(args);
    }
    let counts = args.ranks.checked()?;
    let world = World::find(counts)?;
    world.ranks(counts)?;
    let builder = Communicator::builder();
    ranks::run(world, counts, &builder, |comm| {
        rank(&comm, args).map(|()| 0)
    })
}

fn rank(comm: &Communicator, args: &TuneArgs) -> Result<(), Error> {
    let reports = comm.rank() == 0;
    if reports {
        print(&format!(
            "# Measured among {}; times in us\n",
            comm.layout()
        ))?;
    }
    let (mut entries, mut text) = (Vec::new(), String::new());
    for collective in args.collectives() {
        let steps = steps(&sweep(comm, args, collective)?);
        if !steps.is_empty() {
            text += &table::summary(collective, &steps);
            entries.push(entry(comm, collective, steps));
        }
    }
    if reports {
        keep(text, |tuning| {
            for entry in entries {
                tuning.put(entry);
            }
        })?;
    }
    comm.barrier().run()?;
    Ok(())
}

/// Measures all sizes of a collective; rank 0 prints each as it is measured.
fn sweep(
    comm: &Communicator,
    args: &TuneArgs,
    collective: Collective,
) -> Result<Vec<Point<Algorithm>>, Error> {
    let mut comparison = Comparison::new(comm, collective, args.maxbytes)?;
    let reports = comm.rank() == 0;
    if reports {
        print(&table::head(collective, comparison.algorithms()))?;
    }
    let mut points: Vec<Point<Algorithm>> = Vec::new();
    for size in args.sweep().sizes() {
        let point = comparison.measure(size)?;
        // A rank's share is rounded, so small sizes may be empty, or equal to the one before.
        if points.last().map_or(0, |last| last.bytes) >= point.bytes {
            continue;
        }
        if reports {
            print(&table::row(&point, comparison.algorithms()))?;
        }
        points.push(point);
    }
    Ok(points)
}

fn entry(comm: &Communicator, collective: Collective, steps: Vec<(u64, Algorithm)>) -> TuningEntry {
    let steps = steps.into_iter();
    TuningEntry {
        layout: comm.layout(),
        collective: collective.operation(),
        steps: steps
            .map(|(up_to, algorithm)| TuningStep { up_to, algorithm })
            .collect(),
    }
}

/// Adds entries to this machine's file, and says so below a text.
fn keep(mut text: String, add: impl FnOnce(&mut Tuning)) -> Result<(), Error> {
    let Some(path) = file()? else {
        text.push_str("# Not written: SPARK_CCL_TUNING is off, or there is no home to write to\n");
        return Ok(print(&text)?);
    };
    let mut tuning = Tuning::read(&path, Instant::now() + PATIENCE).unwrap_or_else(|error| {
        print_error(format_args!("{} begins anew: {error}", path.display()));
        Tuning::default()
    });
    add(&mut tuning);
    tuning.save(&path).map_err(|error| {
        Error::system(format!("writing {}", path.display()))(std::io::Error::other(error))
    })?;
    let path = path.display();
    let text = format!("{text}# Written to {path}; communicators made from now on use it\n");
    Ok(print(&text)?)
}

/// The file that the library reads.
fn file() -> Result<Option<PathBuf>, Error> {
    Ok(settings()?.tuning)
}
