//! Runs the sweep: every type, operation, root and size.

use spark_ccl::{Backend, Communicator, DType, Element, RedOp, ReduceOp};

use crate::call::invocation::{BufferMode, Case};
use crate::call::op;
use crate::cli::options::Options;
use crate::error::Error;
use crate::limits::MemoryLimit;
use crate::measure::timing::Timed;
use crate::ranks::hosts::reduce;
use crate::report::{Device, Key, Measure, Row};

/// Receives the rows as they are measured. Ranks other than 0 drop them.
pub(crate) trait Sink {
    /// Called for each complete row of the table.
    fn row(&mut self, row: Row) -> Result<(), Error>;
}

/// The summary of a run.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// The number of checks, over all ranks, that found wrong elements.
    pub(crate) out_of_bounds: u64,
    bus_bw: f64,
    measures: u64,
}

impl Findings {
    /// The mean bus bandwidth of all measurements, in GB/s.
    pub(crate) fn average_bus_bw(&self) -> f64 {
        if self.measures == 0 {
            0.0
        } else {
            self.bus_bw / self.measures as f64
        }
    }
}

/// The memory and the ranks with which calls are measured.
pub(crate) trait Platform {
    /// The number of ranks.
    fn ranks(&self) -> usize;

    /// A name such as `host memory`.
    fn name(&self) -> String;

    /// The description of the memory in the JSON report.
    fn memory(&self, options: &Options) -> &'static str;

    /// The version of NCCL, if NCCL executes the calls.
    fn nccl_version(&self) -> Option<&str>;

    /// Whether all ranks support an element type.
    fn supports(&self, dtype: DType) -> bool;

    /// The header's line for each rank.
    fn devices(&self) -> &[Device];

    /// Further lines of the header, which describe what these sizes use.
    fn lines(&self, options: &Options, sizes: &[u64]) -> Result<Vec<String>, Error>;

    /// The memory limits of each rank.
    fn limits(&self) -> &[Vec<MemoryLimit>];

    /// The bytes of a rank's buffers if the largest size is `bytes`.
    fn need(&self, options: &Options, bytes: u64) -> u64;

    /// The bytes that each backend took of the memory of rank 0's GPU when it connected the ranks.
    fn taken(&self) -> Vec<(Backend, u64)> {
        Vec::new()
    }

    /// Allocates buffers for a type, and runs the bench on them.
    fn measure<T: Element>(&mut self, bench: &mut Bench<'_>) -> Result<(), Error>;
}

/// Ranks with buffers for elements of one type.
pub(crate) trait Runner<T: Element> {
    /// The executor of the calls.
    fn backend(&self) -> Backend;

    /// Runs a case without timing it, out of place.
    fn warm_up(&mut self, case: &Case) -> Result<(), Error>;

    /// Waits after the warm-up until nothing that it has set off interrupts timed calls.
    fn settle(&self) {}

    /// Times a case.
    fn time(&mut self, case: &Case, mode: BufferMode) -> Result<Timed, Error>;

    /// Whether the last call stored long messages past the caches; `None` if nobody can tell, on
    /// every rank.
    fn stores_far(&self) -> Option<bool> {
        None
    }

