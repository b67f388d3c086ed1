//! Compares the times of the algorithms of one collective.

use std::time::{Duration, Instant};

use spark_ccl::{Communicator, Layout, RedOp, ReduceOp};
use spark_ccl_sched::Algorithm;

use super::fastest::Point;
use crate::call::buffer::Buffer;
use crate::call::collective::Collective;
use crate::call::invocation::{BufferMode, Case, Invocation};
use crate::error::Error;
use crate::ranks::hosts::reduce;

/// The best of several rounds counts, because every disturbance makes a measurement longer. Rounds
/// are added until the best two differ by at most `AGREEMENT`.
const FEWEST_ROUNDS: usize = 3;
const MOST_ROUNDS: usize = 40;
const AGREEMENT: f64 = 0.03;
/// The time that one sample should take.
const SAMPLE_TIME: Duration = Duration::from_millis(5);
const MOST_PAIRS: f64 = 1000.0;
/// The largest size for `direct`, which stores what all other ranks send.
const DIRECT_BYTES: u64 = 1 << 20;

/// The ranks and the buffers of a collective.
pub(super) struct Comparison<'a> {
    comm: &'a Communicator,
    collective: Collective,
    /// For each algorithm, a communicator that uses no other.
    candidates: Vec<(Algorithm, Communicator)>,
    send: Vec<f32>,
    recv: Vec<f32>,
}

impl<'a> Comparison<'a> {
    /// Allocates for sizes up to `largest` bytes of a rank's larger buffer.
    pub(super) fn new(
        comm: &'a Communicator,
        collective: Collective,
        largest: u64,
    ) -> Result<Self, Error> {
        let Layout { hosts, ranks, .. } = comm.layout();
        let is_candidate = |algorithm: &Algorithm| match algorithm {
            Algorithm::OneSided => false,
            Algorithm::Hierarchical => (2..ranks).contains(&hosts),
            _ => true,
        };
        let algorithms = Algorithm::of(collective.operation()).iter().copied();
        let candidates = algorithms
            .filter(is_candidate)
            .map(|algorithm| Ok((algorithm, comm.restricted(algorithm)?)))
            .collect::<Result<_, Error>>()?;
        let layout = collective.layout(largest, size_of::<f32>(), comm.size());
        // In place, the receive buffer holds the larger of both.
        let [mut send, mut recv] =
            [layout.send, layout.larger()].map(|len| Vec::allocate(comm, len));
        for buffer in [&mut send, &mut recv].into_iter().flatten() {
            buffer.fill(1.0);
        }
        Ok(Self {
            comm,
            collective,
            candidates,
            send: send?,
            recv: recv?,
        })
    }

    pub(super) fn algorithms(&self) -> impl Iterator<Item = Algorithm> {
        self.candidates.iter().map(|(algorithm, _)| *algorithm)
    }

    /// Times all algorithms for one size, in turn.
    pub(super) fn measure(&mut self, size: u64) -> Result<Point<Algorithm>, Error> {
        let case = Case {
            collective: self.collective,
            bytes: size,
            op: ReduceOp::Sum,
            root: 0,
            ranks: self.comm.size(),
        };
        let call = Invocation::<f32>::new(&case, self.comm.rank());
        let bytes = (call.layout.count * size_of::<f32>()) as u64;
        let fits = |algorithm: Algorithm| algorithm != Algorithm::Direct || size <= DIRECT_BYTES;
        let mut samples: Vec<Samples> = Vec::new();
        if bytes > 0 {
            let measured = self.algorithms().filter(|algorithm| fits(*algorithm));
            samples = measured.map(Samples::new).collect();
        }
        // The first sample determines how many calls the others time.
        for samples in &mut samples {
            let seconds = self.repeat(&call, samples.algorithm, 1)?;
            samples.pairs = (SAMPLE_TIME.as_secs_f64() / seconds).clamp(1.0, MOST_PAIRS) as u32;
        }
        for round in 0..MOST_ROUNDS {
            if round >= FEWEST_ROUNDS && samples.iter().all(Samples::agree) {
                break;
            }
            for samples in &mut samples {
                self.repeat(&call, samples.algorithm, 1)?;
                let seconds = self.repeat(&call, samples.algorithm, samples.pairs)?;
                samples.add(seconds * 1e6 / 2.0);
            }
        }
        let times = samples
            .iter()
            .map(|samples| (samples.algorithm, samples.best));
        Ok(Point {
            bytes,
            times: times.collect(),
        })
    }

    /// The seconds that one call out of place and one in place take on the slowest rank.
    fn repeat(
        &mut self,
        call: &Invocation<f32>,
        algorithm: Algorithm,
        pairs: u32,
    ) -> Result<f64, Error> {
        let mut candidates = self.candidates.iter();
        let Some((_, comm)) = candidates.find(|(known, _)| *known == algorithm) else {
            return Ok(f64::INFINITY);
        };
        self.comm.barrier().run()?;
        let start = Instant::now();
        for _ in 0..pairs {
            for mode in [BufferMode::OutOfPlace, BufferMode::InPlace] {
                call.run(comm, &mut self.send, &mut self.recv, 0, 0, mode)?;
            }
        }
        let mut seconds = [start.elapsed().as_secs_f64() / f64::from(pairs)];
        reduce(self.comm, &mut seconds, RedOp::Max)?;
        Ok(seconds[0])
    }
}

/// The samples of an algorithm for one size; the same on all ranks.
struct Samples {
    algorithm: Algorithm,
    /// The number of calls of each mode in one sample.
    pairs: u32,
    /// The microseconds of a call, in the best round and in the second best.
    best: f64,
    second: f64,
}

impl Samples {
    fn new(algorithm: Algorithm) -> Self {
        Self {
            algorithm,
            pairs: 1,
            best: f64::INFINITY,
            second: f64::INFINITY,
        }
    }

    fn add(&mut self, time: f64) {
        self.second = self.second.min(time.max(self.best));
        self.best = self.best.min(time);
    }

    fn agree(&self) -> bool {
        self.second <= self.best * (1.0 + AGREEMENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_two_are_kept() {
        let mut samples = Samples::new(Algorithm::Ring);
        for (time, agree) in [(5.0, false), (4.0, false), (9.0, false), (4.1, true)] {
            samples.add(time);
            assert_eq!(samples.agree(), agree, "{time}");
        }
        assert!((samples.best, samples.second) == (4.0, 4.1));
    }
}
