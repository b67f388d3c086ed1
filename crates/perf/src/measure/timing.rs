//! The time of one call, which all ranks agree on.

use rustix::time::{ClockId, Timespec, clock_gettime};
use spark_ccl::{Communicator, RedOp};

use crate::cli::options::{Average, Options};
use crate::error::Error;
use crate::ranks::hosts::reduce;
use crate::stats::PerIteration;

/// The calls that rehearse a row have vectors of this many bytes together. Longer vectors need
/// fewer calls: each uses more of a link's memory.
const REHEARSED_BYTES: usize = 4 << 20;

/// The time of one call, combined over all ranks.
#[derive(Debug)]
pub(crate) struct Timed {
    pub(crate) seconds: f64,
    /// Processor time, in the program and in the system.
    pub(crate) cpu_seconds: f64,
    pub(crate) per_iteration: Option<PerIteration>,
}

impl Timed {
    /// Combines over all threads the seconds of a call on this thread (by the clock, and of the
    /// processor), and the microseconds of a call in each iteration.
    pub(crate) fn agreed(
        comm: &Communicator,
        own: [f64; 2],
        mut micros: Vec<f64>,
        options: &Options,
    ) -> Result<Self, Error> {
        let (factor, op) = match options.average {
            Average::First => (f64::from(u8::from(comm.rank() == 0)), RedOp::Sum),
            Average::Mean => (1.0 / comm.size() as f64, RedOp::Sum),
            Average::Min => (1.0, RedOp::Min),
            Average::Max => (1.0, RedOp::Max),
        };
        let mut seconds = own.map(|seconds| seconds * factor);
        reduce(comm, &mut seconds, op)?;
        let per_iteration = match options.per_iteration {
            None => None,
            Some(skip) => {
                reduce(comm, &mut micros, RedOp::Max)?;
                Some(PerIteration::new(micros, skip))
            }
        };
        Ok(Self {
            seconds: seconds[0],
            cpu_seconds: seconds[1],
            per_iteration,
        })
    }
}

/// The number of untimed calls before a row with vectors of this many bytes: at least one, and up
/// to `most` if they are soon done.
///
/// Links and buffers get their memory when they are used first, and devices their kernels. None of
/// that belongs to the time of a call.
pub(crate) fn rehearsals(most: usize, bytes: usize) -> usize {
    most.min(REHEARSED_BYTES / bytes.max(1)).max(1)
}

/// The processor seconds that all threads of this process have used.
pub(crate) fn processor_time() -> f64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ProcessCPUTime);
    tv_sec as f64 + tv_nsec as f64 * 1e-9
}
