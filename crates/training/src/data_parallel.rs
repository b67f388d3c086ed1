//! Training with the same parameters on all ranks: gradients, the optimizer and its state, which is
//! divided among the ranks on request (ZeRO-1).

use std::borrow::Cow;

use spark_ccl::{Communicator, DType};

use crate::agreement::{self, Complaint, Outcome};
use crate::buckets::{Buckets, Options, Sharing, StepReport};
use crate::contents::Contents;
use crate::error::Error;
use crate::model::Model;
use crate::optimizer::Optimizer;
use crate::parameters::{Parameters, agreed_model, broadcast, write};
use crate::shares::{Shares, as_f32, round_into};
use crate::values::{Number, Values, each};

/// A model that all ranks train together.
///
/// In each step, every rank hands over the gradients of its own samples as the backward pass makes
/// them; [`step`](Self::step) then changes the parameters, alike on all ranks.
///
/// ```
/// use spark_ccl::Communicator;
/// use spark_ccl_training::{DataParallel, HostTensor, Options, Sgd, Values};
///
/// # let ranks = Communicator::local(2)?.into_iter().map(|comm| std::thread::spawn(move || {
/// let weight = Values::F32(vec![comm.rank() as f32; 3]); // rank 0's counts
/// let mut parameters = vec![HostTensor::new("weight", &[3], weight)?];
/// let optimizer = Sgd::new(0.5, 0.0);
/// let mut training = DataParallel::new(&comm, &mut parameters, optimizer, Options::default())?;
/// training.ready(&comm, 0, &[comm.rank() as f32; 3])?; // a gradient of 0 and 1: 0.5
/// training.step(&comm, &mut parameters)?;
/// assert_eq!(parameters[0].values, Values::F32(vec![-0.25; 3]));
/// # comm.finalize()?;
/// # Ok::<(), spark_ccl_training::Error>(())
/// # }));
/// # for rank in ranks.collect::<Vec<_>>() { rank.join().unwrap()?; }
/// # Ok::<(), spark_ccl_training::Error>(())
/// ```
#[derive(Debug)]
pub struct DataParallel<O> {
    pub(crate) buckets: Buckets,
    pub(crate) optimizer: O,
    pub(crate) shares: Shares,
    /// How often the parameters were changed: not in steps whose gradients were not finite.
    updates: u64,
}

/// The bytes that a rank needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memory {
    /// The parameters in the framework.
    pub parameters: usize,
    /// The buckets of gradients. They take a little more: [`Communicator::alloc`] rounds each
    /// bucket up to a multiple of 64 KiB, or of 2 MiB where it has 2 MiB or more. Between the first
    /// step and the second, there may be two sets of them.
    pub gradients: usize,
    /// The optimizer's state, and its parameters in `f32`.
    pub state: usize,
    /// The state, if each rank had all of it.
    pub whole_state: usize,
}

impl<O: Optimizer> DataParallel<O> {
    /// Gives all ranks the parameters of rank 0. Collective: compares the ranks' models first.
    ///
    /// # Errors
    /// The same on all ranks: [`Error::Model`] if the models differ; [`Error::Invalid`] for
    /// parameters other than of 16 bits or `f32`, which optimizers compute in; [`Error::Unable`] if
    /// a rank's framework fails.
    pub fn new(
        comm: &Communicator,
        parameters: &mut impl Parameters,
        optimizer: O,
        options: Options,
    ) -> Result<Self, Error> {
        broadcast(comm, parameters, 0)?;
        Self::with_present(comm, parameters, optimizer, options)
    }

    /// With parameters that all ranks have alike.
    pub(crate) fn with_present(
        comm: &Communicator,
        parameters: &impl Parameters,
        optimizer: O,
        options: Options,
    ) -> Result<Self, Error> {
        let model = agreed_model(comm, parameters)?;
        let wide = model.tensors().iter().find(|info| info.dtype == DType::F64);
        if let Some(info) = wide {
            return Err(Error::Invalid {
                what: "an optimizer in f32",
                problem: format!("tensor {:?} is {}", info.name, info.dtype),
            });
        }
        let buckets = Buckets::new(comm, &model, options)?;
        let shares = Shares::new(&buckets, parameters, &optimizer);
        let shares = agreement::all(comm, shares, Error::Unable)?;
        Ok(Self {
            buckets,
            optimizer,
            shares,
            updates: 0,
        })
    }

    /// The tensors.
    pub fn model(&self) -> &Model {
        self.buckets.model()
    }

    /// How many steps are done.
    pub fn steps(&self) -> u64 {
        self.buckets.steps()
    }

    /// Sets the number of finished steps, like [`Buckets::set_steps`]. With the number of the
    /// caller's own loop, an error names a rank that skips a step.
    ///
    /// # Errors
    /// Those of the same method there.
    pub fn set_steps(&mut self, steps: u64) -> Result<(), Error> {
        self.buckets.set_steps(steps)
    }

    /// How often the parameters were changed.
    pub(crate) fn updates(&self) -> u64 {
        self.updates
    }

    /// After a checkpoint.
    pub(crate) fn set_updates(&mut self, updates: u64) {
        self.updates = updates;
    }

