//! Device memory from NCCL, which suits its registrations and windows.

use super::Engine;
use super::buffer::{DeviceRecv, DeviceSend};
use crate::buffer::{RecvBuf, Region, SendBuf};
use crate::error::Error;
use parking_lot::Mutex;
use spark_ccl_compute::Element;
use spark_ccl_cuda::cudarc::driver::sys::CUresult;
use spark_ccl_cuda::cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use spark_ccl_cuda::{checked, is_capturing};
use spark_ccl_nccl::{self as nccl, Allocation, DeviceSlice, WindowKind};
use std::marker::PhantomData;
use std::sync::Arc;

/// `len` elements of a device's memory, from [`Communicator::alloc_device`](crate::Communicator::alloc_device).
///
/// It remembers the stream that used it last: another one waits for that. It is freed when it has been dropped, that
/// stream has come to its end, and the communicators that it is registered with are gone.
#[derive(Debug)]
pub struct DeviceMemory<T> {
    block: Arc<Block>,
    len: usize,
    element: PhantomData<fn() -> T>,
}

/// How memory is registered with a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registration {
    /// For this rank; the others may do as they like.
    Local,
    /// As a symmetric window: all ranks register memory of the same length.
    Symmetric,
}

/// What is registered with a communicator. Ranks of one process share it: NCCL gives registrations up when the
/// last of them ends.
#[derive(Debug, Default)]
pub(super) struct Kept(Mutex<Vec<Arc<Block>>>);

/// An allocation of NCCL's.
#[derive(Debug)]
pub(super) struct Block {
    allocation: Option<Allocation>,
    address: u64,
    context: Arc<CudaContext>,
    /// Of the communicator that it was made with.
    rank: usize,
    last: Mutex<Option<Arc<CudaStream>>>,
}

impl<T: Element> DeviceMemory<T> {
    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its address, for CUDA.
    pub fn address(&self) -> u64 {
        self.block.address
    }

    /// Copies values to it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another number of values than it has elements, or while the stream that used it last
    /// captures a graph; [`Error::Cuda`].
    pub fn write(&mut self, values: &[T]) -> Result<(), Error> {
        self.same_length(WRITE, values.len())?;
        let stream = self.block.stream(WRITE)?;
        // SAFETY: the memory is as long as the values, which last until the stream has been waited for.
        let copied =
            unsafe { result::memcpy_htod_async(self.address(), values, stream.cu_stream()) };
        self.block.settle("cuMemcpyHtoDAsync", &stream, copied)
    }

    /// Copies its elements to `values`.
    ///
    /// # Errors
    /// As of [`write`](Self::write).
    pub fn read(&self, values: &mut [T]) -> Result<(), Error> {
        self.same_length(READ, values.len())?;
        let stream = self.block.stream(READ)?;
        // SAFETY: as in `write`; all bytes are valid elements.
        let copied =
            unsafe { result::memcpy_dtoh_async(values, self.address(), stream.cu_stream()) };
        self.block.settle("cuMemcpyDtoHAsync", &stream, copied)
    }

    fn same_length(&self, operation: &'static str, seen: usize) -> Result<(), Error> {
        if seen == self.len {
            return Ok(());
        }
        Err(Error::Invalid {
            operation,
            problem: format!("{seen} values for {} elements", self.len),
        })
    }

    fn whole(&self, stream: &Arc<CudaStream>) -> Region {
        let device = self.block.context.ordinal();
        Region::on_device(self.block.address, self.len, device, Some(stream), true)
    }

    /// Without a stream.
    fn somewhere(&self) -> Region {
        let device = self.block.context.ordinal();
        Region::on_device(self.block.address, self.len, device, None, true)
    }

    /// In the stream that used it last, or else in the default stream from now on.
    fn in_its_stream(&self) -> Region {
        let default = || self.block.context.default_stream();
        let stream = self.block.last.lock().get_or_insert_with(default).clone();
        self.whole(&stream)
    }
}

impl Block {
    /// The stream that used it last.
    fn stream(&self, operation: &'static str) -> Result<Arc<CudaStream>, Error> {
        self.checked("cuCtxSetCurrent", self.context.bind_to_thread())?;
        let last = self.last.lock().clone();
        let stream = last.unwrap_or_else(|| self.context.default_stream());
        if is_capturing(&stream).map_err(|error| error.of_rank(self.rank))? {
            return Err(Error::Invalid {
                operation,
                problem: "the stream that used the memory last captures a graph; copy before, or afterwards"
                    .to_owned(),
            });
        }
        Ok(stream)
    }

    /// Makes a stream wait for the one that used it last, and remembers it.
    fn turn_to(&self, stream: &Arc<CudaStream>) {
        let mut last = self.last.lock();
        if last.as_ref() == Some(stream) {
            return;
        }
        let joined = last
            .as_ref()
            .map_or(Ok(()), |before| follow(stream, before));
        if joined.is_ok() {
            *last = Some(Arc::clone(stream));
        }
        // Kept as cudarc keeps what cannot be returned: the check of the call says it.
        self.context.record_err(joined);
    }

    /// Waits for a copy.
    fn settle(
        &self,
        operation: &'static str,
        stream: &CudaStream,
        copied: Result<(), DriverError>,
    ) -> Result<(), Error> {
        self.checked(operation, copied)?;
        self.checked("cuStreamSynchronize", stream.synchronize())
    }

    fn checked(
        &self,
        operation: &'static str,
        result: Result<(), DriverError>,
    ) -> Result<(), Error> {
        let result = checked(operation, self.context.ordinal(), result);
        Ok(result.map_err(|error| error.of_rank(self.rank))?)
    }
}

