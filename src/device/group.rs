//! Calls that start together.

use super::meeting::Meeting;
use super::{DeviceOperands, Engine};
use crate::buffer::Region;
use crate::call::{Call, check};
use crate::communicator::Communicator;
use crate::error::Error;
use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_nccl as nccl;
use spark_ccl_types::{Element, Signature};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Calls that are enqueued when it ends: from [`Communicator::group`].
///
/// Its buffers are used after the closure has returned that put them into it: what that borrows must be from
/// outside of it.
pub struct Group<'env> {
    calls: RefCell<Vec<Box<dyn Step + 'env>>>,
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
        self.calls.borrow_mut().push(Box::new(Queued {
            call,
            stream: Arc::clone(stream),
            ready: None,
        }));
    }

    fn end(&self, engine: &Engine) -> Result<(), Error> {
        let mut calls = self.calls.take();
        for call in &mut calls {
            call.check()?;
        }
        // All ranks' meetings are under way before any is waited for: they may be this thread's.
        let mut meetings = Vec::new();
        for call in &calls {
            meetings.extend(call.meet()?);
        }
        meetings.into_iter().try_for_each(Meeting::wait)?;
        calls.iter().try_for_each(|call| call.hold_back())?;
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
                    said = call.failed(&error).or(said);
                }
                // Once all ranks are told.
                let unknown = calls.iter().filter(|_| goes_on);
                unknown.for_each(|call| call.outlive());
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

/// A call of any type and buffers.
trait Step {
    fn check(&mut self) -> Result<(), Error>;
    fn meet(&self) -> Result<Option<Meeting>, Error>;
    /// Makes its stream wait for its memory.
    fn hold_back(&self) -> Result<(), Error>;
    fn enqueue(&self) -> Result<(), Error>;
    /// The group is about to end, from which NCCL may not come back; or has ended.
    fn goes_inside(&self, inside: bool);
    /// Notes it, after the group's end.
    fn note(&self) -> Result<(), Error>;
    /// Keeps its memory: NCCL goes on with it.
    fn outlive(&self);
    /// Fails its communicator for the error of the group.
    fn failed(&self, error: &Arc<nccl::Error>) -> Option<Error>;
}

struct Queued<'c, T, O> {
    call: Call<'c, T, O>,
    stream: Arc<CudaStream>,
    ready: Option<Ready>,
}

/// What a checked call has.
struct Ready {
    engine: Arc<Engine>,
    input: Region,
    output: Region,
    signature: Signature,
}

impl<T: Element, O: DeviceOperands<T>> Step for Queued<'_, T, O> {
    fn check(&mut self) -> Result<(), Error> {
        let Call {
            comm,
            spec,
            operands,
            ..
        } = &mut self.call;
        let engine = comm.engine(spec.operation.name())?;
        let (input, output) = operands.regions();
        engine.admit(spec.operation.name(), [&input, &output], &self.stream)?;
        let signature = check::signature::<T>(comm, spec, [&input, &output])?;
        self.ready = Some(Ready {
            engine: Arc::clone(engine),
            input,
            output,
            signature,
        });
        Ok(())
    }

    fn meet(&self) -> Result<Option<Meeting>, Error> {
        match &self.ready {
            Some(ready) => ready.engine.meet(self.call.comm, ready.signature),
            None => Ok(None),
        }
    }

    fn hold_back(&self) -> Result<(), Error> {
        let operation = self.call.spec.operation.name();
        self.with_ready(|ready, regions| ready.engine.hold_back(operation, regions, &self.stream))
    }

    fn enqueue(&self) -> Result<(), Error> {
        self.with_ready(|ready, regions| {
            let spec = &self.call.spec;
            ready.engine.group::<T>(spec, regions, &self.stream)
        })
    }

    fn goes_inside(&self, inside: bool) {
        if let Some(ready) = &self.ready {
            let engine = &ready.engine;
            let count = if inside { &engine.begun } else { &engine.ended };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn note(&self) -> Result<(), Error> {
        self.with_ready(|ready, regions| ready.engine.note(regions, &self.stream))
    }

    fn outlive(&self) {
        if let Some(ready) = &self.ready {
            ready.engine.outlive([&ready.input, &ready.output]);
        }
    }

    fn failed(&self, error: &Arc<nccl::Error>) -> Option<Error> {
        let ready = self.ready.as_ref()?;
        Some(ready.engine.failed("group", Arc::clone(error)))
    }
}

impl<T, O> Queued<'_, T, O> {
    /// Does something with a call that was checked.
    fn with_ready(
        &self,
        work: impl FnOnce(&Ready, [&Region; 2]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let ready = self.ready.as_ref();
        ready.map_or(Ok(()), |ready| work(ready, [&ready.input, &ready.output]))
    }
}
