//! Gradients of all ranks are summed or averaged in buckets, while the backward pass runs. Knows
//! host memory and calls; knows no parameters.

mod filling;
mod report;

use std::ops::Range;
use std::time::Instant;

use filling::{buffer_len, plan};
pub use report::Absent;
use report::{NotFinite, Reports};
use spark_ccl::{Communicator, DType, Failed, Pending, RedOp, Registered};

use crate::contents::Contents;
use crate::error::Error;
use crate::model::Model;
use crate::plan::{Plan, Readiness};
use crate::timeline::{StepTimes, Timeline};
use crate::values::{Number, each};
use crate::world::World;

/// How gradients are reduced. All ranks need the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The size of a bucket. Larger ones cost fewer calls; smaller ones start earlier.
    pub bucket_bytes: usize,
    /// Whether gradients are summed or averaged over the ranks.
    pub reduce: Reduce,
    /// Whether gradients of 16 bits are accumulated and reduced as `f32`, in twice the bytes, and
    /// rounded once.
    pub in_f32: bool,
    /// The part of the result that each rank gets.
    pub sharing: Sharing,
    /// Whether to look for infinities and NaNs in each gradient that is handed over, which reads it
    /// once more. Sums of finite gradients, which may be infinite, are not looked at.
    pub find_non_finite: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            bucket_bytes: 8 << 20,
            reduce: Reduce::Mean,
            in_f32: false,
            sharing: Sharing::Replicated,
            find_non_finite: false,
        }
    }
}

/// How the gradients of several ranks are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduce {
    /// Their sum.
    Sum,
    /// Their sum, divided by the number of ranks.
    Mean,
}

/// The part of reduced gradients that each rank gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// All of them (`all_reduce`).
    Replicated,
    /// Its share (`reduce_scatter`), for which it has the optimizer's state (ZeRO-1).
    Sharded,
}

/// A report of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepReport {
    /// The number of the step; the first is 1.
    pub step: u64,
    /// The tensors that some ranks had no gradients of. The same on all ranks.
    pub absent: Vec<Absent>,
    /// Where this rank's time went.
    pub times: StepTimes,
    /// The bytes of all buckets.
    pub bytes: u64,
}

/// The gradients of a model, in buckets that are reduced while the backward pass still runs.
///
/// In the first step, and with [sharded](Sharing::Sharded) gradients always, buckets have the
/// reverse order of the model. Later they have the order in which gradients became ready on rank 0
/// in the first step. If a rank lacks memory for a second set of buckets beside the first, they
/// keep the reverse order, and nothing is logged: results are the same. [`plan`](Self::plan) shows
/// the order.
///
/// ```
/// use spark_ccl::{Communicator, DType};
/// use spark_ccl_training::{Buckets, Model, Options, TensorInfo};
///
/// # let ranks = Communicator::local(2)?.into_iter().map(|comm| std::thread::spawn(move || {
/// let weight = TensorInfo::new("weight", DType::F32, &[2, 2]);
/// let bias = TensorInfo::new("bias", DType::F32, &[2]);
/// let model = Model::new(vec![weight, bias])?;
/// let mut buckets = Buckets::new(&comm, &model, Options::default())?;
/// let own = comm.rank() as f32;
/// buckets.ready(&comm, 1, &[own; 2])?; // as soon as the backward pass has it
/// buckets.ready(&comm, 0, &[own + 1.0; 4])?;
/// buckets.finish(&comm)?;
/// let mut mean = [0.0_f32; 4];
/// buckets.copy(0, &mut mean)?;
/// assert_eq!(mean, [1.5; 4]);
/// # comm.finalize()?;
/// # Ok::<(), spark_ccl_training::Error>(())
/// # }));
/// # for rank in ranks.collect::<Vec<_>>() { rank.join().unwrap()?; }
/// # Ok::<(), spark_ccl_training::Error>(())
/// ```
#[derive(Debug)]
pub struct Buckets {
    model: Model,
    options: Options,
    world: World,
    layout: Layout,
    readiness: Readiness,
    /// Whether each tensor's part of its bucket has a gradient of this step.
    is_filled: Vec<bool>,
    /// The tensors in the order in which they became ready in this step.
    ready_order: Vec<usize>,
    /// The next step's buckets, if they differ.
    next: Option<Layout>,
    /// Whether the order of the first step is known.
    is_ordered: bool,
    not_finite: Option<NotFinite>,
    /// The number of the current step, or of the last one if that is finished.
    step: u64,
    phase: Phase,
    timeline: Timeline,
}

