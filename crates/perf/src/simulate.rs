//! `spark-perf simulate`: modelled times by number of ranks and size.
//!
//! Knows the library's schedules and its cost model. Starts no ranks, and measures nothing.

mod args;
mod machine;
mod measured;

use std::fmt::Write as _;

pub(crate) use args::SimulateArgs;
use clap::ValueEnum;
use machine::{Machine, Time};
use measured::Point;
use spark_ccl::Operation;
use spark_ccl_console::{
    notation::size::human,
    plot::{self, Chart, Look, Unit},
    print,
};
use spark_ccl_sched::Algorithm;

use crate::error::Error;
use crate::report::plot::check_name;

/// More ranks than any machine has; more would also take long to model.
const MOST_RANKS: u32 = 1 << 20;
/// Far more than any vector has.
const MOST_BYTES: u64 = 1 << 43;

/// Prints the tables, and draws the plot.
pub(crate) fn run(args: &SimulateArgs) -> Result<u8, Error> {
    let operation = operation(args)?;
    let machine = Machine::new(args, operation)?;
    let algorithms = algorithms(operation, &args.algo)?;
    check(args)?;
    args.plot.as_deref().map(check_name).transpose()?;
    let name = operation.to_string();
    let points = args.measured.as_deref();
    let points = points.map(|path| measured::read(path, &name)).transpose()?;
    print(&header(args, &machine))?;
    let mut rows = Vec::new();
    for bytes in &args.bytes {
        print(&heads(*bytes, &algorithms))?;
        for ranks in &args.ranks {
            let row = Row::new(&machine, &algorithms, *ranks, *bytes)?;
            print(&row.text(&algorithms))?;
            rows.push(row);
        }
    }
    if let Some(points) = points {
        print(&comparison(&machine, &algorithms, &points)?)?;
    }
    if let Some(path) = &args.plot {
        plot::write(path, &chart(args, &algorithms, &rows))?;
    }
    Ok(0)
}

fn operation(args: &SimulateArgs) -> Result<Operation, Error> {
    match args.collective.operation() {
        known @ (Operation::AllReduce | Operation::AllGather) => Ok(known),
        _ => Err(Error::usage(format!(
            "--collective {}: expected all_reduce or all_gather",
            args.collective.name()
        ))),
    }
}

/// The named algorithms; without names, the ones that suit many ranks.
fn algorithms(operation: Operation, names: &[String]) -> Result<Vec<Algorithm>, Error> {
    let known = Algorithm::of(operation).iter().copied();
    let known: Vec<_> = known.filter(|one| *one != Algorithm::OneSided).collect();
    if names.is_empty() {
        return Ok(match operation {
            Operation::AllReduce => vec![
                Algorithm::Ring,
                Algorithm::DoubleTree,
                Algorithm::HalvingDoubling,
                Algorithm::Hierarchical,
            ],
            _ => known,
        });
    }
    let names_of = |all: &[Algorithm]| {
        let names: Vec<_> = all.iter().map(ToString::to_string).collect();
        names.join(", ")
    };
    let find = |name: &String| {
        let algorithm = name.trim().parse().ok();
        algorithm
            .filter(|algorithm| known.contains(algorithm))
            .ok_or_else(|| Error::usage(format!("--algo {name}: expected {}", names_of(&known))))
    };
    names.iter().map(find).collect()
}

fn check(args: &SimulateArgs) -> Result<(), Error> {
    if let Some(ranks) = args
        .ranks
        .iter()
        .find(|ranks| !(2..=MOST_RANKS).contains(*ranks))
    {
        return Err(Error::usage(format!(
            "--ranks {ranks}: expected 2 to {MOST_RANKS}"
        )));
    }
    if let Some(bytes) = args
        .bytes
        .iter()
        .find(|bytes| !(1..=MOST_BYTES).contains(*bytes))
    {
        return Err(Error::usage(format!("--bytes {bytes}: expected 1 to 8T")));
    }
    Ok(())
}

/// The modelled times of one size for one number of ranks.
struct Row {
    operation: Operation,
    ranks: u32,
    bytes: u64,
    times: Vec<Time>,
}

impl Row {
    fn new(
        machine: &Machine,
        algorithms: &[Algorithm],
        ranks: u32,
        bytes: u64,
    ) -> Result<Self, Error> {
        let times = algorithms.iter();
        let times: Result<_, _> = times
            .map(|algorithm| machine.time(*algorithm, ranks, bytes))
            .collect();
        Ok(Self {
            operation: machine.operation,
            ranks,
            bytes,
            times: times?,
        })
    }

