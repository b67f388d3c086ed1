//! Calls that start together.

use super::meeting::Meeting;
use super::{DeviceOperands, Engine};
use crate::buffer::Region;
use crate::call::{Call, Operands};
use crate::communicator::Communicator;
use crate::error::Error;
use crate::task::{Spec, Task, check};
use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_nccl as nccl;
use spark_ccl_types::Element;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Calls that are enqueued when it ends: from [`Communicator::group`].
///
/// Its buffers are used after the closure has returned that put them into it: what that borrows must be from
/// outside of it.
pub struct Group<'env> {
    calls: RefCell<Vec<Queued<'env>>>,
}

impl Communicator {
    /// Lets the calls that `body` puts into the group ([`within`](Call::within)) start together, of this
    /// communicator and of others: so one thread can work for several devices, and sends and receives do not
    /// wait for each other. Nothing is enqueued before `body` returns.
    ///
    /// ```no_run
    /// # use spark_ccl::cuda::DeviceMemory;
    /// # use spark_ccl::{Communicator, Error, RedOp};
    /// /// The sum over the devices of this process, one thread's work.
    /// fn sum(comms: &[Communicator], memory: &mut [DeviceMemory<f32>]) -> Result<(), Error> {
    ///     comms[0].group(|group| {
    ///         for (comm, memory) in comms.iter().zip(memory) {
    ///             let stream = comm.context()?.default_stream();
    ///             comm.all_reduce_in_place(memory, RedOp::Sum).within(group, &stream);
    ///         }
    ///         Ok(())
    ///     })
    /// }
    /// ```
    ///
    /// # Errors
    /// The error of `body`; [`Error::Invalid`] for a call that cannot be right (either way nothing was
    /// enqueued); [`Error::Failed`] when a communicator has failed.
    pub fn group<'env, R, F>(&self, body: F) -> Result<R, Error>
    where
        F: FnOnce(&Group<'env>) -> Result<R, Error>,
    {
        let engine = self.engine("group")?;
        let group = Group {
            calls: RefCell::default(),
        };
        let value = body(&group)?;
        group.end(engine)?;
        Ok(value)
    }
}

impl<'c, T: Element, O: DeviceOperands<T>> Call<'c, T, O> {
    /// Makes the operation part of a group, which enqueues it in a stream when it ends.
    pub fn within(self, group: &Group<'c>, stream: &Arc<CudaStream>)
    where
        O: 'c,
    {
        group.add(self, stream);
    }
}

impl<'env> Group<'env> {
    fn add<T: Element, O: DeviceOperands<T> + 'env>(
        &self,
        call: Call<'env, T, O>,
        stream: &Arc<CudaStream>,
    ) {
        let Call {
            comm,
            spec,
            operands,
            ..
        } = call;
        self.calls.borrow_mut().push(Queued {
            comm,
            spec,
            buffers: Box::new(Typed(operands, PhantomData)),
            stream: Arc::clone(stream),
        });
    }

    fn end(&self, engine: &Engine) -> Result<(), Error> {
        let mut queued = self.calls.take();
        let calls = queued.iter_mut().map(Queued::check);
        let calls = calls.collect::<Result<Vec<_>, _>>()?;
        // All ranks' meetings are under way before any is waited for: they may be this thread's.
        let mut meetings = Vec::new();
        for call in &calls {
            meetings.extend(call.meet()?);
        }
        meetings.into_iter().try_for_each(Meeting::wait)?;
        calls.iter().try_for_each(Checked::hold_back)?;
        for call in &calls {
            call.goes_inside(true);
        }
        let done = engine.library.group(|| {
            let mut steps = calls.iter();
            steps.try_for_each(|call| call.enqueue().map_err(Failure::Own))
        });
        let goes_on = matches!(&done, Err(Failure::Nccl(error)) if error.goes_on());
        let mut noted = Ok(());
        for call in &calls {
            call.goes_inside(false);
            if !goes_on {
                noted = noted.and(call.note());
            }
        }
        done.map_err(|failure| match failure {
            Failure::Own(error) => error,
            Failure::Nccl(error) => {
                let error = Arc::new(error);
                let mut said = None;
                for call in &calls {
                    said = Some(call.failed(&error));
                }
                // Once all ranks are told.
                let unknown = calls.iter().filter(|_| goes_on);
                unknown.for_each(Checked::outlive);
                said.unwrap_or_else(|| engine.failed("group", error))
            }
        })?;
        noted
    }
}

/// Why a group failed.
enum Failure {
    Own(Error),
    Nccl(nccl::Error),
}

impl From<nccl::Error> for Failure {
    fn from(error: nccl::Error) -> Self {
        Self::Nccl(error)
    }
}

/// The buffers of a call of any type.
trait Buffers {
    fn regions(&mut self) -> (Region, Region);
}

struct Typed<T, O>(O, PhantomData<T>);

impl<T: Element, O: Operands<T>> Buffers for Typed<T, O> {
    fn regions(&mut self) -> (Region, Region) {
        self.0.regions()
    }
}

/// A call that the group keeps, with its buffers, until it ends.
struct Queued<'env> {
    comm: &'env Communicator,
    spec: Spec,
    buffers: Box<dyn Buffers + 'env>,
    stream: Arc<CudaStream>,
}

impl Queued<'_> {
    fn check(&mut self) -> Result<Checked<'_>, Error> {
        let Self {
            comm,
            spec,
            buffers,
            stream,
        } = self;
        let engine = comm.engine(spec.operation.name())?;
        let mut task = spec.task(buffers.regions());
        check(spec, &mut task, comm.ranks())?;
        engine.admit(&task, stream)?;
        Ok(Checked {
            comm,
            engine,
            task,
            stream,
        })
    }
}

/// A call that was checked.
struct Checked<'a> {
    comm: &'a Communicator,
    engine: &'a Arc<Engine>,
    task: Task,
    stream: &'a Arc<CudaStream>,
}

impl Checked<'_> {
    fn meet(&self) -> Result<Option<Meeting>, Error> {
        self.engine.meet(self.comm, self.task.signature)
    }

    /// Makes its stream wait for its memory.
    fn hold_back(&self) -> Result<(), Error> {
        let operation = self.task.operation().name();
        self.engine
            .hold_back(operation, self.task.regions(), self.stream)
    }

    fn enqueue(&self) -> Result<(), Error> {
        self.engine.group(&self.task, self.stream)
    }

    /// The group is about to end, from which NCCL may not come back; or has ended.
    fn goes_inside(&self, inside: bool) {
        let Engine { begun, ended, .. } = &**self.engine;
        let count = if inside { begun } else { ended };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes it, after the group's end.
    fn note(&self) -> Result<(), Error> {
        self.engine.note(self.task.regions(), self.stream)
    }

    /// Keeps its memory: NCCL goes on with it.
    fn outlive(&self) {
        self.engine.outlive(self.task.regions());
    }

    /// Fails its communicator for the error of the group.
    fn failed(&self, error: &Arc<nccl::Error>) -> Error {
        self.engine.failed("group", Arc::clone(error))
    }
}
