//! Device memory that an engine has allocated, as users hold it; it can be registered with that
//! engine. Its parts are in `view.rs`, its uses in `block.rs`.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_fork::Owned;
use spark_ccl_types::{DType, Element};

use super::block::Block;
use super::buffer::{DeviceRecv, DeviceSend};
use super::view::{DeviceView, Owner};
use super::view_mut::DeviceViewMut;
use crate::error::Error;
use crate::memory::buffer::{RecvBuf, Region, SendBuf, gives_back};

/// A whole block, as elements of a type.
pub(crate) struct TypedBlock<'a> {
    pub(crate) block: &'a Arc<Block>,
    pub(crate) len: usize,
    pub(crate) dtype: DType,
}

/// `len` elements of a device's memory, from
/// [`Communicator::alloc_device`](crate::Communicator::alloc_device).
///
/// It remembers the ends of the calls that use it: the next write waits for all of them, and the
/// next read for the last write. Dropping it does not block: the memory is freed once all these
/// calls have run, and it is not [registered](crate::Communicator::register_device) any more.
#[derive(Debug)]
pub struct DeviceMemory<T> {
    owner: Owned<Owner>,
    len: usize,
    element: PhantomData<fn() -> T>,
}

impl<T: Element> DeviceMemory<T> {
    /// All of a block that nobody else has, which is long enough for `len` elements.
    pub(crate) fn new(block: Arc<Block>, len: usize) -> Self {
        Self {
            owner: Owned::new(Owner::new(block)),
            len,
            element: PhantomData,
        }
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its address, for CUDA. Users' own kernels and copies use it by [`read_in`](Self::read_in)
    /// and [`write_in`](Self::write_in) a stream.
    pub fn address(&self) -> u64 {
        self.owner.block().address
    }

    /// A part of it for calls that read.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the range is not within it.
    pub fn view(&self, range: Range<usize>) -> Result<DeviceView<'_, T>, Error> {
        self.whole().view(range)
    }

    /// A part of it for calls that write.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the range is not within it.
    pub fn view_mut(&mut self, range: Range<usize>) -> Result<DeviceViewMut<'_, T>, Error> {
        self.whole_mut().view_mut(range)
    }

    /// Its first `mid` elements, and the others: two buffers of one call, or of several. Calls that
    /// use parts of the memory wait for each other in the same way as calls that use all of it.
    ///
    /// ```no_run
    /// # use spark_ccl::{Communicator, Error, RedOp};
    /// # fn sum(comm: &Communicator) -> Result<(), Error> {
    /// let mut memory = comm.alloc_device::<f32>(200)?;
    /// let (mut own, sums) = memory.split_at_mut(100)?;
    /// own.write(&[1.0; 100])?;
    /// comm.all_reduce(own, sums, RedOp::Sum).run()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] when it has fewer.
    pub fn split_at_mut(
        &mut self,
        mid: usize,
    ) -> Result<(DeviceViewMut<'_, T>, DeviceViewMut<'_, T>), Error> {
        self.whole_mut().split_at_mut(mid)
    }

    /// Copies values to it, when the calls with it have run.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another number of values than it has elements; [`Error::Cuda`]. The
    /// memory cannot be used any more after a copy that has failed, since that may still run.
    pub fn write(&mut self, values: &[T]) -> Result<(), Error> {
        self.whole_mut().write(values)
    }

    /// Copies its elements to `values`, when the calls that write them have run.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub fn read(&self, values: &mut [T]) -> Result<(), Error> {
        self.whole().read(values)
    }

    /// Lets the user's own kernels and copies read it in a stream, in order with calls. They run
    /// after the calls that write it, and the next write waits for them. `enqueue` gets its
    /// address, and enqueues them in that stream.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a stream of another context, the per-thread stream, and one that
    /// captures a graph; [`Error::Cuda`]. Then nothing is enqueued.
    pub fn read_in<R>(
        &self,
        stream: &Arc<CudaStream>,
        enqueue: impl FnOnce(u64) -> R,
    ) -> Result<R, Error> {
        self.whole().read_in(stream, enqueue)
    }

    /// Lets the user's own kernels and copies write it, or read it, in a stream, in order with
    /// calls. They run after all calls with it, and its next use waits for them. `enqueue` gets its
    /// address, and enqueues them in that stream.
    ///
    /// ```no_run
    /// # use spark_ccl::cuda::DeviceMemory;
    /// # use spark_ccl::cuda::cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
    /// # use spark_ccl::{Communicator, RedOp};
    /// # fn scale(comm: &Communicator, kernel: &CudaFunction, memory: &mut DeviceMemory<f32>) -> Result<(), Box<dyn std::error::Error>> {
    /// let stream = comm.context()?.new_stream()?;
    /// let len = memory.len() as u64;
    /// memory.write_in(&stream, |address| {
    ///     let mut launch = stream.launch_builder(kernel);
    ///     launch.arg(&address).arg(&len);
    ///     // SAFETY: the kernel takes an address and a length, and writes nothing else.
    ///     unsafe { launch.launch(LaunchConfig::for_num_elems(len as u32)) }
    /// })??;
    /// // It sums what the kernel has written, no matter in which stream.
    /// comm.all_reduce_in_place(memory, RedOp::Sum).run()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`read_in`](Self::read_in).
    pub fn write_in<R>(
        &mut self,
        stream: &Arc<CudaStream>,
        enqueue: impl FnOnce(u64) -> R,
    ) -> Result<R, Error> {
        self.whole_mut().write_in(stream, enqueue)
    }

    pub(crate) fn typed(&self) -> TypedBlock<'_> {
        TypedBlock {
            block: self.owner.block(),
            len: self.len,
            dtype: T::DTYPE,
        }
    }

    fn whole(&self) -> DeviceView<'_, T> {
        DeviceView::whole(&self.owner, self.len)
    }

    fn whole_mut(&mut self) -> DeviceViewMut<'_, T> {
        DeviceViewMut::whole(&mut self.owner, self.len)
    }
}

// SAFETY: it owns the memory, which stays until all calls have run whose ends its block has been
// told of.
unsafe impl<T: Element> SendBuf<T> for &DeviceMemory<T> {
    fn region(&self) -> Region {
        self.whole().region()
    }

    gives_back!(nothing);
}

// SAFETY: it borrows the memory's owner; the memory stays until all calls have run whose ends its
// block has been told of.
unsafe impl<T: Element> SendBuf<T> for &mut DeviceMemory<T> {
    fn region(&self) -> Region {
        self.whole().region()
    }

    gives_back!(nothing);
}

// SAFETY: it is a unique borrow of the only handle; the memory stays until all calls have run whose
// ends its block has been told of.
unsafe impl<T: Element> RecvBuf<T> for &mut DeviceMemory<T> {
    fn region_mut(&mut self) -> Region {
        self.whole_mut().region_mut()
    }

    gives_back!(nothing);
}

// SAFETY: the region's order is its block. It makes a call that writes wait for all calls before,
// and a call that reads wait for those that write.
unsafe impl<T: Element> DeviceSend<T> for &DeviceMemory<T> {}

// SAFETY: the region's order is its block. It makes a call that writes wait for all calls before,
// and a call that reads wait for those that write.
unsafe impl<T: Element> DeviceSend<T> for &mut DeviceMemory<T> {}

// SAFETY: the region's order is its block. It makes a call that writes wait for all calls before,
// and a call that reads wait for those that write.
unsafe impl<T: Element> DeviceRecv<T> for &mut DeviceMemory<T> {}