    fn text(&self, algorithms: &[Algorithm]) -> String {
        let mut text = format!("{:>10}", self.ranks);
        for time in &self.times {
            let bus_bw = bus_bw(self.operation, self.ranks, self.bytes, time.us);
            let _ = write!(text, "  {time:>12} {bus_bw:>8.2}");
        }
        let _ = writeln!(text, "  {}", self.best(algorithms));
        text
    }

    fn best(&self, algorithms: &[Algorithm]) -> String {
        let all = algorithms.iter().zip(&self.times);
        all.min_by(|(_, a), (_, b)| a.us.total_cmp(&b.us))
            .map_or_else(String::new, |(algorithm, _)| algorithm.to_string())
    }
}

/// Bus bandwidth in GB/s, as in the measured tables.
fn bus_bw(operation: Operation, ranks: u32, bytes: u64, us: f64) -> f64 {
    let ranks = f64::from(ranks);
    let turns = if operation == Operation::AllReduce {
        2.0
    } else {
        1.0
    };
    turns * (ranks - 1.0) / ranks * bytes as f64 / us * 1e-3
}

fn header(args: &SimulateArgs, machine: &Machine) -> String {
    format!(
        "# {} on {}, {} path, MODELLED, not measured: {machine}\n# Up to {} ranks every message is \
         simulated; ~ marks closed forms. Times in us, busbw in GB/s.\n",
        machine.operation,
        value_name(&args.topology),
        value_name(&args.path),
        args.exact
    )
}

/// The value's name on the command line.
fn value_name(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

fn heads(bytes: u64, algorithms: &[Algorithm]) -> String {
    let names = names(algorithms);
    format!("#\n# {}\n#{:>9}{names}  best\n", human(bytes), "ranks")
}

/// The algorithms' names, each above a time and a bandwidth.
fn names(algorithms: &[Algorithm]) -> String {
    let names: Vec<_> = algorithms.iter().map(|a| format!("  {a:>21}")).collect();
    names.concat()
}

/// Measured times, each with the model's time for the same run.
fn comparison(
    machine: &Machine,
    algorithms: &[Algorithm],
    points: &[Point],
) -> Result<String, Error> {
    let mut text = format!(
        "#\n# Measured, and modelled / measured\n#{:>9}  {:>10}  {:>8}  {:>12}{}\n",
        "ranks",
        "size",
        "type",
        "measured",
        names(algorithms)
    );
    for point in points {
        let _ = write!(
            text,
            "{:>10}  {:>10}  {:>8}  {:>12.1}",
            point.ranks,
            human(point.bytes).replace(' ', ""),
            point.dtype,
            point.us
        );
        for time in &Row::new(machine, algorithms, point.ranks, point.bytes)?.times {
            let _ = write!(text, "  {time:>12} {:>7.2}x", time.us / point.us);
        }
        text.push('\n');
    }
    Ok(text)
}

/// One line per algorithm (and size, if there are several) against the number of ranks; against the
/// size, if there is only one number of ranks.
fn chart(args: &SimulateArgs, algorithms: &[Algorithm], rows: &[Row]) -> Chart {
    let by_size = args.ranks.len() == 1;
    let named = args.bytes.len() > 1 && !by_size;
    let mut series = Vec::new();
    for row in rows {
        for (number, (algorithm, time)) in algorithms.iter().zip(&row.times).enumerate() {
            let (name, color) = if named {
                let size = args.bytes.iter().position(|bytes| *bytes == row.bytes);
                let color = size.unwrap_or_default() * algorithms.len() + number;
                (format!("{algorithm}, {}", human(row.bytes)), color)
            } else {
                (algorithm.to_string(), number)
            };
            let look = Look {
                color,
                dashed: false,
            };
            let x = if by_size {
                row.bytes as f64
            } else {
                f64::from(row.ranks)
            };
            let point = plot::Point {
                x,
                time_us: time.us,
                bus_bw: bus_bw(row.operation, row.ranks, row.bytes, time.us),
            };
            plot::add(&mut series, name, look, point);
        }
    }
    let fixed = match (&args.bytes[..], &args.ranks[..]) {
        (_, [ranks]) => format!(", {ranks} ranks"),
        ([bytes], _) => format!(", {}", human(*bytes)),
        _ => String::new(),
    };
    Chart {
        title: format!(
            "{} on {}{fixed}, modelled",
            args.collective.name(),
            value_name(&args.topology)
        ),
        across: if by_size { Unit::Bytes } else { Unit::Ranks },
        series,
    }
}