/// Buckets and their memory.
#[derive(Debug)]
struct Layout {
    plan: Plan,
    names: Vec<String>,
    buffers: Vec<Buffer>,
}

/// The memory of a bucket.
#[derive(Debug)]
enum Buffer {
    Here(Contents),
    InFlight(Pending<Contents>),
    /// Lost in a failed call, or lent to the optimizer.
    Away,
}

/// More steps than any run takes; `f64`, in which optimizers compute with it, has each number.
pub(crate) const MOST_STEPS: u64 = 1 << 53;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Gradients come in.
    Open,
    /// All of them are reduced.
    Finished,
    /// The ranks may have different states.
    Failed,
}

impl Buckets {
    /// Buckets for the gradients of a model. Collective: compares the ranks' models.
    ///
    /// # Errors
    /// [`Error::Model`] if they differ; [`Error::Invalid`] for tensors that are no floats.
    pub fn new(comm: &Communicator, model: &Model, options: Options) -> Result<Self, Error> {
        model.agree(comm)?;
        let order: Vec<_> = (0..model.tensors().len()).rev().collect();
        let plan = plan(model, &order, &options)?;
        Ok(Self {
            model: model.clone(),
            world: World::of(comm),
            readiness: Readiness::new(&plan),
            layout: Layout::new(comm, model, plan, options.sharing)?,
            is_filled: vec![false; order.len()],
            ready_order: Vec::new(),
            next: None,
            is_ordered: false,
            not_finite: None,
            step: 0,
            phase: Phase::Finished,
            timeline: Timeline::new(),
            options,
        })
    }

    /// The tensors.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Which tensors share a bucket.
    pub fn plan(&self) -> &Plan {
        &self.layout.plan
    }

    /// How many steps are finished. One that has failed is not; one whose gradients were
    /// [not finite](Error::NotFinite) is.
    pub fn steps(&self) -> u64 {
        match self.phase {
            Phase::Open | Phase::Failed => self.step - 1,
            Phase::Finished => self.step,
        }
    }

    /// Sets the number of finished steps: after a checkpoint, or if the caller numbers its steps
    /// itself. A rank whose number differs at the end of the next step is named in an error.
    ///
    /// # Errors
    /// [`Error::Invalid`] in the middle of a step, and for a number that no run reaches;
    /// [`Error::Stale`] after a failure.
    pub fn set_steps(&mut self, steps: u64) -> Result<(), Error> {
        let step = self.step;
        match self.phase {
            Phase::Open => Err(invalid("set_steps", format!("step {step} is not finished"))),
            Phase::Failed => Err(Error::Stale { step }),
            Phase::Finished if steps > MOST_STEPS => {
                let problem = format!("{steps} steps, expected at most {MOST_STEPS}");
                Err(invalid("set_steps", problem))
            }
            Phase::Finished => {
                self.step = steps;
                Ok(())
            }
        }
    }

    /// Adds to a tensor's gradient without reducing it: for all micro-batches of a step but the
    /// last one.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a gradient of another tensor, length or type; [`Error::Stale`] after
    /// a failure.
    pub fn accumulate<T: Number>(&mut self, tensor: usize, gradient: &[T]) -> Result<(), Error> {
        let since = Instant::now();
        self.begin()?;
        self.add(tensor, gradient)?;
        self.timeline.drove(since);
        Ok(())
    }

