//! Times calls.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, Timespec, clock_gettime};
use spark_ccl::{Communicator, Element, RedOp};

use crate::buffer::Buffer;
use crate::error::Error;
use crate::exact::{from_bits, whole_number};
use crate::invocation::{Invocation, Way};
use crate::options::{Average, Blocking, Options};
use crate::stats::PerIteration;

/// The buffers of a run, larger than a call needs: calls move through them.
#[derive(Debug)]
pub(crate) struct Buffers<B> {
    pub(crate) send: B,
    pub(crate) recv: B,
    /// First element in use.
    pub(crate) base: usize,
    /// Elements of the receive buffer that may be used.
    pub(crate) room: usize,
}

/// Time of one call, over all ranks.
#[derive(Debug)]
pub(crate) struct Timed {
    pub(crate) seconds: f64,
    /// Of the processor, in the program and in the system.
    pub(crate) cpu_seconds: f64,
    pub(crate) per_iteration: Option<PerIteration>,
}

impl<B> Buffers<B> {
    /// How many parts of the buffers a call can take in turn, so that caches do not flatter.
    pub(crate) fn turns<T: Element>(&self, call: &Invocation<T>) -> usize {
        self.room
            .checked_div(call.layout.larger())
            .unwrap_or(1)
            .max(1)
    }
}

/// Runs the calls of a line untimed: `iterations` of them, out of place.
pub(crate) fn warm_up<T: Element, B: Buffer<T>>(
    comm: &Communicator,
    call: &Invocation<T>,
    buffers: &mut Buffers<B>,
    iterations: usize,
) -> Result<(), Error> {
    let turns = buffers.turns(call);
    for iteration in 0..iterations {
        call.run(
            comm,
            &mut buffers.send,
            &mut buffers.recv,
            buffers.base,
            iteration % turns,
            Way::OutOfPlace,
        )?;
    }
    Ok(())
}

/// Times `iterations` x `aggregated` calls.
pub(crate) fn time<T: Element, B: Buffer<T>>(
    comm: &Communicator,
    call: &Invocation<T>,
    buffers: &mut Buffers<B>,
    way: Way,
    options: &Options,
) -> Result<Timed, Error> {
    let turns = buffers.turns(call);
    let calls = options.iterations * options.aggregated;
    touch(call, buffers, turns.min(calls));
    call.run(
        comm,
        &mut buffers.send,
        &mut buffers.recv,
        buffers.base,
        0,
        way,
    )?;

    comm.barrier().run()?;
    // Without barriers in between, the clock is read once per stretch: reading it takes as long as
    // a tenth of a small call.
    let stretch = if options.per_iteration.is_some() || options.blocking == Blocking::Iteration {
        1
    } else {
        options.iterations
    };
    let mut total = Duration::ZERO;
    let mut times = Vec::new();
    let mut turn = (0..turns).cycle();
    let busy = processor_time();
    for _ in (0..options.iterations).step_by(stretch.max(1)) {
        let start = Instant::now();
        for turn in turn.by_ref().take(stretch * options.aggregated) {
            let Buffers {
                send, recv, base, ..
            } = buffers;
            call.run(comm, send, recv, *base, turn, way)?;
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
    let seconds = [total.as_secs_f64(), busy].map(|seconds| seconds / calls as f64);
    let [seconds, cpu_seconds] = over_ranks(comm, seconds, options.average)?;
    Ok(Timed {
        seconds,
        cpu_seconds,
        per_iteration: per_iteration(comm, &times, options)?,
    })
}

/// Writes ones where calls will read and write: no page faults are timed, and repeated
/// reductions in place meet no slow (subnormal) numbers.
fn touch<T: Element, B: Buffer<T>>(call: &Invocation<T>, buffers: &mut Buffers<B>, turns: usize) {
    let one: T = from_bits(whole_number(T::DTYPE, 1));
    let base = buffers.base;
    buffers.send[base..base + turns * call.layout.send].fill(one);
    buffers.recv[base..base + turns * call.layout.larger()].fill(one);
}

/// Seconds that all threads of this process have kept processors busy.
fn processor_time() -> f64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ProcessCPUTime);
    tv_sec as f64 + tv_nsec as f64 * 1e-9
}

fn over_ranks(
    comm: &Communicator,
    seconds: [f64; 2],
    average: Average,
) -> Result<[f64; 2], Error> {
    let (factor, op) = match average {
        Average::First => (f64::from(u8::from(comm.rank() == 0)), RedOp::Sum),
        Average::Mean => (1.0 / comm.size() as f64, RedOp::Sum),
        Average::Min => (1.0, RedOp::Min),
        Average::Max => (1.0, RedOp::Max),
    };
    let mut values = seconds.map(|seconds| seconds * factor);
    comm.all_reduce_in_place(&mut values, op).run()?;
    Ok(values)
}

fn per_iteration(
    comm: &Communicator,
    times: &[Duration],
    options: &Options,
) -> Result<Option<PerIteration>, Error> {
    let Some(skip) = options.per_iteration else {
        return Ok(None);
    };
    let mut micros: Vec<f64> = times
        .iter()
        .map(|time| time.as_secs_f64() * 1e6 / options.aggregated as f64)
        .collect();
    comm.all_reduce_in_place(&mut micros, RedOp::Max).run()?;
    Ok(Some(PerIteration::new(micros, skip)))
}