    /// Runs a case on known data; returns the number of wrong elements of this thread's ranks. Each
    /// seed gives different data.
    fn check(&mut self, case: &Case, mode: BufferMode, seed: u64) -> Result<u64, Error>;
}

/// Runs everything; `comm` connects the threads that measure.
pub(crate) fn run<G: Platform>(
    comm: &Communicator,
    platform: &mut G,
    options: &Options,
    sink: &mut dyn Sink,
) -> Result<Findings, Error> {
    let mut bench = Bench {
        comm,
        options,
        ranks: platform.ranks(),
        sink,
        findings: Findings::default(),
        checks: 0,
    };
    for &dtype in &options.dtypes {
        let bench = &mut bench;
        match dtype {
            DType::I8 => platform.measure::<i8>(bench),
            DType::U8 => platform.measure::<u8>(bench),
            DType::I32 => platform.measure::<i32>(bench),
            DType::U32 => platform.measure::<u32>(bench),
            DType::I64 => platform.measure::<i64>(bench),
            DType::U64 => platform.measure::<u64>(bench),
            DType::F16 => platform.measure::<spark_ccl::f16>(bench),
            DType::F32 => platform.measure::<f32>(bench),
            DType::F64 => platform.measure::<f64>(bench),
            DType::Bf16 => platform.measure::<spark_ccl::bf16>(bench),
            DType::F8E4M3 => platform.measure::<spark_ccl::F8E4M3>(bench),
            DType::F8E5M2 => platform.measure::<spark_ccl::F8E5M2>(bench),
        }?;
    }
    Ok(bench.findings)
}

/// The state of a run.
pub(crate) struct Bench<'a> {
    comm: &'a Communicator,
    pub(crate) options: &'a Options,
    ranks: usize,
    sink: &'a mut dyn Sink,
    findings: Findings,
    /// The number of checks so far: each uses its own data.
    checks: u64,
}

impl Bench<'_> {
    /// Runs all operations and roots; the runners take turns at each size.
    pub(crate) fn sweeps<T: Element>(
        &mut self,
        runners: &mut [impl Runner<T>],
    ) -> Result<(), Error> {
        let options = self.options;
        // Collectives that do not reduce run once, and ignore the operation.
        let ops = if options.ops.is_empty() {
            &[ReduceOp::Sum]
        } else {
            options.ops.as_slice()
        };
        for &op in ops {
            for root in options.roots(self.ranks) {
                self.sweep(runners, op, root)?;
            }
        }
        Ok(())
    }

    fn sweep<T: Element>(
        &mut self,
        runners: &mut [impl Runner<T>],
        op: ReduceOp,
        root: usize,
    ) -> Result<(), Error> {
        let options = self.options;
        let ranks = self.ranks;
        let case = |bytes| Case {
            collective: options.collective,
            bytes,
            op,
            root,
            ranks,
        };
        for size in options.sweep.warm_up() {
            for runner in &mut *runners {
                runner.warm_up(&case(size))?;
            }
        }
        for runner in &*runners {
            runner.settle();
        }
        let mut cycle = 0;
        while options.cycles == 0 || cycle < options.cycles {
            for size in options.sweep.sizes() {
                self.lines(runners, &case(size))?;
            }
            cycle += 1;
        }
        Ok(())
    }

    /// Measures a row by each runner, beside that of the first.
    fn lines<T: Element>(
        &mut self,
        runners: &mut [impl Runner<T>],
        case: &Case,
    ) -> Result<(), Error> {
        let mut first: Option<[f64; 2]> = None;
        for runner in runners {
            let mut out_of_place = self.measure(runner, case, BufferMode::OutOfPlace)?;
            let mut in_place = self.measure(runner, case, BufferMode::InPlace)?;
            let times = [out_of_place.time_us, in_place.time_us];
            if let Some(first) = first {
                out_of_place.ratio = Some(times[0] / first[0]);
                in_place.ratio = Some(times[1] / first[1]);
            }
            first = first.or(Some(times));
            self.sink.row(Row {
                key: key::<T>(case, runner.backend()),
                out_of_place,
                in_place,
                timestamp: spark_ccl_status::clock::now(),
            })?;
        }
        Ok(())
    }

    fn measure<T: Element>(
        &mut self,
        runner: &mut impl Runner<T>,
        case: &Case,
        mode: BufferMode,
    ) -> Result<Measure, Error> {
        let timed = runner.time(case, mode)?;
        let far_ranks = self.far_ranks(runner.stores_far())?;
        let (algorithm_bw, bus_bw) = case.collective.bandwidth(
            &case.layout::<T>(),
            size_of::<T>(),
            case.ranks,
            timed.seconds,
        );
        self.findings.bus_bw += bus_bw;
        self.findings.measures += 1;
        let mut wrong = None;
        for _ in 0..self.options.checks {
            let found = self.check(runner, case, mode)?;
            wrong = Some(wrong.unwrap_or(0) + found);
            if found > 0 {
                break;
            }
        }
        Ok(Measure {
            time_us: timed.seconds * 1e6,
            cpu_us: timed.cpu_seconds * 1e6,
            algorithm_bw,
            bus_bw,
            wrong,
            per_iteration: timed.per_iteration,
            ratio: None,
            far_ranks,
        })
    }

    /// The number of ranks of which a peer's core is far.
    fn far_ranks(&self, own: Option<bool>) -> Result<Option<u64>, Error> {
        let Some(is_far) = own else {
            return Ok(None);
        };
        let mut ranks = [u64::from(is_far)];
        reduce(self.comm, &mut ranks, RedOp::Sum)?;
        Ok(Some(ranks[0]))
    }

    /// Runs the call on known data; returns the number of wrong elements over all ranks.
    fn check<T: Element>(
        &mut self,
        runner: &mut impl Runner<T>,
        case: &Case,
        mode: BufferMode,
    ) -> Result<u64, Error> {
        self.checks += 1;
        let own = runner.check(case, mode, self.checks)?;
        let mut sums = [own, u64::from(own > 0)];
        reduce(self.comm, &mut sums, RedOp::Sum)?;
        self.findings.out_of_bounds += sums[1];
        Ok(sums[0])
    }
}

