//! Bandwidth: a thread for each socket and each way, which takes the next message when it is done
//! with one.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use spark_ccl_console::rails::RailEnds;

use super::args::TcpArgs;
use super::connect::{Lane, broken};
use super::stream::{Stream, TcpMessage};
use crate::cli::sweep::Sweep;
use crate::error::Error;
use crate::measure::timing::processor_time;
use crate::pair::rows::{self, Seen};
use crate::pair::{Allocator, Output, Rank, differing, pattern, seed};
use crate::ranks::hosts::share;

/// Measures all sizes; returns the exit code.
pub(super) fn measure(
    rank: &Rank,
    args: &TcpArgs,
    sweep: Sweep,
    lanes: &[Lane],
) -> Result<u8, Error> {
    let comm = &rank.comm;
    let title = format!(
        "TCP, {}, {} sockets on a rail",
        args.load.direction(),
        args.sockets
    );
    let mut flows = flows(args, &rank.memory, sweep.last() as usize, lanes)?;
    let names = lanes.iter().map(|lane| lane.rail.clone()).collect();
    let table = (rows::BANDWIDTH_HEAD, rows::bandwidth_text as fn(&_) -> _);
    let mut output = Output::begin(comm, &args.pair, &title, names, table)?;
    for rails in args.pair.rails.sets(lanes.len()) {
        let mut bench = Bench {
            rank,
            args,
            flows: &mut flows,
            rails: rails.clone(),
        };
        for (index, bytes) in sweep.sizes().enumerate() {
            let own = bench.size(index, bytes as usize)?;
            let all = share(comm, &own)?;
            let wrong = all.iter().map(|seen| seen.wrong).sum();
            output.row(wrong, || rows::bandwidth(bytes, rails.clone(), &all))?;
        }
    }
    output.end()
}

/// A socket that carries data, and the memory of its messages.
struct Flow<'a> {
    /// The number of its rail.
    number: usize,
    rail: &'a RailEnds,
    stream: &'a Stream,
    /// The rank that sends.
    from: usize,
    message: TcpMessage,
}

/// The sockets that carry data, in either direction.
fn flows<'a>(
    args: &TcpArgs,
    memory: &Allocator,
    bytes: usize,
    lanes: &'a [Lane],
) -> Result<Vec<Flow<'a>>, Error> {
    let mut flows = Vec::new();
    for (number, Lane { rail, streams }) in lanes.iter().enumerate() {
        for (index, stream) in streams.iter().enumerate() {
            // The first `sockets` carry data from rank 0.
            let from = usize::from(index >= usize::from(args.sockets));
            if args.load.drives(from) {
                flows.push(Flow {
                    number,
                    rail,
                    stream,
                    from,
                    message: TcpMessage::new(memory, bytes)?,
                });
            }
        }
    }
    Ok(flows)
}

/// One rank of a measurement over some of the rails.
struct Bench<'a, 'l> {
    rank: &'a Rank,
    args: &'a TcpArgs,
    /// The sockets of all rails.
    flows: &'a mut [Flow<'l>],
    /// The numbers of these rails.
    rails: Range<usize>,
}

/// The state that all sending threads share.
struct Load {
    next: AtomicU64,
    count: u64,
    end: Option<Instant>,
}

impl Bench<'_, '_> {
    fn size(&mut self, index: usize, bytes: usize) -> Result<Seen, Error> {
        let comm = &self.rank.comm;
        self.pass(index, bytes, self.args.pair.warm_up)?;
        comm.barrier().run()?;
        let (start, busy) = (Instant::now(), processor_time());
        let (carried, wrong) = self.pass(index, bytes, self.args.pair.iterations)?;
        let (elapsed, busy) = (start.elapsed(), processor_time() - busy);
        comm.barrier().run()?;
        Ok(Seen {
            seconds: elapsed.as_secs_f64(),
            cpu_seconds: busy / self.rank.here as f64,
            carried,
            wrong,
        })
    }

    /// Sends and receives; returns how many messages each rail has carried from here, and the
    /// number of wrong bytes.
    fn pass(&mut self, index: usize, bytes: usize, count: u64) -> Result<(Vec<u64>, u64), Error> {
        let load = &Load {
            next: AtomicU64::new(0),
            count,
            end: self.args.load.end(),
        };
        let (rank, rails) = (self.rank.comm.rank(), self.rails.clone());
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            let flows = self.flows.iter_mut();
            for flow in flows.filter(|flow| rails.contains(&flow.number)) {
                let (number, rail) = (flow.number, flow.rail);
                let seed = seed(index, number, flow.from);
                let work = move || {
                    if flow.from == rank {
                        flow.send(seed, bytes, load).map(|sent| (sent, 0))
                    } else {
                        flow.receive(seed, bytes).map(|wrong| (0, wrong))
                    }
                };
                threads.push((number, rail, scope.spawn(work)));
            }
            let mut carried = vec![0; rails.len()];
            let mut wrong = 0;
            for (number, rail, thread) in threads {
                let done = thread.join().map_err(|_| Error::Panicked { rank })?;
                let (sent, differ) = done.map_err(|error| broken(rail, self.args, error))?;
                carried[number - rails.start] += sent;
                wrong += differ;
            }
            Ok((carried, wrong))
        })
    }
}

impl Flow<'_> {
    /// Sends the next messages until there are no more; returns how many.
    fn send(&mut self, seed: u64, bytes: usize, load: &Load) -> io::Result<u64> {
        let Self {
            stream, message, ..
        } = self;
        message
            .payload(bytes)
            .copy_from_slice(&pattern(seed, bytes));
        let framed = message.framed(bytes);
        let mut sent = 0;
        // Relaxed: the number alone is shared, and each is given out once.
        while load.next.fetch_add(1, Ordering::Relaxed) < load.count {
            stream.write(framed)?;
            sent += 1;
            if load.end.is_some_and(|end| Instant::now() >= end) {
                break;
            }
        }
        stream.finish()?;
        Ok(sent)
    }

    /// Receives messages until there are no more; returns the number of wrong bytes of the last.
    fn receive(&mut self, seed: u64, bytes: usize) -> io::Result<u64> {
        let payload = self.message.payload(bytes);
        payload.fill(0);
        let any = self.stream.receive(payload)?;
        Ok(if any { differing(seed, payload) } else { 0 })
    }
}
