//! Latency: one request at a time.

use std::time::Instant;

use spark_ccl::{Communicator, RedOp};

use super::args::{LatencyArgs, Verb};
use super::endpoint::{Endpoint, Work};
use super::waiter::Waiter;
use super::{exit_code, print_rails, seed};
use crate::cli::sweep::Sweep;
use crate::console::print;
use crate::error::Error;
use crate::ranks::hosts::reduce;
use crate::report::stats::PerIteration;

const HEAD: &str = "\
#       size  rail  iterations       min    median      mean       99%       max  #wrong
#        (B)                        (us)      (us)      (us)      (us)      (us)
";

/// One in this many requests is signalled, which also shows that all before it are complete.
const SIGNAL_EVERY: u64 = 16;

/// Measures all sizes on every rail; returns the exit code.
pub(super) fn rank(
    comm: &Communicator,
    args: &LatencyArgs,
    sweep: Sweep,
    mut endpoints: Vec<Endpoint>,
) -> Result<u8, Error> {
    let title = match args.common.verb {
        Verb::Write => "write with immediate, half the round trip",
        Verb::Read => "read",
        Verb::Send => "send, half the round trip",
    };
    print_rails(comm, title, &endpoints)?;
    if comm.rank() == 0 {
        print(HEAD)?;
    }
    let mut waiter = Waiter::new(comm, &args.common);
    let mut all_wrong = 0;
    for (index, bytes) in sweep.sizes().enumerate() {
        for rail in 0..endpoints.len() {
            let mut ping_pong = PingPong {
                comm,
                args,
                waiter: &mut waiter,
                endpoint: &mut endpoints[rail..=rail],
                bytes: bytes as usize,
            };
            let (times, wrong) = ping_pong.measure(seed(index, rail, 0))?;
            all_wrong += wrong;
            if comm.rank() == 0 {
                print(&row(bytes, rail, times, wrong))?;
            }
        }
    }
    Ok(exit_code(all_wrong))
}

/// One size on one rail.
struct PingPong<'a, 'w> {
    comm: &'a Communicator,
    args: &'a LatencyArgs,
    waiter: &'a mut Waiter<'w>,
    /// A slice of one endpoint.
    endpoint: &'a mut [Endpoint],
    bytes: usize,
}

impl PingPong<'_, '_> {
    /// The times in microseconds, on rank 0, and the number of wrong bytes on both ranks.
    fn measure(&mut self, first_seed: u64) -> Result<(Vec<f64>, u64), Error> {
        let rank = self.comm.rank() as u64;
        self.pass(self.args.common.warm_up)?;
        self.comm.barrier().run()?;
        self.endpoint[0].prepare(first_seed + rank, self.bytes)?;
        self.comm.barrier().run()?;
        let times = self.pass(self.args.common.iterations)?;
        self.comm.barrier().run()?;
        let mut wrong = vec![0_u64];
        if self.args.common.verb != Verb::Read || rank == 0 {
            let theirs = first_seed + 1 - rank;
            wrong[0] = self.endpoint[0].wrong(theirs, self.bytes)?;
        }
        reduce(self.comm, &mut wrong, RedOp::Sum)?;
        Ok((times, wrong[0]))
    }

    /// Alternates with the other rank; returns the times in microseconds, on rank 0.
    fn pass(&mut self, count: u64) -> Result<Vec<f64>, Error> {
        let mut times = Vec::new();
        let mut last = Instant::now();
        for _ in 0..count {
            match (self.args.common.verb, self.comm.rank()) {
                (Verb::Read, 0) => self.read()?,
                (Verb::Read, _) => break,
                (_, 0) => {
                    self.send()?;
                    self.receive()?;
                }
                _ => {
                    self.receive()?;
                    self.send()?;
                    continue;
                }
            }
            let now = Instant::now();
            times.push((now - last).as_secs_f64() * 1e6);
            last = now;
        }
        if self.args.common.verb != Verb::Read {
            for time in &mut times {
                *time /= 2.0;
            }
        }
        Ok(times)
    }

    fn read(&mut self) -> Result<(), Error> {
        self.endpoint[0].post(Work::Read, self.bytes, true)?;
        while self.endpoint[0].in_flight() > 0 {
            self.waiter.progress(self.endpoint)?;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), Error> {
        let work = match self.args.common.verb {
            Verb::Send => Work::Send,
            Verb::Write | Verb::Read => Work::WriteWithImm,
        };
        let endpoint = &mut self.endpoint[0];
        let signalled = endpoint.posted % SIGNAL_EVERY == SIGNAL_EVERY - 1;
        Ok(endpoint.post(work, self.bytes, signalled)?)
    }

    /// Waits for the next message after those that were consumed: the ranks send alternately.
    fn receive(&mut self) -> Result<(), Error> {
        let consumed = self.endpoint[0].consumed;
        while self.endpoint[0].received == consumed {
            self.waiter.progress(self.endpoint)?;
        }
        self.endpoint[0].consumed += 1;
        Ok(())
    }
}

fn row(bytes: u64, rail: usize, times: Vec<f64>, wrong: u64) -> String {
    let PerIteration {
        min_us,
        p50_us,
        avg_us,
        p99_us,
        max_us,
        times_us,
        ..
    } = PerIteration::new(times, 0);
    format!(
        "{bytes:>12} {rail:>5} {:>11} {min_us:>9.2} {p50_us:>9.2} {avg_us:>9.2} \
         {p99_us:>9.2} {max_us:>9.2} {wrong:>7}\n",
        times_us.len()
    )
}
