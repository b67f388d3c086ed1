//! Runs the calls of a thread's GPUs: warm-up, timing and checks.

use std::time::{Duration, Instant};

use spark_ccl::{Backend, Communicator, Element};

use super::call::Call;
use super::calls::{Calls, launch, upload};
use super::events::Events;
use super::gpu::Gpu;
use super::gpus::Gpus;
use super::verify;
use crate::call::invocation::{BufferMode, Case};
use crate::cli::options::{Blocking, Options};
use crate::error::Error;
use crate::measure::bench::Runner;
use crate::measure::timing::{Timed, rehearsals};

/// The seed of the buffers' contents while calls are timed. The seeds of checks start at 1.
const TIMED: u64 = 0;

/// The GPUs of a thread, with buffers, and one backend.
pub(super) struct GpuRunner<'a> {
    pub(super) control: &'a Communicator,
    pub(super) options: &'a Options,
    pub(super) gpus: &'a mut Gpus,
}

/// The time until all calls were enqueued, and until all had run.
struct Elapsed {
    enqueued: Duration,
    total: Duration,
}

impl<T: Element> Runner<T> for GpuRunner<'_> {
    fn backend(&self) -> Backend {
        self.gpus.backend
    }

    fn warm_up(&mut self, case: &Case) -> Result<(), Error> {
        let calls = self.calls::<T>(case, BufferMode::OutOfPlace)?;
        for turn in 0..self.options.warm_up {
            calls.start(turn..turn + 1)?;
        }
        Ok(calls.wait()?)
    }

    fn time(&mut self, case: &Case, mode: BufferMode) -> Result<Timed, Error> {
        let options = self.options;
        if options.checks > 0 {
            self.fill::<T>(case, mode, TIMED)?;
        }
        let calls = self.calls::<T>(case, mode)?;
        self.rehearse(&calls, case.bytes as usize)?;
        let (elapsed, micros) = if options.graph_launches > 0 {
            (self.replay(&calls)?, Vec::new())
        } else {
            self.iterate(&calls)?
        };
        let replays = options.graph_launches.max(1) as usize;
        let count = (options.iterations * options.aggregated * replays) as f64;
        let own = [elapsed.total, elapsed.enqueued].map(|time| time.as_secs_f64() / count);
        Timed::agreed(self.control, own, micros, options)
    }

    fn check(&mut self, case: &Case, mode: BufferMode, seed: u64) -> Result<u64, Error> {
        self.fill::<T>(case, mode, seed)?;
        let calls = self.calls::<T>(case, mode)?;
        if self.options.graph_launches > 0 {
            let graphs = calls.captured(|| calls.start(0..1))?;
            launch(&graphs, calls.gpus)?;
            calls.wait()?;
        } else {
            calls.start(0..1)?;
            calls.wait()?;
        }
        self.wrong::<T>(case, mode, seed)
    }
}