    /// Adds the last or only part of a tensor's gradient in this step. Buckets that are complete
    /// begin to be reduced.
    ///
    /// # Errors
    /// Those of [`accumulate`](Self::accumulate), and [`Error::Call`] if the communicator has
    /// failed.
    pub fn ready<T: Number>(
        &mut self,
        comm: &Communicator,
        tensor: usize,
        gradient: &[T],
    ) -> Result<(), Error> {
        let since = Instant::now();
        self.world.check(comm)?;
        self.begin()?;
        self.add(tensor, gradient)?;
        self.ready_order.push(tensor);
        let complete = self.readiness.mark(&self.layout.plan, tensor);
        let started = self.start(comm, complete);
        self.unless_failed(started)?;
        self.timeline.drove(since);
        self.progress()
    }

    /// Drives the calls in flight, without waiting. [`ready`](Self::ready) does so, too: this is
    /// for long computations between gradients.
    ///
    /// # Errors
    /// [`Error::Call`] if the communicator has failed.
    pub fn progress(&mut self) -> Result<(), Error> {
        let since = Instant::now();
        let is_done = |buffer: &Buffer| matches!(buffer, Buffer::InFlight(it) if it.test());
        let done: Vec<_> = self.layout.buffers.iter().map(is_done).collect();
        self.timeline.drove(since);
        for (bucket, _) in done.iter().enumerate().filter(|(_, is_done)| **is_done) {
            self.wait(bucket)?;
        }
        Ok(())
    }

    /// Ends the step: waits until all gradients are reduced. Where a rank has none, its share is
    /// zero. Collective.
    ///
    /// # Errors
    /// The same on all ranks: [`Error::Step`] if a rank is in another step; [`Error::NotFinite`] on
    /// request ([`Options::find_non_finite`]), after which the next step can begin.
    pub fn finish(&mut self, comm: &Communicator) -> Result<StepReport, Error> {
        let absent = self.conclude(comm)?;
        for bucket in 0..self.layout.buffers.len() {
            self.wait(bucket)?;
        }
        Ok(self.end(absent))
    }

    /// Copies the reduced gradient of a tensor, after [`finish`](Self::finish). A forked child
    /// copies zeros, since it does not inherit registered memory: copy before a fork.
    ///
    /// # Errors
    /// [`Error::Invalid`] before that, for another length or type, and for sharded gradients.
    pub fn copy<T: Number>(&self, tensor: usize, into: &mut [T]) -> Result<(), Error> {
        let info = self.model.tensors().get(tensor);
        let is_whole = self.options.sharing == Sharing::Replicated;
        let values = (self.phase == Phase::Finished && is_whole && info.is_some())
            .then(|| self.layout.plan.place(tensor))
            .and_then(|(bucket, part)| Some((self.values(bucket)?, part)));
        let Some((values, part)) = values.filter(|(_, part)| part.len == into.len()) else {
            let problem = format!(
                "gradient {tensor} of {} elements: there is none that is \
                                   finished, not sharded, and of that length",
                into.len()
            );
            return Err(invalid("copy", problem));
        };
        if let Some(own) = values.get::<T>() {
            into.copy_from_slice(&own[part.range()]);
        } else if let Some(own) = values.get::<f32>() {
            let rounded = own[part.range()].iter().map(|it| T::from_f32(*it));
            into.iter_mut()
                .zip(rounded)
                .for_each(|(into, it)| *into = it);
        } else {
            let problem = format!("gradient {tensor} is {}, not {}", values.dtype(), T::DTYPE);
            return Err(invalid("copy", problem));
        }
        Ok(())
    }

    /// The rank's bytes of gradients.
    pub(crate) fn bytes(&self) -> usize {
        let buckets = self.layout.plan.buckets().iter();
        buckets
            .map(|it| buffer_len(self.options.sharing, self.world, it.len) * it.dtype.size())
            .sum()
    }

