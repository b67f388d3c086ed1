//! Measures kernels in turns, at each size one after the other.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;

use rustix::fs::{MemfdFlags, memfd_create};
use spark_ccl::{Backend, Builder, Communicator, GpuLayout};
use spark_ccl_config::{KernelEntry, KernelStep, Tuning};
use spark_ccl_console::print;

use crate::call::collective::Collective;
use crate::cli::options::Options;
use crate::error::Error;
use crate::measure::{self, Sink, Team};
use crate::ranks::world::World;
use crate::report::Row;
use crate::tune::fastest::{Point, steps};
use crate::tune::{keep, table};

pub(super) fn run(world: World, builder: &Builder, all: &[Options]) -> Result<u8, Error> {
    measure::in_threads(world, builder, all[0].ranks, |control, each| {
        let (mut entries, mut text) = (Vec::new(), String::new());
        for options in all {
            let Choices { layout, points } = compare(&control, builder, each, options)?;
            let steps = steps(&points);
            if !steps.is_empty() {
                text += &table::summary(options.collective, &steps);
                entries.push(entry(&layout, options.collective, &steps));
            }
        }
        if control.rank() == 0 {
            keep(text, |tuning| {
                for entry in entries {
                    tuning.put_kernels(entry);
                }
            })?;
        }
        control.barrier().run()?;
        Ok(0)
    })
}

/// The times of a collective by each kernel.
struct Choices {
    layout: GpuLayout,
    points: Vec<Point<&'static str>>,
}

/// Measures all sizes of a collective; rank 0 prints the times.
fn compare(
    control: &Communicator,
    builder: &Builder,
    each: usize,
    options: &Options,
) -> Result<Choices, Error> {
    let (layout, kernels) = choices(control, builder, each, options)?;
    let all = kernels.iter();
    let forced = all.map(|kernel| Forced::new(&layout, options.collective, kernel));
    let forced = forced.collect::<Result<Vec<_>, Error>>()?;
    let builders: Vec<_> = forced.iter().map(|file| file.builder(builder)).collect();
    let mut team = Team::connect(control, &builders, each, options)?;
    let mut times = Times {
        kernels: kernels.len(),
        rows: 0,
        best: BTreeMap::new(),
    };
    measure::sweep(control, &mut team, options, &mut times)?;
    let point = |(bytes, times): (u64, Vec<f64>)| Point {
        bytes,
        times: kernels.iter().copied().zip(times).collect(),
    };
    let points: Vec<_> = times.best.into_iter().map(point).collect();
    if control.rank() == 0 {
        let head = table::head(options.collective, kernels.iter());
        let rows = points
            .iter()
            .map(|point| table::row(point, kernels.iter().copied()));
        print(
            &(format!("# Measured among {layout}; times in us\n{head}")
                + &rows.collect::<String>()),
        )?;
    }
    Ok(Choices { layout, points })
}

/// The kernels among which there is a choice, the same on all ranks.
fn choices(
    control: &Communicator,
    builder: &Builder,
    each: usize,
    options: &Options,
) -> Result<(GpuLayout, Vec<&'static str>), Error> {
    let builders = [(Backend::Engine, builder.clone())];
    let team = Team::connect(control, &builders, each, options)?;
    team.kernels(options).ok_or_else(|| {
        Error::NotImplemented(
            "there are no kernels to choose from here: up to 8 ranks of one host, on GPUs of one \
             model, have several"
                .to_owned(),
        )
    })
}

/// A file of measured choices that names a single kernel. It is in memory, and gone with this.
struct Forced(File);

impl Forced {
    fn new(
        layout: &GpuLayout,
        collective: Collective,
        kernel: &'static str,
    ) -> Result<Self, Error> {
        let mut tuning = Tuning::default();
        tuning.put_kernels(entry(layout, collective, &[(0, kernel)]));
        let written = memfd_create("tuning", MemfdFlags::CLOEXEC).map_err(io::Error::from);
        let written = written.and_then(|file| {
            let mut file = File::from(file);
            file.write_all(tuning.text().as_bytes())?;
            Ok(Self(file))
        });
        written.map_err(Error::system("writing measured choices to memory"))
    }

    fn builder(&self, builder: &Builder) -> (Backend, Builder) {
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        let builder = builder.clone().set("SPARK_CCL_TUNING", &path);
        (Backend::Engine, builder)
    }
}

fn entry(layout: &GpuLayout, collective: Collective, steps: &[(u64, &str)]) -> KernelEntry {
    let step = |&(up_to, kernel): &(u64, &str)| KernelStep {
        up_to,
        kernel: kernel.to_owned(),
    };
    KernelEntry {
        layout: layout.clone(),
        collective: collective.operation(),
        steps: steps.iter().map(step).collect(),
    }
}

/// The best times of each kernel, by the bytes of the call's count, in microseconds.
struct Times {
    kernels: usize,
    rows: usize,
    best: BTreeMap<u64, Vec<f64>>,
}

impl Sink for Times {
    /// Kernels take turns at each size.
    fn row(&mut self, row: Row) -> Result<(), Error> {
        let kernel = self.rows % self.kernels;
        self.rows += 1;
        let bytes = row.key.count * size_of::<f32>() as u64;
        let time = f64::midpoint(row.out_of_place.time_us, row.in_place.time_us);
        if bytes > 0 {
            let best = self
                .best
                .entry(bytes)
                .or_insert_with(|| vec![f64::INFINITY; self.kernels]);
            best[kernel] = best[kernel].min(time);
        }
        Ok(())
    }
}
