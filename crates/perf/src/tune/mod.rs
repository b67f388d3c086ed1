//! `spark-perf tune`: measures which algorithms are fastest, and stores the result for the library.
//!
//! Knows the library's algorithms and its tuning file. Has timing of its own, since it compares calls with each other.

mod args;
mod fastest;
mod measure;
mod table;

use std::path::PathBuf;

use spark_ccl::Communicator;
use spark_ccl_config::{Tuning, TuningEntry};

use crate::call::collective::Collective;
use crate::cli;
use crate::console::{self, print};
use crate::error::Error;
use crate::ranks::{self, world::World};
pub(crate) use args::Args;
use fastest::{Point, steps};
use measure::Comparison;

/// Measures, prints, and writes the file.
pub(crate) fn run(args: &Args) -> Result<u8, Error> {
    args.check()?;
    let world = World::find(&args.ranks)?;
    world.ranks(&args.ranks)?;
    let builder = Communicator::builder();
    ranks::run(world, &args.ranks, &builder, |comm| {
        rank(&comm, args).map(|()| 0)
    })
}

fn rank(comm: &Communicator, args: &Args) -> Result<(), Error> {
    let reports = comm.rank() == 0;
    if reports {
        print(&format!(
            "# Measured among {}; times in us\n",
            comm.layout()
        ))?;
    }
    let mut entries = Vec::new();
    for collective in args.collectives() {
        let points = sweep(comm, args, collective)?;
        entries.extend(entry(comm, collective, &points));
    }
    if reports {
        keep(entries)?;
    }
    comm.barrier().run()?;
    Ok(())
}

/// Measures all sizes of a collective; rank 0 prints each as it is measured.
fn sweep(comm: &Communicator, args: &Args, collective: Collective) -> Result<Vec<Point>, Error> {
    let mut comparison = Comparison::new(comm, collective, args.maxbytes)?;
    let reports = comm.rank() == 0;
    if reports {
        print(&table::head(collective, comparison.algorithms()))?;
    }
    let mut points: Vec<Point> = Vec::new();
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

fn entry(comm: &Communicator, collective: Collective, points: &[Point]) -> Option<TuningEntry> {
    let steps = steps(points);
    (!steps.is_empty()).then(|| TuningEntry {
        layout: comm.layout(),
        collective: collective.operation(),
        steps,
    })
}

/// Adds the entries to this machine's file.
fn keep(entries: Vec<TuningEntry>) -> Result<(), Error> {
    let mut text: String = entries.iter().map(table::summary).collect();
    let Some(path) = file()? else {
        text.push_str("# Not written: SPARK_CCL_TUNING is off, or there is no home to write to\n");
        return print(&text);
    };
    let mut tuning = Tuning::read(&path).unwrap_or_else(|error| {
        console::print_error(format_args!("{} begins anew: {error}", path.display()));
        Tuning::default()
    });
    for entry in entries {
        tuning.put(entry);
    }
    tuning.save(&path).map_err(|error| {
        Error::system(format!("writing {}", path.display()))(std::io::Error::other(error))
    })?;
    let path = path.display();
    print(&format!(
        "{text}# Written to {path}; communicators made from now on use it\n"
    ))
}

/// The file that the library reads.
fn file() -> Result<Option<PathBuf>, Error> {
    Ok(cli::settings()?.tuning)
}
