//! Groups: calls that start together. A group keeps its calls and their buffers until it ends, and
//! only then enqueues them.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_cuda::keep_context;
use spark_ccl_types::Element;

use super::DeviceOperands;
use crate::api::call::{Call, Operands};
use crate::api::communicator::Communicator;
use crate::engine::{Engine, StreamTask};
use crate::error::Error;
use crate::memory::buffer::Region;
use crate::task::Spec;

/// Calls that are enqueued together when the group ends: from [`Communicator::group`].
///
/// Its buffers are used after the closure that puts them into the group has returned. So the
/// closure must borrow them from outside.
pub struct Group<'env> {
    calls: RefCell<Vec<Queued<'env>>>,
}

impl Communicator {
    /// Starts the calls together that `body` puts into the group ([`within`](Call::within)), of
    /// this communicator and of others. So one thread can drive several devices, and sends and
    /// receives do not wait for each other. Nothing is enqueued before `body` returns. With
    /// [`Backend::Engine`](crate::Backend::Engine), messages are passed behind the communicator's
    /// collectives of the group.
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
    /// The error of `body`; [`Error::Invalid`] for a call that cannot be right (either way nothing
    /// was enqueued); [`Error::Failed`] when a communicator has failed.
    pub fn group<'env, R, F>(&self, body: F) -> Result<R, Error>
    where
        F: FnOnce(&Group<'env>) -> Result<R, Error>,
    {
        let engine = self.device_engine("group")?;
        let group = Group {
            calls: RefCell::default(),
        };
        let value = body(&group)?;
        group.end(&**engine)?;
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

    fn end(&self, engine: &dyn Engine) -> Result<(), Error> {
        let _context = keep_context();
        let mut queued = self.calls.take();
        let tasks = queued.iter_mut().map(Queued::checked);
        let tasks = tasks.collect::<Result<Vec<_>, _>>()?;
        engine.enqueue_together(&tasks)
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
    fn checked(&mut self) -> Result<StreamTask<'_>, Error> {
        let engine = self.comm.device_engine(self.spec.operation.name())?;
        let ranks = self.comm.planner().ranks();
        Ok(StreamTask {
            engine,
            task: self.spec.checked(self.buffers.regions(), ranks)?,
            stream: &self.stream,
        })
    }
}
