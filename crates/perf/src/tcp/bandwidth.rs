//! Bandwidth: a thread for each socket and each way, which takes the next message when it is done with one.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use spark_ccl::Communicator;

use super::args::Args;
use super::connect::{Lane, broken};
use super::stream::{Stream, framed};
use crate::cli::sweep::Sweep;
use crate::error::Error;
use crate::measure::timing::processor_time;
use crate::pair::{BandwidthRow, Output, Seen, differing, pattern, seed};
use crate::ranks::hosts::share;

/// Measures all sizes; returns the exit code.
pub(super) fn rank(
    comm: &Communicator,
    args: &Args,
    sweep: Sweep,
    lanes: &[Lane],
    ranks_here: usize,
) -> Result<u8, Error> {
    let title = format!(
        "TCP, {}, {} sockets on a rail",
        args.load.direction(),
        args.sockets
    );
    let names = lanes.iter().map(|lane| lane.rail.clone()).collect();
    let table = (BandwidthRow::HEAD, BandwidthRow::text as fn(&_) -> _);
    let mut output = Output::begin(comm, &args.pair, &title, names, table)?;
    for rails in args.pair.rails.sets(lanes.len()) {
        let bench = Bench {
            rank: comm.rank(),
            args,
            lanes: &lanes[rails.clone()],
            first: rails.start,
        };
        for (index, bytes) in sweep.sizes().enumerate() {
            let own = bench.size(comm, index, bytes as usize, ranks_here)?;
            let all = share(comm, &own)?;
            let wrong = all.iter().map(|seen| seen.wrong).sum();
            output.row(wrong, || BandwidthRow::of(bytes, rails.clone(), &all))?;
        }
    }
    output.end()
}

/// One rank of a measurement over some of the rails.
struct Bench<'a> {
    rank: usize,
    args: &'a Args,
    lanes: &'a [Lane],
    /// The number of the first of these rails.
    first: usize,
}

/// What all threads that send have in common.
struct Load {
    next: AtomicU64,
    count: u64,
    end: Option<Instant>,
}

impl Bench<'_> {
    fn size(
        &self,
        comm: &Communicator,
        index: usize,
        bytes: usize,
        ranks_here: usize,
    ) -> Result<Seen, Error> {
        self.pass(index, bytes, self.args.pair.warm_up)?;
        comm.barrier().run()?;
        let (start, busy) = (Instant::now(), processor_time());
        let (carried, wrong) = self.pass(index, bytes, self.args.pair.iterations)?;
        let (elapsed, busy) = (start.elapsed(), processor_time() - busy);
        comm.barrier().run()?;
        Ok(Seen {
            seconds: elapsed.as_secs_f64(),
            cpu_seconds: busy / ranks_here as f64,
            carried,
            wrong,
        })
    }

    /// Sends and receives; returns how many messages each rail has carried from here, and the number of wrong bytes.
    fn pass(&self, index: usize, bytes: usize, count: u64) -> Result<(Vec<u64>, u64), Error> {
        let load = &Load {
            next: AtomicU64::new(0),
            count,
            end: self.args.load.end(),
        };
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (place, lane) in self.lanes.iter().enumerate() {
                let seed = |rank| seed(index, self.first + place, rank);
                for (number, stream) in lane.streams.iter().enumerate() {
                    let from = usize::from(number >= usize::from(self.args.sockets));
                    if !self.args.load.drives(from) {
                        continue;
                    }
                    let seed = seed(from);
                    let is_own = from == self.rank;
                    let work = move || {
                        if is_own {
                            send(stream, seed, bytes, load).map(|sent| (sent, 0))
                        } else {
                            let last = stream.receive(bytes)?;
                            Ok((0, last.map_or(0, |last| differing(seed, &last))))
                        }
                    };
                    threads.push((place, scope.spawn(work)));
                }
            }
            let mut carried = vec![0; self.lanes.len()];
            let mut wrong = 0;
            let rank = self.rank;
            for (place, thread) in threads {
                let done = thread.join().map_err(|_| Error::Panicked { rank })?;
                let rail = &self.lanes[place].rail;
                let (sent, differ) = done.map_err(|error| broken(rail, self.args, error))?;
                carried[place] += sent;
                wrong += differ;
            }
            Ok((carried, wrong))
        })
    }
}

/// Sends the next messages until there are no more; returns how many.
fn send(stream: &Stream, seed: u64, bytes: usize, load: &Load) -> io::Result<u64> {
    let message = framed(&pattern(seed, bytes));
    let mut sent = 0;
    // Relaxed: the number alone is shared, and each is given out once.
    while load.next.fetch_add(1, Ordering::Relaxed) < load.count {
        stream.write(&message)?;
        sent += 1;
        if load.end.is_some_and(|end| Instant::now() >= end) {
            break;
        }
    }
    stream.finish()?;
    Ok(sent)
}
