//! A [`Compute`] that divides long jobs among helpers. Each element is computed as without them, so
//! the bits are the same.

use std::sync::Arc;

use crate::{Compute, Cpu, Helpers, Job, Operand, Started, Ticket};

/// No part of a job is shorter, in bytes of a destination: the hand-over costs a helper and the
/// caller a fraction of a microsecond each.
const LEAST_PART: usize = 16 << 10;

/// Runs each job immediately. A job that [asks for it](Job::divides) also runs on other threads.
#[derive(Debug)]
pub struct Divided {
    cpu: Cpu,
    helpers: Arc<Helpers>,
}

impl Divided {
    /// Divides jobs among these helpers and the calling thread.
    pub fn new(cpu: Cpu, helpers: Arc<Helpers>) -> Self {
        Self { cpu, helpers }
    }
}

/// A job that several threads work on.
struct Whole<'a>(&'a Job<'a>);

// SAFETY: shared, the pointers only give each thread the pointers of its own part of the job, which
// no other thread uses. `Compute::start` requires that their memory stays valid until the job is
// done, whichever thread uses it.
unsafe impl Sync for Whole<'_> {}

impl Whole<'_> {
    /// Runs the job for `count` elements from `first` on.
    ///
    /// # Safety
    /// The conditions of [`Compute::start`] must hold for the job, which must have these elements,
    /// and no other thread may run them.
    unsafe fn run(&self, mut cpu: Cpu, first: usize, count: usize) {
        let job = self.0;
        let at = first * job.dtype.size();
        let part = |src: Operand| Operand {
            ptr: src.ptr.wrapping_add(at),
            ..src
        };
        with_each(job.srcs, part, |srcs| {
            with_each(
                job.dsts,
                |dst| dst.wrapping_add(at),
                |dsts| {
                    let part = Job {
                        srcs,
                        dsts,
                        count,
                        ..*job
                    };
                    // SAFETY: the job has a source, and so has its part. All operands have `first +
                    // count` elements, so that these `count` lie within each. Destinations that are
                    // apart from, or the same as, other operands are so in each part; nothing
                    // outside of the job uses them meanwhile, and of the job only this thread. This
                    // function requires all of that.
                    unsafe { cpu.start(&part) };
                },
            );
        });
    }
}

/// Calls `work` with the results of `change` for all; allocates nothing for up to four.
fn with_each<T: Copy>(all: &[T], change: impl Fn(T) -> T, work: impl FnOnce(&[T])) {
    match *all {
        [a] => work(&[a].map(change)),
        [a, b] => work(&[a, b].map(change)),
        [a, b, c] => work(&[a, b, c].map(change)),
        [a, b, c, d] => work(&[a, b, c, d].map(change)),
        _ => work(&all.iter().copied().map(change).collect::<Vec<_>>()),
    }
}

impl Compute for Divided {
    unsafe fn start(&mut self, job: &Job<'_>) -> Started {
        let size = job.dtype.size();
        let bytes = job.count * size;
        if !job.divides || self.helpers.count() == 0 || bytes < 2 * LEAST_PART {
            // SAFETY: the job has a source, and its operands are valid, apart or the same, and used
            // by nothing else until it is done: this function requires that, and `start` of `cpu`,
            // which gets the same job, requires no more.
            return unsafe { self.cpu.start(job) };
        }
        let each = self.helpers.part(bytes, LEAST_PART) / size;
        let (cpu, whole, count) = (self.cpu, Whole(job), job.count);
        self.helpers.share(count.div_ceil(each), &|number| {
            let first = number * each;
            // SAFETY: the job is as `Compute::start` requires (this function's contract), and has
            // these elements: `first` is below its end. Its parts do not overlap; each has one
            // number, with which this is called once, so no other thread runs them. `share` returns
            // when all of these calls have, so before the job counts as done.
            unsafe { whole.run(cpu, first, each.min(count - first)) };
        });
        Started::Done
    }

    fn poll(&mut self, _ticket: Ticket) -> bool {
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
