//! The buffers of a call in device memory, and calls in streams.

use crate::buffer::Region;
use crate::call::{Call, InPlace, Operands, OutOfPlace, Receiving, Sending};
use crate::device::{DeviceRecv, DeviceSend, Group};
use crate::error::Error;
use spark_ccl_compute::Element;
use spark_ccl_cuda::cudarc::driver::CudaStream;
use std::sync::Arc;

/// The buffers of a [`Call`], all in device memory.
pub trait DeviceOperands<T: Element>: Operands<T> {
    /// Where the buffers are, without their addresses.
    #[doc(hidden)]
    fn places(&self) -> (Region, Region);

    /// What is read and what is written, once the stream has come so far.
    #[doc(hidden)]
    fn enter(&mut self, stream: &Arc<CudaStream>) -> (Region, Region);

    /// Says that the buffers are used in the stream up to here.
    #[doc(hidden)]
    fn leave(&mut self, stream: &Arc<CudaStream>);
}

impl<'c, T: Element, O: DeviceOperands<T>> Call<'c, T, O> {
    /// Enqueues the operation in a stream and gives its buffers back. It runs when all has run that was
    /// enqueued there before; [`Communicator::wait`](crate::Communicator::wait) waits for it.
    ///
    /// ```no_run
    /// # use spark_ccl::cuda::DeviceMemory;
    /// # use spark_ccl::{Communicator, Error, RedOp};
    /// # fn sum(comm: &Communicator, mut memory: DeviceMemory<f32>) -> Result<(), Error> {
    /// let stream = comm.context()?.default_stream();
    /// comm.all_reduce_in_place(&mut memory, RedOp::Sum).on(&stream)?;
    /// comm.wait(&stream)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for arguments that cannot be right; [`Error::Unsupported`] where the communicator's
    /// backend, or the version of NCCL, cannot do it; [`Error::Failed`] when the communicator has failed.
    pub fn on(self, stream: &Arc<CudaStream>) -> Result<O::Back, Error> {
        let operation = self.spec.operation.name();
        let engine = self.comm.engine(operation)?;
        let mut operands = self.operands;
        let (from, to) = operands.places();
        engine.admit(operation, [&from, &to], stream)?;
        let (input, output) = operands.enter(stream);
        let enqueued = engine.enqueue::<T>(self.comm, &self.spec, [&input, &output], stream);
        // What was refused is not in the stream.
        if enqueued.is_ok() || engine.watch.failed() {
            operands.leave(stream);
        }
        enqueued.map(|()| operands.back())
    }

    /// Makes the operation part of a group, which enqueues it in a stream when it ends.
    pub fn within(self, group: &Group<'c>, stream: &Arc<CudaStream>)
    where
        O: 'c,
    {
        group.add(self, stream);
    }
}

impl<T: Element, S: DeviceSend<T>, R: DeviceRecv<T>> DeviceOperands<T> for OutOfPlace<S, R> {
    fn places(&self) -> (Region, Region) {
        (self.0.place(), self.1.place())
    }

    fn enter(&mut self, stream: &Arc<CudaStream>) -> (Region, Region) {
        (self.0.enter(stream), self.1.enter_mut(stream))
    }

    fn leave(&mut self, stream: &Arc<CudaStream>) {
        self.0.leave(stream);
        self.1.leave_mut(stream);
    }
}

impl<T: Element, B: DeviceRecv<T>> DeviceOperands<T> for InPlace<B> {
    fn places(&self) -> (Region, Region) {
        (self.0.place(), self.0.place())
    }

    fn enter(&mut self, stream: &Arc<CudaStream>) -> (Region, Region) {
        let region = self.0.enter_mut(stream);
        (region.clone(), region)
    }

    fn leave(&mut self, stream: &Arc<CudaStream>) {
        self.0.leave_mut(stream);
    }
}

impl<T: Element, S: DeviceSend<T>> DeviceOperands<T> for Sending<S> {
    fn places(&self) -> (Region, Region) {
        (self.0.place(), Region::empty())
    }

    fn enter(&mut self, stream: &Arc<CudaStream>) -> (Region, Region) {
        (self.0.enter(stream), Region::empty())
    }

    fn leave(&mut self, stream: &Arc<CudaStream>) {
        self.0.leave(stream);
    }
}

impl<T: Element, R: DeviceRecv<T>> DeviceOperands<T> for Receiving<R> {
    fn places(&self) -> (Region, Region) {
        (Region::empty(), self.0.place())
    }

    fn enter(&mut self, stream: &Arc<CudaStream>) -> (Region, Region) {
        (Region::empty(), self.0.enter_mut(stream))
    }

    fn leave(&mut self, stream: &Arc<CudaStream>) {
        self.0.leave_mut(stream);
    }
}
