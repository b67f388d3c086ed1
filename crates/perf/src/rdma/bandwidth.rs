//! Bandwidth: as many requests in flight as the rails accept.

use std::fmt::Write as _;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use spark_ccl::Communicator;

use super::args::{BandwidthArgs, Verb};
use super::endpoint::{Endpoint, Work};
use super::waiter::Waiter;
use super::{exit_code, print_rails, seed};
use crate::cli::sweep::Sweep;
use crate::console::print;
use crate::error::Error;
use crate::measure::timing::processor_time;
use crate::ranks::hosts::share;

const HEAD: &str = "\
#       size  rails    requests        time      GB/s      Gb/s        CPU  #wrong
#        (B)                           (us)                       (us/MiB)
";

/// What a rank has measured for one size.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Seen {
    seconds: f64,
    cpu_seconds: f64,
    /// The number of requests by rail.
    carried: Vec<u64>,
    /// The number of wrong bytes.
    wrong: u64,
}

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
    if args.common.iterations < rails {
        return Err(Error::Usage(format!(
            "-n {}: at least one request for each of {rails} rails",
            args.common.iterations
        )));
    }
    print_rails(comm, &title(args), &endpoints)?;
    if comm.rank() == 0 {
        print(HEAD)?;
    }
    let mut bench = Bench {
        comm,
        args,
        endpoints,
        waiter: Waiter::new(comm, &args.common),
        ranks_here,
        awaited: 0,
    };
    let mut wrong = 0;
    for (index, bytes) in sweep.sizes().enumerate() {
        let own = bench.size(index, bytes as usize)?;
        let all = share(comm, &own)?;
        wrong += all.iter().map(|seen| seen.wrong).sum::<u64>();
        if comm.rank() == 0 {
            print(&row(bytes, &all))?;
        }
    }
    Ok(exit_code(wrong))
}

