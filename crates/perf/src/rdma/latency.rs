//! Latency: one request at a time.

use std::time::Instant;

use spark_ccl::{Communicator, RedOp};

use super::args::{LatencyArgs, Verb};
use super::endpoint::{Endpoint, Work};
use super::waiter::Waiter;
use crate::cli::sweep::Sweep;
use crate::error::Error;
use crate::pair::{Output, rows, seed};
use crate::ranks::hosts::reduce;

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
    let rails = endpoints
        .iter()
        .map(|endpoint| endpoint.rail.clone())
        .collect();
    let table = (rows::LATENCY_HEAD, rows::latency_text as fn(&_) -> _);
    let mut output = Output::begin(comm, &args.common.pair, title, rails, table)?;
    let mut waiter = Waiter::new(comm, &args.common);
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
            output.row(wrong, || rows::latency(bytes, rail, times, wrong))?;
        }
    }
    output.end()
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
        self.pass(self.args.common.pair.warm_up)?;
        self.comm.barrier().run()?;
        self.endpoint[0].prepare(first_seed + rank, self.bytes)?;
        self.comm.barrier().run()?;
        let times = self.pass(self.args.common.pair.iterations)?;
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

    /// Waits for the next message that was not consumed: the ranks send alternately.
    fn receive(&mut self) -> Result<(), Error> {
        let consumed = self.endpoint[0].consumed;
        while self.endpoint[0].received == consumed {
            self.waiter.progress(self.endpoint)?;
        }
        self.endpoint[0].consumed += 1;
        Ok(())
    }
}
