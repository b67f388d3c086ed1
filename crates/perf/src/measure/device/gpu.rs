//! One GPU: a rank, its stream and its memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use spark_ccl::cuda::{DeviceMemory, DeviceSlice, Registration};
use spark_ccl::{Communicator, Element};
use spark_ccl_cuda::cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use spark_ccl_cuda::{checked, generation, is_idle};

use super::kernels::Kernels;
use crate::cli::options::Options;
use crate::error::Error;

/// One rank on one GPU.
#[derive(Debug)]
pub(super) struct Gpu {
    pub(super) comm: Communicator,
    pub(super) stream: Arc<CudaStream>,
    pub(super) kernels: Kernels,
    buffers: Option<[DeviceMemory<u8>; 2]>,
}

impl Gpu {
    /// The rank's communicator must have a GPU.
    pub(super) fn new(comm: Communicator, options: &Options) -> Result<Self, Error> {
        let own = |error: spark_ccl_cuda::Error| error.of_rank(comm.rank());
        let context = comm.context()?;
        let stream = if options.null_stream {
            context.default_stream()
        } else {
            let stream = context.new_stream();
            checked("cuStreamCreate", context.ordinal(), stream).map_err(own)?
        };
        Ok(Self {
            kernels: Kernels::load(&stream).map_err(own)?,
            stream,
            buffers: None,
            comm,
        })
    }

    /// CUDA's device ordinal.
    pub(super) fn ordinal(&self) -> usize {
        self.stream.context().ordinal()
    }

    /// Adds the operation, the device and the rank to the error of a CUDA call.
    pub(super) fn checked<T>(
        &self,
        operation: &'static str,
        result: Result<T, DriverError>,
    ) -> Result<T, spark_ccl_cuda::Error> {
        let result = checked(operation, self.ordinal(), result);
        result.map_err(|error| error.of_rank(self.comm.rank()))
    }

    /// The major number of the compute capability.
    pub(super) fn generation(&self) -> Result<i32, Error> {
        let generation = generation(self.stream.context());
        Ok(generation.map_err(|error| error.of_rank(self.comm.rank()))?)
    }

    /// The free bytes of its memory.
    pub(super) fn free(&self) -> Result<u64, Error> {
        free(self.stream.context(), self.comm.rank())
    }

    /// Allocates a send and a receive buffer of `bytes` each. Returns whether their registration is
    /// used; true if they are not registered.
    pub(super) fn allocate(
        &mut self,
        bytes: usize,
        registered: Option<Registration>,
    ) -> Result<bool, Error> {
        let allocate = || self.comm.alloc_device(bytes);
        let buffers = self.buffers.insert([allocate()?, allocate()?]);
        let mut is_used = true;
        if let Some(kind) = registered {
            for buffer in buffers {
                is_used &= self.comm.register_device(buffer, kind)?;
            }
        }
        Ok(is_used)
    }

    /// The send and the receive buffer, from element `base` on.
    pub(super) fn slices<T: Element>(&self, base: usize) -> Option<[DeviceSlice<T>; 2]> {
        let [send, recv] = self.buffers.as_ref()?;
        let slice = |memory: &DeviceMemory<u8>| {
            let len = memory.len() / size_of::<T>();
            // SAFETY: the memory lives as long as this GPU, whose drop waits for its stream first;
            // all work that uses the memory is enqueued in that stream.
            let slice = unsafe { DeviceSlice::from_raw(memory.address(), len, self.ordinal()) };
            slice.part(base, len.checked_sub(base)?)
        };
        Some([slice(send)?, slice(recv)?])
    }

    /// Copies within its memory, in its stream. Both parts must have the same length, and must not
    /// overlap.
    pub(super) fn copy<T: Element>(
        &self,
        from: DeviceSlice<T>,
        to: DeviceSlice<T>,
    ) -> Result<(), spark_ccl::Error> {
        let bytes = from.len().min(to.len()) * size_of::<T>();
        let context = self.stream.context();
        let copied = context.bind_to_thread().and_then(|()| {
            // SAFETY: the callers of `from_raw` promised that the memory is valid; `bytes` exceeds
            // neither part, and the stream is alive.
            unsafe {
                result::memcpy_dtod_async(
                    to.address(),
                    from.address(),
                    bytes,
                    self.stream.cu_stream(),
                )
            }
        });
        Ok(self.checked("cuMemcpyDtoDAsync", copied)?)
    }

    /// Waits for its stream.
    pub(super) fn wait(&self) -> Result<(), spark_ccl::Error> {
        self.comm.wait(&self.stream)
    }
}

/// The free bytes of the memory of a rank's GPU.
pub(super) fn free(context: &CudaContext, rank: usize) -> Result<u64, Error> {
    let info = checked("cuMemGetInfo", context.ordinal(), context.mem_get_info());
    let (free, _) = info.map_err(|error| error.of_rank(rank))?;
    Ok(free as u64)
}

impl Drop for Gpu {
    fn drop(&mut self) {
        const PATIENCE: Duration = Duration::from_secs(2);
        let start = Instant::now();
        while is_idle(&self.stream) == Ok(false) {
            if start.elapsed() > PATIENCE {
                self.comm.abort("spark-perf ends with calls in flight");
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // Even if this fails, nothing uses the memory any more.
        let _ = self.wait();
    }
}
