//! The methods of communicators for device memory: the context, allocation, registration, waiting.
//! They pass everything to the engine, whichever that is.

use std::sync::Arc;

use spark_ccl_config::GpuLayout;
use spark_ccl_cuda::cudarc::driver::{CudaContext, CudaStream};
use spark_ccl_cuda::keep_context;
use spark_ccl_types::{DType, Element, Operation};

use crate::api::communicator::Communicator;
use crate::engine::Registration;
use crate::error::Error;
use crate::memory::device::memory::DeviceMemory;

impl Communicator {
    /// CUDA's number of this rank's device, if it has one.
    pub fn device(&self) -> Option<usize> {
        self.device
            .as_ref()
            .map(|engine| engine.context().ordinal())
    }

    /// The primary context of this rank's device: memory and streams are made with it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without a [`Backend`](crate::Backend) for device memory.
    pub fn context(&self) -> Result<&Arc<CudaContext>, Error> {
        self.device_engine("context").map(|engine| engine.context())
    }

    /// How device memory reaches the other ranks, for people: through the peers' memory, or staged
    /// through the host, with how much memory, and why no faster way was taken. `None` where NCCL
    /// chooses, or there is no backend for device memory.
    ///
    /// ```no_run
    /// # use spark_ccl::{Backend, Communicator, Error};
    /// let comm = Communicator::builder().backend(Backend::Engine).local(1)?.remove(0);
    /// if let Some(path) = comm.device_path() {
    ///     println!("device memory: {path}");
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn device_path(&self) -> Option<String> {
        // A forked child may find the engine's locks held for good.
        let device = self.device.as_ref()?;
        device.process().check().ok()?;
        device.path()
    }

    /// How a call on device memory is done, for people: by which kernel, or in how many pieces.
    /// `count` is that of [`explain`](Self::explain); of messages, their elements. `None` where
    /// NCCL chooses, where there is no backend for device memory, or for operations without one.
    ///
    /// ```no_run
    /// # use spark_ccl::{Backend, Communicator, Error};
    /// use spark_ccl::{DType, Operation};
    ///
    /// let comm = Communicator::builder().backend(Backend::Engine).local(1)?.remove(0);
    /// if let Some(choice) = comm.explain_device(Operation::AllReduce, DType::F32, 1 << 20) {
    ///     println!("{choice}");
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn explain_device(
        &self,
        operation: Operation,
        dtype: DType,
        count: usize,
    ) -> Option<String> {
        let device = self.device.as_ref()?;
        device.process().check().ok()?;
        device.explain(operation, dtype, count)
    }

    /// The names of the kernels of our own that can do a call on device memory, and the placement
    /// of the ranks. `spark-perf tune --backend engine` stores the fastest kernel under that
    /// placement. `None` where NCCL chooses, where the host carries the data, on GPUs of several
    /// models, or without a backend for device memory.
    ///
    /// ```no_run
    /// # use spark_ccl::{Backend, Communicator, Error};
    /// use spark_ccl::Operation;
    ///
    /// let comm = Communicator::builder().backend(Backend::Engine).local(1)?.remove(0);
    /// if let Some((layout, kernels)) = comm.device_kernels(Operation::AllReduce) {
    ///     println!("{layout}: {}", kernels.join(", "));
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn device_kernels(&self, operation: Operation) -> Option<(GpuLayout, Vec<&'static str>)> {
        let device = self.device.as_ref()?;
        device.process().check().ok()?;
        device.kernels(operation)
    }

    /// Whether kernels pass the data of calls on device memory between the GPUs of all ranks, with
    /// no work of the host. True also for GPUs of several models, which have no
    /// [`device_kernels`](Self::device_kernels) to choose from. `false` with NCCL.
    pub fn is_between_gpus(&self) -> bool {
        let device = self.device.as_ref();
        device.is_some_and(|device| device.process().check().is_ok() && device.is_between_gpus())
    }

    /// Waits until everything that was enqueued in the stream has run.
    ///
    /// # Errors
    /// [`Error::Failed`] when the communicator has failed or fails meanwhile, which it does after
    /// the operation timeout; [`Error::Cuda`] when something in the stream has failed.
    pub fn wait(&self, stream: &CudaStream) -> Result<(), Error> {
        let engine = self.device_engine("wait")?;
        let _context = keep_context();
        engine.wait(stream)
    }

    /// `len` elements of memory of this rank's device, for
    /// [`register_device`](Self::register_device). Their values are not defined. The memory comes
    /// from the driver, in whole pages of the GPU (2 MiB).
    ///
    /// Where calls go by way of the host, and all ranks have `SPARK_CCL_GPU_PINNED=1`, it is pinned
    /// memory of the host, as [`device_path`](Self::device_path) then says. Collectives with all
    /// buffers in pinned memory are not staged, so either all ranks should pass pinned memory, or
    /// none. Where they differ, calls longer than 128 KiB fail, and the error names both. Freeing
    /// pinned memory waits for all kernels of its GPU, and holds up all threads that use the GPU
    /// meanwhile. So dropped memory is kept for later allocations. A thread of the library frees it
    /// while no call is in flight on the GPU, if it exceeds 128 MiB (half of
    /// `SPARK_CCL_GPU_SET_ASIDE`), or an allocation finds no memory. If there is no memory, or more
    /// than the limit is kept, an allocation waits for that, for up to 5 s, and then fails.
    ///
    /// # Errors
    /// [`Error::Memory`] when there is not enough; [`Error::Unsupported`] without a
    /// [`Backend`](crate::Backend) for device memory.
    pub fn alloc_device<T: Element>(&self, len: usize) -> Result<DeviceMemory<T>, Error> {
        let bytes = len.saturating_mul(size_of::<T>()).max(1);
        let engine = self.device_engine("alloc_device")?;
        let _context = keep_context();
        let block = engine.alloc(bytes)?;
        Ok(DeviceMemory::new(block, len))
    }

    /// Registers device memory with this communicator until the memory is dropped, or the
    /// communicator ends. Returns whether NCCL makes use of the registration; our own kernels never
    /// do: they take memory as it is. Symmetric windows are registered by all ranks together, each
    /// in a thread of its own. Windows that all ranks have dropped are given up when the ranks
    /// register the next one.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when NCCL is older than 2.19, and for windows than 2.27;
    /// [`Error::Failed`] when NCCL fails.
    pub fn register_device<T: Element>(
        &self,
        memory: &DeviceMemory<T>,
        kind: Registration,
    ) -> Result<bool, Error> {
        let engine = self.device_engine("register_device")?;
        let _context = keep_context();
        Arc::clone(engine).register(memory.typed(), kind)
    }
}
