//! Times calls in host memory.

use std::time::{Duration, Instant};

use spark_ccl::{Communicator, Element};

use crate::call::buffer::Buffer;
use crate::call::invocation::{BufferMode, Invocation};
use crate::cli::args::BuffersArg;
use crate::cli::options::{Blocking, Options};
use crate::error::Error;
use crate::exact::{from_bits, whole_number};
use crate::measure::timing::{Timed, processor_time};

/// The buffers of a run. They may be larger than one call needs: calls then use their parts in
/// turn.
#[derive(Debug)]
pub(super) struct Buffers<B> {
    pub(super) send: B,
    pub(super) recv: B,
    /// The first element in use.
    pub(super) base: usize,
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
pub(super) fn warm_up<T: Element, B: Buffer<T>>(
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
pub(super) fn time<T: Element, B: Buffer<T>>(
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