impl GpuRunner<'_> {
    /// The call of each GPU.
    fn calls<T: Element>(&self, case: &Case, mode: BufferMode) -> Result<Calls<'_, T>, Error> {
        let calls = self.gpus.all.iter().map(|gpu| self.call(gpu, case, mode));
        Ok(Calls {
            calls: calls.collect::<Result<_, Error>>()?,
            gpus: &self.gpus.all,
        })
    }

    fn call<T: Element>(&self, gpu: &Gpu, case: &Case, mode: BufferMode) -> Result<Call<T>, Error> {
        let slices = gpu.slices(self.options.unalign);
        let slices = slices.ok_or_else(|| Error::usage("-u: larger than the buffers".into()))?;
        let largest = self.options.sweep.last() as usize / size_of::<T>();
        Ok(Call::new(case, mode, gpu.comm.rank(), slices, largest))
    }

    /// Runs iterations as they will be timed: the driver loads a kernel, and its queues grow, when
    /// calls need it first.
    fn rehearse<T: Element>(&self, calls: &Calls<'_, T>, bytes: usize) -> Result<(), Error> {
        let (iterations, aggregated) = (self.options.iterations, self.options.aggregated);
        let count = rehearsals(iterations * aggregated, bytes);
        for turn in (0..count).step_by(aggregated.max(1)) {
            calls.start(turn..turn + aggregated)?;
        }
        Ok(calls.wait()?)
    }

    /// Enqueues all iterations.
    fn iterate<T: Element>(&self, calls: &Calls<'_, T>) -> Result<(Elapsed, Vec<f64>), Error> {
        let (options, gpus) = (self.options, calls.gpus);
        let paired = options.blocking == Blocking::Iteration;
        let events = options
            .per_iteration
            .map(|_| Events::new(gpus, options.iterations, paired))
            .transpose()?;
        self.control.barrier().run()?;
        let elapsed = self.timed(calls, events.as_ref())?;
        let micros = match events {
            Some(events) => events.micros(gpus)?,
            None => Vec::new(),
        };
        let aggregated = options.aggregated as f64;
        Ok((
            elapsed,
            micros.into_iter().map(|time| time / aggregated).collect(),
        ))
    }

    fn timed<T: Element>(
        &self,
        calls: &Calls<'_, T>,
        events: Option<&Events>,
    ) -> Result<Elapsed, Error> {
        let (options, gpus) = (self.options, calls.gpus);
        let start = Instant::now();
        let mut between_barriers = Duration::ZERO;
        for iteration in 0..options.iterations {
            let began = Instant::now();
            if let Some(events) = events {
                events.begin(gpus, iteration)?;
            }
            let turn = iteration * options.aggregated;
            calls.start(turn..turn + options.aggregated)?;
            match options.blocking {
                Blocking::None => {}
                Blocking::Wait => calls.wait()?,
                Blocking::Call => {
                    calls.wait()?;
                    self.control.barrier().run()?;
                }
                Blocking::Iteration => {
                    calls.wait()?;
                    if let Some(events) = events {
                        events.end(gpus, iteration)?;
                    }
                    between_barriers += began.elapsed();
                    self.control.barrier().run()?;
                }
            }
        }
        if let Some(events) = events.filter(|events| !events.paired) {
            events.begin(gpus, options.iterations)?;
        }
        let enqueued = start.elapsed();
        calls.wait()?;
        Ok(if options.blocking == Blocking::Iteration {
            Elapsed {
                enqueued: between_barriers,
                total: between_barriers,
            }
        } else {
            Elapsed {
                enqueued,
                total: start.elapsed(),
            }
        })
    }

    /// Launches a graph of all iterations repeatedly.
    fn replay<T: Element>(&self, calls: &Calls<'_, T>) -> Result<Elapsed, Error> {
        let options = self.options;
        let graphs = calls.captured(|| {
            (0..options.iterations).try_for_each(|iteration| {
                let turn = iteration * options.aggregated;
                calls.start(turn..turn + options.aggregated)
            })
        })?;
        upload(&graphs, calls.gpus)?;
        calls.wait()?;
        self.control.barrier().run()?;
        let start = Instant::now();
        for _ in 0..options.graph_launches {
            launch(&graphs, calls.gpus)?;
        }
        let enqueued = start.elapsed();
        calls.wait()?;
        Ok(Elapsed {
            enqueued,
            total: start.elapsed(),
        })
    }

    /// Writes the inputs of a checked run.
    fn fill<T: Element>(&mut self, case: &Case, mode: BufferMode, seed: u64) -> Result<(), Error> {
        let calls = self.calls::<T>(case, mode)?.calls;
        let mut gpus = self.gpus.all.iter_mut().zip(&calls);
        gpus.try_for_each(|(gpu, call)| verify::fill(&mut gpu.kernels, call, seed))?;
        // On a shared GPU, the driver may hold back a kernel that is loaded here until a peer's
        // call ends. That call waits for the one that follows here.
        Ok(self.control.barrier().run()?)
    }

    /// Counts the wrong elements of this thread's GPUs after a checked run.
    fn wrong<T: Element>(
        &mut self,
        case: &Case,
        mode: BufferMode,
        seed: u64,
    ) -> Result<u64, Error> {
        let plant = self.options.plant;
        let calls = self.calls::<T>(case, mode)?.calls;
        let gpus = self.gpus.all.iter_mut().zip(&calls);
        gpus.map(|(gpu, call)| verify::wrong(&mut gpu.kernels, call, seed, plant))
            .sum()
    }
}