/// The measured call of a case's row.
fn key<T: Element>(case: &Case, backend: Backend) -> Key {
    let collective = case.collective;
    let operation = collective.operation();
    let layout = case.layout::<T>();
    Key {
        backend,
        size: (layout.larger() * size_of::<T>()) as u64,
        count: layout.count as u64,
        dtype: T::DTYPE.name(),
        op: if operation.reduces() {
            op::name(case.op)
        } else {
            collective.label()
        },
        root: if operation.is_rooted() {
            case.root as i64
        } else {
            -1
        },
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::args::{BackendArg, MeasureArgs};

    /// Takes a given time for each call out of place, and a second in place.
    struct Timer(Backend, f64);

    impl Runner<f32> for Timer {
        fn backend(&self) -> Backend {
            self.0
        }

        fn warm_up(&mut self, _: &Case) -> Result<(), Error> {
            Ok(())
        }

        fn time(&mut self, _: &Case, mode: BufferMode) -> Result<Timed, Error> {
            Ok(Timed {
                seconds: match mode {
                    BufferMode::OutOfPlace => self.1,
                    BufferMode::InPlace => 1.0,
                },
                cpu_seconds: 0.0,
                per_iteration: None,
            })
        }

        fn check(&mut self, _: &Case, _: BufferMode, _: u64) -> Result<u64, Error> {
            Ok(0)
        }
    }

    struct Rows(Vec<Row>);

    impl Sink for Rows {
        fn row(&mut self, row: Row) -> Result<(), Error> {
            self.0.push(row);
            Ok(())
        }
    }

    #[test]
    fn backends_take_turns_at_each_size() {
        let words = "spark-perf all_reduce -b 8 -e 16 -f 2".split_whitespace();
        let args = MeasureArgs::try_parse_from(words).unwrap();
        let comm = Communicator::builder().local(1).unwrap().remove(0);
        let mut rows = Rows(Vec::new());
        let mut bench = Bench {
            comm: &comm,
            options: &Options::new(&args, BackendArg::EngineAndNccl).unwrap(),
            ranks: 1,
            sink: &mut rows,
            findings: Findings::default(),
            checks: 0,
        };
        let mut timers = [Timer(Backend::Engine, 2.0), Timer(Backend::Nccl, 3.0)];
        bench.sweeps(&mut timers).unwrap();
        let rows = rows.0.iter().map(|row| {
            let ratios = [&row.out_of_place, &row.in_place].map(|measure| measure.ratio);
            (row.key.size, row.key.backend, ratios)
        });
        let at = |size| {
            [
                (size, Backend::Engine, [None; 2]),
                (size, Backend::Nccl, [Some(1.5), Some(1.0)]),
            ]
        };
        assert_eq!(rows.collect::<Vec<_>>(), [at(8), at(16)].concat());
    }
}