    pub(crate) fn world(&self) -> World {
        self.world
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// The elements of a bucket whose result this rank has.
    pub(crate) fn owned(&self, bucket: usize) -> Range<usize> {
        let len = self.layout.plan.buckets()[bucket].len;
        match self.options.sharing {
            Sharing::Replicated => 0..len,
            Sharing::Sharded => self.world.own(len),
        }
    }

    /// Checks that no step is half done, nor has failed.
    pub(crate) fn check_finished(&self, comm: &Communicator) -> Result<(), Error> {
        self.world.check(comm)?;
        match self.phase {
            Phase::Finished => Ok(()),
            Phase::Failed => Err(Error::Stale { step: self.step }),
            Phase::Open => {
                let problem = format!("step {} is not finished", self.step);
                Err(invalid("a checkpoint", problem))
            }
        }
    }

    /// Ends the backward pass: starts what is left, and hears what all ranks report. Collective.
    pub(crate) fn conclude(&mut self, comm: &Communicator) -> Result<Vec<Absent>, Error> {
        self.world.check(comm)?;
        self.begin()?;
        let concluded = self.exchange_reports(comm);
        let concluded = self.unless_failed(concluded)?;
        if let Err(error) = &concluded {
            debug_assert!(matches!(error, Error::NotFinite(_)));
            for bucket in 0..self.layout.buffers.len() {
                self.wait(bucket)?;
            }
            self.phase = Phase::Finished;
            self.timeline.end();
        }
        concluded
    }

    /// Waits for a bucket. Nothing if it was waited for before.
    pub(crate) fn wait(&mut self, bucket: usize) -> Result<(), Error> {
        match std::mem::replace(&mut self.layout.buffers[bucket], Buffer::Away) {
            Buffer::InFlight(pending) => {
                let outcome = self.blocked(|| pending.wait());
                self.timeline.ended();
                let outcome = outcome.map_err(|failed| failed.error.into());
                self.layout.buffers[bucket] = Buffer::Here(self.unless_failed(outcome)?);
            }
            other => self.layout.buffers[bucket] = other,
        }
        Ok(())
    }

    /// Makes a call that waits for other ranks.
    pub(crate) fn blocked<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        let outcome = call();
        self.timeline.waited(since);
        outcome
    }

    /// Notes that parameters are being changed from now on. Whatever stops that before
    /// [`end`](Self::end), even a panic of the framework, leaves this rank with old and new ones.
    pub(crate) fn begin_change(&mut self) {
        self.phase = Phase::Failed;
    }

    /// Ends the step after all buckets.
    pub(crate) fn end(&mut self, absent: Vec<Absent>) -> StepReport {
        self.phase = Phase::Finished;
        StepReport {
            step: self.step,
            absent,
            times: self.timeline.end(),
            bytes: self.bytes() as u64,
        }
    }

    /// Gives all ranks each rank's share of a bucket. Waited for like a reduction.
    pub(crate) fn gather(&mut self, comm: &Communicator, bucket: usize) -> Result<(), Error> {
        let values = match std::mem::replace(&mut self.layout.buffers[bucket], Buffer::Away) {
            Buffer::Here(values) => values,
            Buffer::InFlight(_) | Buffer::Away => return Err(Error::Stale { step: self.step }),
        };
        let name = &self.layout.names[bucket];
        let started = each!(Contents, values, numbers => start_gather(comm, numbers, name))?;
        self.layout.buffers[bucket] = Buffer::InFlight(started);
        self.timeline.started();
        Ok(())
    }

    /// The numbers of a bucket that is not in flight, to be changed.
    pub(crate) fn values_mut(&mut self, bucket: usize) -> Result<&mut Contents, Error> {
        match &mut self.layout.buffers[bucket] {
            Buffer::Here(values) => Ok(values),
            Buffer::InFlight(_) | Buffer::Away => Err(Error::Stale { step: self.step }),
        }
    }

    /// The numbers of a bucket that is not in flight.
    pub(crate) fn values(&self, bucket: usize) -> Option<&Contents> {
        match &self.layout.buffers[bucket] {
            Buffer::Here(values) => Some(values),
            Buffer::InFlight(_) | Buffer::Away => None,
        }
    }
}

fn invalid(what: &'static str, problem: String) -> Error {
    Error::Invalid { what, problem }
}

fn start_gather<T: Number>(
    comm: &Communicator,
    buffer: Registered<T>,
    name: &str,
) -> Result<Pending<Contents>, Error>
where
    Contents: From<Registered<T>>,
{
    let call = comm.all_gather_in_place(buffer).named(name);
    let pending = call.start().map_err(|failed| failed.error)?;
    Ok(pending.map(Contents::from))
}
