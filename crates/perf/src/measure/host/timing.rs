//! Times calls in host memory.

use std::thread;
use std::time::{Duration, Instant};

use spark_ccl::{Communicator, Element};

use crate::call::buffer::Buffer;
use crate::call::invocation::{BufferMode, Invocation};
use crate::cli::options::{Blocking, Options};
use crate::cli::values::BufferUse;
use crate::error::Error;
use crate::exact::{from_bits, whole_number};
use crate::measure::timing::{Timed, processor_time, rehearsals};

/// The number of messages over a link after which one reuses the memory of an earlier one.
const LAP: usize = 64;
/// The time that a link's memory takes to be allocated, with as many ranks as a host has.
const PAUSE: Duration = Duration::from_millis(20);

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
        if options.buffers == Some(BufferUse::Hot) {
            return 1;
        }
        let parts = |buffer: &B, stride: usize| (buffer.len() - self.base).checked_div(stride);
        let sends = parts(&self.send, call.send_stride());
        let receives = parts(&self.recv, call.recv_stride());
        sends.into_iter().chain(receives).min().unwrap_or(1).max(1)
    }
}

/// Runs the calls of a row without timing them, out of place. Of short ones it runs at least
/// [`lap`], after which links have memory for all their messages.
pub(super) fn warm_up<T: Element, B: Buffer<T>>(
    comm: &Communicator,
    call: &Invocation<T>,
    buffers: &mut Buffers<B>,
    options: &Options,
) -> Result<(), Error> {
    let turns = buffers.turns(call, options);
    let calls = match options.warm_up {
        0 => 0,
        calls => calls.max(lap(call)),
    };
    for iteration in 0..calls {
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

/// Leaves the processors to the library's threads, which allocate links' memory after the first
/// messages. Where ranks occupy all processors, that would interrupt timed calls.
pub(super) fn settle() {
    thread::sleep(PAUSE);
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
    rehearse(comm, call, buffers, mode, turns.min(calls))?;
    // Buffers that should be colder than the caches are touched completely, which evicts their
    // first parts again.
    let touched = match options.buffers {
        Some(BufferUse::Rotating(_)) => turns,
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
    let busy = (processor_time() - busy) / options.ranks_per_process() as f64;
    let own = [total.as_secs_f64(), busy].map(|seconds| seconds / calls as f64);
    let micros = |time: &Duration| time.as_secs_f64() * 1e6 / options.aggregated as f64;
    Timed::agreed(comm, own, times.iter().map(micros).collect(), options)
}

/// Runs the call on each of the first `turns` parts of the buffers, and until links have memory for
/// all their messages.
fn rehearse<T: Element, B: Buffer<T>>(
    comm: &Communicator,
    call: &Invocation<T>,
    buffers: &mut Buffers<B>,
    mode: BufferMode,
    turns: usize,
) -> Result<(), Error> {
    let calls = turns.max(lap(call));
    let Buffers { send, recv, base } = buffers;
    for turn in (0..turns).cycle().take(calls) {
        call.run(comm, send, recv, *base, turn, mode)?;
    }
    Ok(())
}

/// The number of calls after which links have memory for all messages of the call; 1 for a long
/// call, which uses a link's memory by itself.
fn lap<T: Element>(call: &Invocation<T>) -> usize {
    rehearsals(LAP, call.layout.larger() * size_of::<T>())
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

#[cfg(test)]
mod tests {
    use spark_ccl::{ReduceOp, Registered};

    use super::*;
    use crate::call::collective::Collective;
    use crate::call::invocation::Case;

    const CALLS: usize = 20;
    const RANKS: usize = 3;

    /// The number of pages that this thread has touched first.
    fn faults() -> u64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        fields.split(' ').nth(7).unwrap().parse().unwrap()
    }

    /// The pages that calls touch first on parts of the buffers on which the same was rehearsed.
    fn fresh_pages<B: Buffer<f32>>(comm: &Communicator, bytes: u64) -> u64 {
        let case = Case {
            collective: Collective::AllReduce,
            bytes,
            op: ReduceOp::Sum,
            root: 0,
            ranks: RANKS,
        };
        let call = Invocation::new(&case, comm.rank());
        let length = CALLS * call.recv_stride();
        let mut buffers = Buffers {
            send: B::allocate(comm, length).unwrap(),
            recv: B::allocate(comm, length).unwrap(),
            base: 0,
        };
        let mode = BufferMode::OutOfPlace;
        rehearse(comm, &call, &mut buffers, mode, CALLS).unwrap();
        comm.barrier().run().unwrap();
        let before = faults();
        let Buffers { send, recv, base } = &mut buffers;
        for turn in 0..CALLS {
            call.run(comm, send, recv, *base, turn, mode).unwrap();
        }
        faults() - before
    }

    #[test]
    fn rehearsed_calls_touch_no_fresh_page() {
        let comms = Communicator::builder().local(RANKS).unwrap();
        std::thread::scope(|scope| {
            for comm in &comms {
                scope.spawn(move || {
                    // Longer vectors of ordinary memory go by ways that depend on the time.
                    let seen = [
                        fresh_pages::<Vec<f32>>(comm, 512),
                        fresh_pages::<Vec<f32>>(comm, 4096),
                        fresh_pages::<Registered<f32>>(comm, 4096),
                        fresh_pages::<Registered<f32>>(comm, 256 << 10),
                    ];
                    // The counter itself takes some memory.
                    let few = seen.iter().all(|&pages| pages < CALLS as u64 / 4);
                    assert!(few, "{seen:?} pages in {CALLS} calls");
                });
            }
        });
    }
}