fn title(args: &BandwidthArgs) -> String {
    let direction = if args.bidirectional {
        "both ways"
    } else {
        "one way"
    };
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
    fn size(&mut self, index: usize, bytes: usize) -> Result<Seen, Error> {
        let rank = self.comm.rank();
        let rails = self.endpoints.len() as u64;
        let warm_up = self.args.common.warm_up;
        if warm_up > 0 {
            self.pass(bytes, warm_up.max(rails))?;
        }
        self.comm.barrier().run()?;
        for (endpoint, one) in self.endpoints.iter_mut().enumerate() {
            one.prepare(seed(index, endpoint, rank), bytes)?;
        }
        let before: Vec<u64> = self
            .endpoints
            .iter()
            .map(|endpoint| endpoint.posted)
            .collect();
        self.comm.barrier().run()?;
        let (start, busy) = (Instant::now(), processor_time());
        self.pass(bytes, self.args.common.iterations)?;
        let (elapsed, busy) = (start.elapsed(), processor_time() - busy);
        self.comm.barrier().run()?;
        let carried = self.endpoints.iter().zip(before);
        Ok(Seen {
            seconds: elapsed.as_secs_f64(),
            cpu_seconds: busy / self.ranks_here as f64,
            carried: carried
                .map(|(endpoint, before)| endpoint.posted - before)
                .collect(),
            wrong: self.wrong(index, bytes)?,
        })
    }

    /// Whether a rank posts requests.
    fn drives(&self, rank: usize) -> bool {
        rank == 0 || self.args.bidirectional
    }

    /// Posts this rank's requests, and receives the other's messages.
    fn pass(&mut self, bytes: usize, count: u64) -> Result<(), Error> {
        let rank = self.comm.rank();
        if self.args.common.verb == Verb::Send && self.drives(1 - rank) {
            self.awaited += count;
        }
        if self.drives(rank) {
            self.post_all(bytes, count)?;
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
    fn post_all(&mut self, bytes: usize, count: u64) -> Result<(), Error> {
        let depth = u64::from(self.args.depth);
        let signal_every = (depth / 4).clamp(1, 16);
        let work = Work::from(self.args.common.verb);
        let rails = self.endpoints.len();
        for number in 0..count {
            let last = (count - number) as usize <= rails;
            let endpoint = loop {
                let free = if last {
                    (count - number) as usize - 1
                } else {
                    self.least_busy()
                };
                if self.endpoints[free].in_flight() < depth {
                    break &mut self.endpoints[free];
                }
                self.waiter.progress(&mut self.endpoints)?;
            };
            let signalled = last || endpoint.posted % signal_every == signal_every - 1;
            endpoint.post(work, bytes, signalled)?;
        }
        Ok(())
    }

    fn least_busy(&self) -> usize {
        let endpoints = self.endpoints.iter().enumerate();
        endpoints
            .min_by_key(|(_, endpoint)| endpoint.in_flight())
            .map_or(0, |(index, _)| index)
    }

    fn wrong(&self, index: usize, bytes: usize) -> Result<u64, Error> {
        let rank = self.comm.rank();
        let getter = match self.args.common.verb {
            Verb::Read => rank,
            Verb::Write | Verb::Send => 1 - rank,
        };
        if !self.drives(getter) {
            return Ok(0);
        }
        let mut wrong = 0;
        for (endpoint, one) in self.endpoints.iter().enumerate() {
            wrong += one.wrong(seed(index, endpoint, 1 - rank), bytes)?;
        }
        Ok(wrong)
    }
}

fn row(bytes: u64, all: &[Seen]) -> String {
    let rails = all.first().map_or(0, |seen| seen.carried.len());
    let carried = |rail: usize| all.iter().map(|seen| seen.carried[rail]).sum::<u64>();
    let requests: u64 = (0..rails).map(carried).sum();
    let drivers = all
        .iter()
        .filter(|seen| seen.carried.iter().sum::<u64>() > 0);
    let seconds = drivers.map(|seen| seen.seconds).fold(0.0, f64::max);
    let cpu: f64 = all.iter().map(|seen| seen.cpu_seconds).sum();
    let wrong: u64 = all.iter().map(|seen| seen.wrong).sum();
    let rate = |requests: u64| (requests * bytes) as f64 / seconds / 1e9;
    let mib = (requests * bytes) as f64 / f64::from(1 << 20);
    let mut text = format!(
        "{bytes:>12} {rails:>6} {requests:>11} {:>11.1} {:>9.4} {:>9.3} {:>10.2} {wrong:>7}\n",
        seconds * 1e6,
        rate(requests),
        rate(requests) * 8.0,
        cpu * 1e6 / mib,
    );
    for rail in (0..rails).filter(|_| rails > 1) {
        let requests = carried(rail);
        let rate = rate(requests);
        let _ = writeln!(
            text,
            "#    rail {rail:>2}        {requests:>11}             {rate:>9.4} {:>9.3}",
            rate * 8.0
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_add_up() {
        let seen = |seconds, carried: &[u64]| Seen {
            seconds,
            cpu_seconds: 0.5,
            carried: carried.to_vec(),
            wrong: 1,
        };
        let text = row(1 << 20, &[seen(1.0, &[75, 25]), seen(9.0, &[0, 0])]);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        let total = [
            "1048576",
            "2",
            "100",
            "1000000.0",
            "0.1049",
            "0.839",
            "10000.00",
            "2",
        ];
        assert_eq!(rows[0], total);
        assert_eq!(rows[1], ["#", "rail", "0", "75", "0.0786", "0.629"]);
        assert_eq!(rows[2], ["#", "rail", "1", "25", "0.0262", "0.210"]);
        let both = row(1 << 20, &[seen(1.0, &[50]), seen(2.0, &[50])]);
        assert_eq!(both.lines().count(), 1);
        assert!(both.contains(" 2000000.0 "), "{both}");
    }
}
