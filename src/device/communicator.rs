//! What communicators offer for device memory.

use super::{DeviceMemory, Engine, Registration};
use crate::communicator::Communicator;
use crate::error::Error;
use spark_ccl_compute::Element;
use spark_ccl_cuda::cudarc::driver::{CudaContext, CudaStream};
use spark_ccl_nccl as nccl;
use std::sync::Arc;

impl Communicator {
    /// CUDA's number of this rank's device, if it has one.
    pub fn device(&self) -> Option<usize> {
        self.device.as_ref().map(|engine| engine.device())
    }

    /// The primary context of this rank's device: memory and streams are made with it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without [`Backend::Nccl`](crate::Backend::Nccl).
    pub fn context(&self) -> Result<&Arc<CudaContext>, Error> {
        self.engine("context").map(|engine| &engine.context)
    }

    /// Waits until all has run that was enqueued in the stream.
    ///
    /// # Errors
    /// [`Error::Failed`] when the communicator has failed or fails meanwhile, which it does after the operation
    /// timeout; [`Error::Cuda`] when something in the stream has failed.
    pub fn wait(&self, stream: &CudaStream) -> Result<(), Error> {
        self.engine("wait")?.wait(stream)
    }

    /// Lets the calls of `body` that enqueue device memory, of this communicator and of others of this
    /// thread, start together: so one thread can work for several devices, and sends and receives do not
    /// wait for each other.
    ///
    /// ```no_run
    /// # use spark_ccl::cuda::DeviceMemory;
    /// # use spark_ccl::{Communicator, Error, RedOp};
    /// /// The sum over the devices of this process, one thread's work.
    /// fn sum(comms: &[Communicator], memory: &mut [DeviceMemory<f32>]) -> Result<(), Error> {
    ///     comms[0].group(|| {
    ///         for (comm, memory) in comms.iter().zip(memory) {
    ///             let stream = comm.context()?.default_stream();
    ///             comm.all_reduce_in_place(memory, RedOp::Sum).on(&stream)?;
    ///         }
    ///         Ok(())
    ///     })
    /// }
    /// ```
    ///
    /// # Errors
    /// The error of `body` (what it enqueued before starts nonetheless), or else of what was enqueued.
    pub fn group<R>(&self, body: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
        const NAME: &str = "group";
        let engine = self.engine(NAME)?;
        let done = engine.library.group(|| body().map_err(Failure::Own));
        done.map_err(|failure| match failure {
            Failure::Own(error) => error,
            Failure::Nccl(error) => engine.failed(NAME, &error),
        })
    }

    /// `len` elements of memory of this rank's device, from NCCL, for [`register_device`](Self::register_device).
    ///
    /// # Errors
    /// [`Error::Memory`] when there is not enough; [`Error::Unsupported`] without
    /// [`Backend::Nccl`](crate::Backend::Nccl), or when NCCL is older than 2.19.
    pub fn alloc_device<T: Element>(&self, len: usize) -> Result<DeviceMemory<T>, Error> {
        self.engine("alloc_device")?.alloc(len)
    }

    /// Registers device memory with this communicator until its end; whether NCCL makes use of it. As a symmetric
    /// window, all ranks do this together, several of one thread in a [`group`](Self::group).
    ///
    /// # Errors
    /// [`Error::Unsupported`] when NCCL is older than 2.19, and for windows than 2.27;
    /// [`Error::Failed`] when NCCL fails.
    pub fn register_device<T: Element>(
        &self,
        memory: &DeviceMemory<T>,
        kind: Registration,
    ) -> Result<bool, Error> {
        self.engine("register_device")?.register(memory, kind)
    }

    pub(crate) fn engine(&self, operation: &'static str) -> Result<&Arc<Engine>, Error> {
        self.device.as_ref().ok_or_else(|| Error::Unsupported {
            what: operation.to_owned(),
            reason: "this communicator knows no device memory; make it with Backend::Nccl, or \
                     SPARK_CCL_BACKEND=nccl"
                .to_owned(),
        })
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
