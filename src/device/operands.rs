//! The buffers of a call in device memory, and `Call::on`, which enqueues a call in a stream.

use std::sync::Arc;

use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_cuda::keep_context;
use spark_ccl_types::Element;

use crate::api::call::{Call, InPlace, Operands, OutOfPlace, Receiving, Sending};
use crate::error::Error;
use crate::memory::device::buffer::{DeviceRecv, DeviceSend};

/// The buffers of a [`Call`], all in device memory.
pub trait DeviceOperands<T: Element>: Operands<T> {}

impl<T: Element, O: DeviceOperands<T>> Call<'_, T, O> {
    /// Enqueues the operation in a stream and gives owned buffers back. It runs after everything
    /// that was enqueued there before; [`Communicator::wait`](crate::Communicator::wait) waits for
    /// its end.
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
    /// [`Error::Invalid`] for arguments that cannot be right; [`Error::Unsupported`] where the
    /// communicator's backend, or the version of NCCL, cannot do it; [`Error::Failed`] when the
    /// communicator has failed.
    pub fn on(self, stream: &Arc<CudaStream>) -> Result<O::Back, Error> {
        let _context = keep_context();
        let comm = self.comm;
        let engine = comm.device_engine(self.spec.operation.name())?;
        let mut operands = self.operands;
        let task = self
            .spec
            .checked(operands.regions(), comm.planner().ranks())?;
        engine.enqueue(&task, stream)?;
        Ok(operands.back())
    }
}

impl<T: Element, S: DeviceSend<T>, R: DeviceRecv<T>> DeviceOperands<T> for OutOfPlace<S, R> {}

impl<T: Element, B: DeviceRecv<T>> DeviceOperands<T> for InPlace<B> {}

impl<T: Element, S: DeviceSend<T>> DeviceOperands<T> for Sending<S> {}

impl<T: Element, R: DeviceRecv<T>> DeviceOperands<T> for Receiving<R> {}