    /// The optimizer, for instance to change its rate: alike on all ranks, between steps.
    pub fn optimizer_mut(&mut self) -> &mut O {
        &mut self.optimizer
    }

    /// Adds to a gradient without reducing it, like [`Buckets::accumulate`].
    ///
    /// # Errors
    /// Those of the same method there.
    pub fn accumulate<T: Number>(&mut self, tensor: usize, gradient: &[T]) -> Result<(), Error> {
        self.buckets.accumulate(tensor, gradient)
    }

    /// Adds the last part of a gradient, like [`Buckets::ready`].
    ///
    /// # Errors
    /// Those of the same method there.
    pub fn ready<T: Number>(
        &mut self,
        comm: &Communicator,
        tensor: usize,
        gradient: &[T],
    ) -> Result<(), Error> {
        self.buckets.ready(comm, tensor, gradient)
    }

    /// Drives the calls in flight, like [`Buckets::progress`].
    ///
    /// # Errors
    /// Those of the same method there.
    pub fn progress(&mut self) -> Result<(), Error> {
        self.buckets.progress()
    }

    /// Ends the step: reduces what is left of the gradients, and changes the parameters.
    /// Collective.
    ///
    /// # Errors
    /// As [`Buckets::finish`]; the parameters are then as before, unless a call between the ranks
    /// has failed meanwhile. [`Error::Unable`] on all ranks if a rank's framework could not write a
    /// parameter: go on by [`resume`](Self::resume).
    pub fn step(
        &mut self,
        comm: &Communicator,
        parameters: &mut impl Parameters,
    ) -> Result<StepReport, Error> {
        let absent = self.buckets.conclude(comm)?;
        self.buckets.begin_change();
        self.updates += 1;
        self.change(comm, parameters)?;
        Ok(self.buckets.end(absent))
    }

    /// The bytes that this rank needs.
    pub fn memory(&self) -> Memory {
        let tensors = self.model().tensors().iter();
        let (mut parameters, mut elements) = (0, 0);
        for info in tensors {
            parameters += info.bytes();
            elements += info.len();
        }
        Memory {
            parameters,
            gradients: self.buckets.bytes(),
            state: self.shares.bytes(),
            whole_state: elements * (1 + self.optimizer.states().len()) * size_of::<f32>(),
        }
    }

    /// Changes the parameters, bucket by bucket. A rank whose framework fails makes the calls that
    /// are left, so that all ranks hear of it at the end.
    fn change(
        &mut self,
        comm: &Communicator,
        parameters: &mut impl Parameters,
    ) -> Result<(), Error> {
        let buckets = self.buckets.plan().buckets().len();
        let is_sharded = self.buckets.options().sharing == Sharing::Sharded;
        let mut written = Ok(());
        for bucket in 0..buckets {
            self.buckets.wait(bucket)?;
            self.update(bucket)?;
            if is_sharded {
                self.buckets.gather(comm, bucket)?;
            } else {
                written = written.and_then(|()| self.write(bucket, parameters));
            }
        }
        if is_sharded {
            for bucket in 0..buckets {
                self.buckets.wait(bucket)?;
                written = written.and_then(|()| self.write(bucket, parameters));
            }
        }
        self.buckets
            .blocked(|| agreement::all(comm, written, Error::Unable))
    }

    /// Replaces a bucket's gradients by the new parameters, as far as this rank has its state.
    fn update(&mut self, bucket: usize) -> Result<(), Error> {
        let updates = self.updates;
        let model = self.buckets.model().clone();
        let parts = self.buckets.plan().buckets()[bucket].parts.clone();
        let values = self.buckets.values_mut(bucket)?;
        for part in &parts {
            let range = self.shares.by_tensor[part.tensor].range.clone();
            let begin = part.begin + range.start;
            let own = begin..begin + range.len();
            let gradients = match values.get::<f32>() {
                Some(all) => Cow::Borrowed(&all[own]),
                None => Cow::Owned(each!(Contents, &*values, it => as_f32(&it[own]))),
            };
            let tensor = (part.tensor, &model.tensors()[part.tensor]);
            let changed = self
                .shares
                .update(&self.optimizer, updates, tensor, &gradients);
            each!(Contents, values, it => round_into(&mut it[begin..], changed));
        }
        Ok(())
    }

    /// Gives the framework the parameters of a bucket.
    fn write(&mut self, bucket: usize, parameters: &mut impl Parameters) -> Outcome<()> {
        let model = self.buckets.model().clone();
        let parts = self.buckets.plan().buckets()[bucket].parts.clone();
        let values = self.buckets.values_mut(bucket).map_err(Complaint::from)?;
        for part in &parts {
            let info = &model.tensors()[part.tensor];
            if values.dtype() == info.dtype {
                let size = info.dtype.size();
                let bytes = part.begin * size..(part.begin + part.len) * size;
                write(parameters, part.tensor, info, &values.bytes()[bytes])?;
            } else {
                let numbers = each!(Contents, &*values, it => as_f32(&it[part.range()]));
                let mut rounded = Values::zeros(info.dtype, part.len).map_err(Complaint::from)?;
                each!(Values, &mut rounded, it => round_into(it, &numbers));
                write(parameters, part.tensor, info, rounded.bytes())?;
            }
        }
        Ok(())
    }
}