/// Makes a stream wait for another one. By one that captures a graph, it would become part of that graph.
fn follow(stream: &CudaStream, before: &CudaStream) -> Result<(), DriverError> {
    match is_capturing(before) {
        Ok(false) => stream.join(before),
        _ => Err(DriverError(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION)),
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let last = self.last.get_mut().take();
        let Some(allocation) = self.allocation.take() else {
            return;
        };
        // By the driver's own functions: cudarc's return errors that it keeps for others.
        // SAFETY: the context lives.
        let current = unsafe { result::ctx::set_current(self.context.cu_ctx()) };
        let idle = current.and_then(|()| match last {
            // To wait for it would end the capture.
            Some(stream) if is_capturing(&stream) != Ok(false) => {
                Err(DriverError(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED))
            }
            // SAFETY: the stream lives.
            Some(stream) => unsafe { result::stream::synchronize(stream.cu_stream()) },
            None => Ok(()),
        });
        if idle.is_err() {
            tracing::warn!(
                "device memory is not freed: its stream has failed, or captures a graph"
            );
            return;
        }
        // SAFETY: all that used it has run, and what it was registered with held it until its end.
        if let Err(error) = unsafe { allocation.free() } {
            tracing::warn!("device memory: {error}");
        }
    }
}

impl Engine {
    pub(super) fn alloc<T: Element>(&self, len: usize) -> Result<DeviceMemory<T>, Error> {
        const NAME: &str = "alloc_device";
        self.checked("cuCtxSetCurrent", self.context.bind_to_thread())?;
        let bytes = len.saturating_mul(size_of::<T>()).max(1);
        let allocation = self.library.allocate(bytes);
        let allocation = allocation.map_err(|error| match error {
            error @ nccl::Error::Unsupported { .. } => super::error::refused(NAME, error),
            error => Error::Memory {
                what: format!(
                    "{bytes} bytes of device {} for {}",
                    self.device(),
                    self.member()
                ),
                problem: error.to_string(),
            },
        })?;
        Ok(DeviceMemory {
            block: Arc::new(Block {
                address: allocation.start().addr() as u64,
                allocation: Some(allocation),
                context: Arc::clone(&self.context),
                rank: self.rank,
                last: Mutex::new(None),
            }),
            len,
            element: PhantomData,
        })
    }

    /// What registering memory needs to be right here.
    pub(super) fn registrable<T: Element>(&self, memory: &DeviceMemory<T>) -> Result<(), Error> {
        let device = memory.block.context.ordinal();
        if device == self.device() {
            return Ok(());
        }
        Err(Error::Invalid {
            operation: REGISTER,
            problem: format!(
                "the memory is of device {device}, but the communicator of device {}",
                self.device()
            ),
        })
    }

    /// Registers memory until the communicator's end; whether NCCL makes use of that.
    pub(super) fn register<T: Element>(
        &self,
        memory: &DeviceMemory<T>,
        kind: Registration,
    ) -> Result<Register, Error> {
        self.registrable(memory)?;
        let start = std::ptr::without_provenance_mut(memory.block.address as usize);
        let device = self.device() as i32;
        // SAFETY: it is kept until NCCL's communicators of this process have ended.
        let slice = unsafe { DeviceSlice::from_raw(start, memory.len, T::DTYPE, device) };
        // Before: should registering fail, NCCL may have done half of it.
        let kept = Arc::clone(&self.lock()?.kept);
        kept.0.lock().push(Arc::clone(&memory.block));
        Ok(Register { slice, kind })
    }

    pub(super) fn do_register(&self, Register { slice, kind }: Register) -> Result<bool, Error> {
        self.with(REGISTER, |_, nccl| match kind {
            Registration::Local => nccl.register(slice).map(|done| done.is_used()),
            Registration::Symmetric => nccl
                .register_window(slice, WindowKind::Symmetric)
                .map(|window| window.is_used()),
        })
    }
}

/// A registration to be made.
pub(super) struct Register {
    slice: DeviceSlice,
    kind: Registration,
}

const REGISTER: &str = "register_device";
const WRITE: &str = "DeviceMemory::write";
const READ: &str = "DeviceMemory::read";

// SAFETY: it owns the memory, which stays until the last stream that used it has come to its end.
unsafe impl<T: Element> SendBuf<T> for &DeviceMemory<T> {
    fn region(&self) -> Region {
        self.in_its_stream()
    }
}

// SAFETY: as above.
unsafe impl<T: Element> SendBuf<T> for &mut DeviceMemory<T> {
    fn region(&self) -> Region {
        self.in_its_stream()
    }
}

// SAFETY: as above, by a unique borrow of the only handle.
unsafe impl<T: Element> RecvBuf<T> for &mut DeviceMemory<T> {
    fn region_mut(&mut self) -> Region {
        self.in_its_stream()
    }
}

// SAFETY: as above; streams that use it wait for each other.
unsafe impl<T: Element> DeviceSend<T> for &DeviceMemory<T> {
    fn place(&self) -> Region {
        self.somewhere()
    }

    fn enter(&self, stream: &Arc<CudaStream>) -> Region {
        self.block.turn_to(stream);
        self.whole(stream)
    }

    fn leave(&self, stream: &Arc<CudaStream>) {
        // In a group, another stream may have had it in between.
        self.block.turn_to(stream);
    }
}

// SAFETY: as above.
unsafe impl<T: Element> DeviceRecv<T> for &mut DeviceMemory<T> {
    fn place(&self) -> Region {
        self.somewhere()
    }

    fn enter_mut(&mut self, stream: &Arc<CudaStream>) -> Region {
        self.block.turn_to(stream);
        self.whole(stream)
    }

    fn leave_mut(&mut self, stream: &Arc<CudaStream>) {
        self.block.turn_to(stream);
    }
}
