//! A [`Compute`] whose jobs take several polls, to test how callers wait.

use spark_ccl_types::{Combine, DType};

use crate::{Compute, Job, Operand, Started, Streaming, Ticket};

/// Holds each job for a number of polls, then passes it to another compute.
///
/// Until then no source is read and no destination is written, so a caller that accesses either too
/// early gets a wrong result.
#[derive(Debug)]
pub struct Delayed<C> {
    inner: C,
    polls: u32,
    next: u64,
    held: Vec<(Ticket, Held)>,
}

impl<C> Delayed<C> {
    /// Each job stays pending for `polls` polls, and runs in the next one.
    pub fn new(inner: C, polls: u32) -> Self {
        Self {
            inner,
            polls,
            next: 0,
            held: Vec::new(),
        }
    }

    /// The number of jobs that have started and are not done.
    pub fn held(&self) -> usize {
        self.held.len()
    }
}

impl<C: Compute> Compute for Delayed<C> {
    unsafe fn start(&mut self, job: &Job<'_>) -> Started {
        let ticket = Ticket(self.next);
        self.next += 1;
        let job = OwnedJob::new(job);
        self.held.push((
            ticket,
            Held::Waiting {
                job,
                polls: self.polls,
            },
        ));
        Started::Pending(ticket)
    }

    /// # Panics
    /// For a ticket that was never issued, or whose job was reported done.
    fn poll(&mut self, ticket: Ticket) -> bool {
        let at = self.held.iter().position(|(held, _)| *held == ticket);
        assert!(at.is_some(), "{ticket:?} is not of a job in progress");
        let Some(at) = at else { return true };
        let done = match &mut self.held[at].1 {
            Held::Waiting { polls, .. } if *polls > 0 => {
                *polls -= 1;
                false
            }
            Held::Waiting { job, .. } => {
                // SAFETY: the job has a source, and its memory stays valid and untouched by others
                // until it is done: `start` has required that of every job in `held`. This one is
                // not done: it is still there, and starts only once.
                match unsafe { self.inner.start(&job.as_job()) } {
                    Started::Done => true,
                    Started::Pending(inner) => {
                        self.held[at].1 = Held::Running(inner);
                        false
                    }
                }
            }
            Held::Running(inner) => self.inner.poll(*inner),
        };
        if done {
            self.held.swap_remove(at);
        }
        done
    }
}

#[derive(Debug)]
enum Held {
    Waiting { job: OwnedJob, polls: u32 },
    Running(Ticket),
}

/// A job whose operand lists outlive the call that started it.
#[derive(Debug)]
struct OwnedJob {
    dtype: DType,
    op: Combine,
    srcs: Vec<Operand>,
    dsts: Vec<*mut u8>,
    count: usize,
    streaming: Streaming,
    divides: bool,
}

// SAFETY: the pointers are only used to run the job. `Compute::start` requires that their memory
// stays valid and untouched by others until the job is done, no matter which thread polls.
unsafe impl Send for OwnedJob {}

impl OwnedJob {
    fn new(job: &Job<'_>) -> Self {
        Self {
            dtype: job.dtype,
            op: job.op,
            srcs: job.srcs.to_vec(),
            dsts: job.dsts.to_vec(),
            count: job.count,
            streaming: job.streaming,
            divides: job.divides,
        }
    }

    fn as_job(&self) -> Job<'_> {
        Job {
            dtype: self.dtype,
            op: self.op,
            srcs: &self.srcs,
            dsts: &self.dsts,
            count: self.count,
            streaming: self.streaming,
            divides: self.divides,
        }
    }
}

#[cfg(test)]
mod tests {
    use spark_ccl_types::Scale;

    use super::*;
    use crate::Cpu;

    /// Starts `dst += src` on one element; the operand lists are dropped at the end of this
    /// function.
    fn start(compute: &mut impl Compute, src: &i32, dst: *mut i32) -> Ticket {
        let operand = |ptr| Operand {
            ptr,
            scale: Scale::One,
        };
        let job = Job {
            dtype: DType::I32,
            op: Combine::Sum,
            srcs: &[
                operand(dst.cast_const().cast()),
                operand(std::ptr::from_ref(src).cast()),
            ],
            dsts: &[dst.cast()],
            count: 1,
            streaming: Streaming::Nothing,
            divides: false,
        };
        // SAFETY: the tests keep both elements alive, and only access `dst` through its pointer.
        match unsafe { compute.start(&job) } {
            Started::Pending(ticket) => ticket,
            Started::Done => panic!("done at once"),
        }
    }

    #[test]
    fn runs_after_the_given_polls() {
        let mut compute = Delayed::new(Cpu::new(), 2);
        let (src, mut dst) = (2, 3);
        let dst = &raw mut dst;
        let ticket = start(&mut compute, &src, dst);
        for _ in 0..2 {
            assert!(!compute.poll(ticket));
            // SAFETY: `dst` is alive, and no job runs outside of `poll`.
            assert_eq!(unsafe { dst.read() }, 3);
        }
        assert!(compute.poll(ticket));
        // SAFETY: `dst` is alive, and no job runs outside of `poll`.
        assert_eq!(unsafe { dst.read() }, 5);
        assert_eq!(compute.held(), 0);
    }

    #[test]
    fn jobs_wait_for_themselves_alone_and_delays_nest() {
        let mut compute = Delayed::new(Delayed::new(Cpu::new(), 1), 0);
        let (src, mut a, mut b) = (1, 10, 20);
        let first = start(&mut compute, &src, &raw mut a);
        let second = start(&mut compute, &src, &raw mut b);
        assert!(!compute.poll(second));
        assert!(!compute.poll(second));
        assert!(compute.poll(second));
        assert_eq!((a, b, compute.held()), (10, 21, 1));
        assert!(!compute.poll(first));
    }

    #[test]
    #[should_panic(expected = "not of a job in progress")]
    fn a_done_ticket_is_forgotten() {
        let mut compute = Delayed::new(Cpu::new(), 0);
        let (src, mut dst) = (1, 1);
        let ticket = start(&mut compute, &src, &raw mut dst);
        assert!(compute.poll(ticket));
        compute.poll(ticket);
    }
}
