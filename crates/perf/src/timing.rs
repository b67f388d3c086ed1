//! Times calls in host memory.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, Timespec, clock_gettime};
use spark_ccl::{Communicator, Element, RedOp};

use crate::args::BuffersArg;
use crate::buffer::Buffer;
use crate::error::Error;
use crate::exact::{from_bits, whole_number};
use crate::invocation::{BufferMode, Invocation};
use crate::options::{Average, Blocking, Options};
use crate::stats::PerIteration;

/// The buffers of a run. They may be larger than one call needs: calls then use their parts in
/// turn.
#[derive(Debug)]
pub(crate) struct Buffers<B> {
    pub(crate) send: B,
    pub(crate) recv: B,
    /// The first element in use.
    pub(crate) base: usize,
}

/// The time of one call, combined over all ranks.
#[derive(Debug)]
pub(crate) struct Timed {
    pub(crate) seconds: f64,
    /// Processor time, in the program and in the system.
    pub(crate) cpu_seconds: f64,
    pub(crate) per_iteration: Option<PerIteration>,
}

impl Timed {
    /// Combines over all threads the seconds of a call on this thread (by the clock, and of the
    /// processor), and the microseconds of a call in each iteration.
    pub(crate) fn agreed(
        comm: &Communicator,
        own: [f64; 2],
        mut micros: Vec<f64>,
        options: &Options,
    ) -> Result<Self, Error> {
        let (factor, op) = match options.average {
            Average::First => (f64::from(u8::from(comm.rank() == 0)), RedOp::Sum),
            Average::Mean => (1.0 / comm.size() as f64, RedOp::Sum),
            Average::Min => (1.0, RedOp::Min),
            Average::Max => (1.0, RedOp::Max),
        };
        let mut seconds = own.map(|seconds| seconds * factor);
        comm.all_reduce_in_place(&mut seconds, op)
            .by_any_path()
            .run()?;
        let per_iteration = match options.per_iteration {
            None => None,
            Some(skip) => {
                comm.all_reduce_in_place(&mut micros, RedOp::Max)
                    .by_any_path()
                    .run()?;
                Some(PerIteration::new(micros, skip))
            }
        };
        Ok(Self {
            seconds: seconds[0],
            cpu_seconds: seconds[1],
            per_iteration,
        })
    }
}

impl<B> Buffers<B> {
    /// The number of parts of the buffers that calls use in turn.
    fn turns<T: Element>(&self, call: &Invocation<T>, options: &Options) -> usize
    where
        B: Buffer<T>,
    {
        if options.buffers == Some(BuffersArg::Hot) {
            return 1;
        }
        let parts = |buffer: &B, stride: usize| (buffer.len() - self.base).checked_div(stride);
        let sends = parts(&self.send, call.send_stride());
        let receives = parts(&self.recv, call.recv_stride());
        sends.into_iter().chain(receives).min().unwrap_or(1).max(1)
    }
}

/// Runs the calls of a row without timing them, out of place.
pub(crate) fn warm_up<T: Element, B: Buffer<T>>(
    comm: &Communicator,
    call: &Invocation<T>,
    buffers: &mut Buffers<B>,
    options: &Options,
) -> Result<(), Error> {
    let turns = buffers.turns(call, options);
    for iteration in 0..options.warm_up {
        call.run(
            comm,
            &mut buffers.send,
            &mut buffers.recv,
            buffers.base,
            iteration % turns,
            BufferMode::OutOfPlace,
        )?;
    }
    Ok(())
}

/// Times `iterations` x `aggregated` calls.
pub(crate) fn time<T: Element, B: Buffer<T>>(
    comm: &Communicator,
    call: &Invocation<T>,
    buffers: &mut Buffers<B>,
    mode: BufferMode,
    options: &Options,
) -> Result<Timed, Error> {
    let turns = buffers.turns(call, options);
    let calls = options.iterations * options.aggregated;
    // Buffers that should be colder than the caches are touched completely, which evicts their
    // first parts again.
    let touched = match options.buffers {
        Some(BuffersArg::Rotating(_)) => turns,
        _ => turns.min(calls),
    };
    prepare(comm, call, buffers, mode, touched)?;

    comm.barrier().run()?;
    // Without barriers in between, the clock is only read around all iterations: reading it takes
    // up to a tenth of the time of a small call.
    let batch = if options.per_iteration.is_some() || options.blocking == Blocking::Iteration {
        1
    } else {
        options.iterations
    };
    let mut total = Duration::ZERO;
    let mut times = Vec::new();
    let mut turn = (0..turns).cycle();
    let busy = processor_time();
    for _ in (0..options.iterations).step_by(batch.max(1)) {
        let start = Instant::now();
        for turn in turn.by_ref().take(batch * options.aggregated) {
            let Buffers {
                send, recv, base, ..
            } = buffers;
            call.run(comm, send, recv, *base, turn, mode)?;
            if options.blocking == Blocking::Call {
                comm.barrier().run()?;
            }
        }
        let elapsed = start.elapsed();
        total += elapsed;
        if options.per_iteration.is_some() {
            times.push(elapsed);
        }
        if options.blocking == Blocking::Iteration {
            comm.barrier().run()?;
        }
    }
    let busy = (processor_time() - busy) / options.ranks_per_process as f64;
    let own = [total.as_secs_f64(), busy].map(|seconds| seconds / calls as f64);
    let micros = |time: &Duration| time.as_secs_f64() * 1e6 / options.aggregated as f64;
    Timed::agreed(comm, own, times.iter().map(micros).collect(), options)
}

/// Touches the first `turns` parts of the buffers, and runs the call once, untimed, on the last of
/// them.
fn prepare<T: Element, B: Buffer<T>>(
    comm: &Communicator,
    call: &Invocation<T>,
    buffers: &mut Buffers<B>,
    mode: BufferMode,
    turns: usize,
) -> Result<(), Error> {
    touch(call, buffers, turns);
    call.run(
        comm,
        &mut buffers.send,
        &mut buffers.recv,
        buffers.base,
        turns - 1,
        mode,
    )
}

/// Writes ones wherever calls will read and write: this avoids page faults in timed calls, and
/// subnormal numbers, which are slow, in repeated in-place reductions.
fn touch<T: Element, B: Buffer<T>>(call: &Invocation<T>, buffers: &mut Buffers<B>, turns: usize) {
    let one: T = from_bits(whole_number(T::DTYPE, 1));
    let base = buffers.base;
    let touch = |buffer: &mut B, stride: usize| {
        // The last part may end before its stride does.
        let end = (base + turns * stride).min(buffer.len());
        buffer[base..end].fill(one);
    };
    touch(&mut buffers.send, call.send_stride());
    touch(&mut buffers.recv, call.recv_stride());
}

/// The processor seconds that all threads of this process have used.
pub(crate) fn processor_time() -> f64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ProcessCPUTime);
    tv_sec as f64 + tv_nsec as f64 * 1e-9
}
