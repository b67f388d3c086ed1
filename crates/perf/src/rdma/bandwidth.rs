//! Bandwidth: as many requests in flight as the rails accept.

use std::ops::Range;
use std::time::Instant;

use spark_ccl::Communicator;

use super::args::{BandwidthArgs, Verb};
use super::endpoint::{Endpoint, Work};
use super::waiter::Waiter;
use crate::cli::sweep::Sweep;
use crate::error::Error;
use crate::measure::timing::processor_time;
use crate::pair::rows::{self, Seen};
use crate::pair::{Output, seed};
use crate::ranks::hosts::share;

/// One rank of a measurement.
struct Bench<'a> {
    comm: &'a Communicator,
    args: &'a BandwidthArgs,
    endpoints: Vec<Endpoint>,
    waiter: Waiter<'a>,
    ranks_here: usize,
    /// The number of messages that must have arrived at the end of the pass.
    awaited: u64,
}

/// Measures all sizes; returns the exit code.
pub(super) fn rank(
    comm: &Communicator,
    args: &BandwidthArgs,
    sweep: Sweep,
    endpoints: Vec<Endpoint>,
    ranks_here: usize,
) -> Result<u8, Error> {
    let rails = endpoints.len() as u64;
    let pair = &args.common.pair;
    if pair.iterations < rails {
        return Err(Error::usage(format!(
            "-n {}: at least one request for each of {rails} rails",
            pair.iterations
        )));
    }
    let names = endpoints
        .iter()
        .map(|endpoint| endpoint.rail.clone())
        .collect();
    let table = (rows::BANDWIDTH_HEAD, rows::bandwidth_text as fn(&_) -> _);
    let mut output = Output::begin(comm, pair, &title(args), names, table)?;
    let mut bench = Bench {
        comm,
        args,
        endpoints,
        waiter: Waiter::new(comm, &args.common),
        ranks_here,
        awaited: 0,
    };
    for rails in pair.rails.sets(bench.endpoints.len()) {
        for (index, bytes) in sweep.sizes().enumerate() {
            let own = bench.size(index, bytes as usize, rails.clone())?;
            let all = share(comm, &own)?;
            let wrong = all.iter().map(|seen| seen.wrong).sum();
            output.row(wrong, || rows::bandwidth(bytes, rails.clone(), &all))?;
        }
    }
    output.end()
}

fn title(args: &BandwidthArgs) -> String {
    let direction = args.load.direction();
    let verb = match args.common.verb {
        Verb::Write => "write",
        Verb::Read => "read",
        Verb::Send => "send",
    };
    format!(
        "{verb}, {direction}, {} requests in flight on a rail",
        args.depth
    )
}

impl Bench<'_> {
    /// Measures a size over some of the rails.
    fn size(&mut self, index: usize, bytes: usize, rails: Range<usize>) -> Result<Seen, Error> {
        let rank = self.comm.rank();
        let warm_up = self.args.common.pair.warm_up;
        if warm_up > 0 {
            self.pass(bytes, warm_up.max(rails.len() as u64), rails.clone())?;
        }
        self.comm.barrier().run()?;
        for endpoint in rails.clone() {
            self.endpoints[endpoint].prepare(seed(index, endpoint, rank), bytes)?;
        }
        let before: Vec<u64> = self
            .endpoints
            .iter()
            .map(|endpoint| endpoint.posted)
            .collect();
        self.comm.barrier().run()?;
        let (start, busy) = (Instant::now(), processor_time());
        self.pass(bytes, self.args.common.pair.iterations, rails.clone())?;
        let (elapsed, busy) = (start.elapsed(), processor_time() - busy);
        self.comm.barrier().run()?;
        let carried = |endpoint: usize| self.endpoints[endpoint].posted - before[endpoint];
        Ok(Seen {
            seconds: elapsed.as_secs_f64(),
            cpu_seconds: busy / self.ranks_here as f64,
            carried: rails.clone().map(carried).collect(),
            wrong: self.wrong(index, bytes, rails)?,
        })
    }

    /// Posts this rank's requests, and receives the other's messages.
    fn pass(&mut self, bytes: usize, count: u64, rails: Range<usize>) -> Result<(), Error> {
        let rank = self.comm.rank();
        let load = &self.args.load;
        if self.args.common.verb == Verb::Send && load.drives(1 - rank) {
            self.awaited += count;
        }
        if load.drives(rank) {
            self.post_all(bytes, count, rails)?;
        }
        while self
            .endpoints
            .iter()
            .any(|endpoint| endpoint.in_flight() > 0)
            || self
                .endpoints
                .iter()
                .map(|endpoint| endpoint.received)
                .sum::<u64>()
                < self.awaited
        {
            self.waiter.progress(&mut self.endpoints)?;
        }
        Ok(())
    }

    /// Posts each request on the rail with the fewest requests in flight. The last request of each
    /// rail is signalled.
    fn post_all(&mut self, bytes: usize, mut count: u64, rails: Range<usize>) -> Result<(), Error> {
        let depth = u64::from(self.args.depth);
        let signal_every = (depth / 4).clamp(1, 16);
        let work = Work::from(self.args.common.verb);
        let end = self.args.load.end();
        let mut number = 0;
        while number < count {
            if end.is_some_and(|end| Instant::now() >= end) {
                count = count.min(number + rails.len() as u64);
            }
            let left = (count - number) as usize;
            let last = left <= rails.len();
            let endpoint = loop {
                let free = if last {
                    rails.start + left - 1
                } else {
                    self.least_busy(rails.clone())
                };
                if self.endpoints[free].in_flight() < depth {
                    break &mut self.endpoints[free];
                }
                self.waiter.progress(&mut self.endpoints)?;
            };
            let signalled = last || endpoint.posted % signal_every == signal_every - 1;
            endpoint.post(work, bytes, signalled)?;
            number += 1;
        }
        Ok(())
    }

    fn least_busy(&self, rails: Range<usize>) -> usize {
        let first = rails.start;
        let busy = |rail: &usize| self.endpoints[*rail].in_flight();
        rails.min_by_key(busy).unwrap_or(first)
    }

    fn wrong(&self, index: usize, bytes: usize, rails: Range<usize>) -> Result<u64, Error> {
        let rank = self.comm.rank();
        let getter = match self.args.common.verb {
            Verb::Read => rank,
            Verb::Write | Verb::Send => 1 - rank,
        };
        if !self.args.load.drives(getter) {
            return Ok(0);
        }
        let mut wrong = 0;
        for endpoint in rails {
            wrong += self.endpoints[endpoint].wrong(seed(index, endpoint, 1 - rank), bytes)?;
        }
        Ok(wrong)
    }
}
