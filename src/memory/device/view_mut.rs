//! Parts of device memory that are borrowed apart.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_cuda::keep_context;
use spark_ccl_fork::Owned;
use spark_ccl_types::Element;

use super::buffer::{DeviceRecv, DeviceSend};
use super::view::{DeviceView, Owner};
use crate::error::Error;
use crate::memory::buffer::{RecvBuf, Region, SendBuf, gives_back};

/// A part of [`DeviceMemory`](super::memory::DeviceMemory) that calls write, or read.
///
/// Parts that may be the same are not handed out twice:
///
/// ```compile_fail,E0499
/// # use spark_ccl::{Error, cuda::DeviceMemory};
/// fn both(memory: &mut DeviceMemory<f32>) -> Result<(), Error> {
///     let (first, second) = (memory.view_mut(0..2)?, memory.view_mut(1..3)?);
///     drop((first, second));
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct DeviceViewMut<'a, T> {
    part: DeviceView<'a, T>,
    exclusive: PhantomData<&'a mut [T]>,
}

impl<'a, T: Element> DeviceViewMut<'a, T> {
    /// All of a block that has `len` elements, by a unique borrow of its owner.
    pub(crate) fn whole(owner: &'a mut Owned<Owner>, len: usize) -> Self {
        Self::only(DeviceView::whole(owner, len))
    }

    /// A part that is in no other view.
    fn only(part: DeviceView<'a, T>) -> Self {
        Self {
            part,
            exclusive: PhantomData,
        }
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.part.len()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.part.is_empty()
    }

    /// Its address, for CUDA.
    pub fn address(&self) -> u64 {
        self.part.address()
    }

    /// The same part, to read from.
    pub fn as_view(&self) -> DeviceView<'_, T> {
        self.part
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the range is not within it.
    pub fn view_mut(self, range: Range<usize>) -> Result<Self, Error> {
        self.part.view(range).map(Self::only)
    }

    /// Its first `mid` elements, and the others.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it has fewer.
    pub fn split_at_mut(self, mid: usize) -> Result<(Self, Self), Error> {
        let first = self.part.view(0..mid)?;
        let others = self.part.view(mid..self.part.len())?;
        Ok((Self::only(first), Self::only(others)))
    }

    /// Copies values to it, when the calls with the memory have run.
    ///
    /// # Errors
    /// Those of [`DeviceMemory::write`](super::memory::DeviceMemory::write).
    pub fn write(&mut self, values: &[T]) -> Result<(), Error> {
        self.part.may_copy("DeviceMemory::write", values.len())?;
        let _context = keep_context();
        let (block, gpu) = (self.part.block(), &self.part.block().gpu);
        let copied = block.settle(true).and_then(|()| {
            // SAFETY: the part is as long as the values. Nothing uses it: earlier uses have run
            // (`settle`), and no call with it can be made meanwhile, since this is its only handle.
            // After an error, nothing ever uses or frees it.
            let copied = unsafe { gpu.copies.write(self.address(), values) };
            copied.inspect_err(|error| block.was_lost(error.clone()))
        });
        Ok(copied.map_err(|error| error.of_rank(gpu.rank))?)
    }

    /// Enqueues the user's own writes: as
    /// [`DeviceMemory::write_in`](super::memory::DeviceMemory::write_in).
    ///
    /// # Errors
    /// As there.
    pub fn write_in<R>(
        &mut self,
        stream: &Arc<CudaStream>,
        enqueue: impl FnOnce(u64) -> R,
    ) -> Result<R, Error> {
        self.part
            .enqueue("DeviceMemory::write_in", stream, true, enqueue)
    }
}

// SAFETY: it borrows the memory's owner, and is the only view of the part. The memory stays until
// all calls have run whose ends its block has been told of.
unsafe impl<T: Element> SendBuf<T> for DeviceViewMut<'_, T> {
    fn region(&self) -> Region {
        self.part.region()
    }

    gives_back!(nothing);
}

// SAFETY: it is the only view of the part, and a unique borrow of the memory's owner, or one of the
// parts that such a borrow was split into. The memory stays until all calls have run whose ends its
// block has been told of.
unsafe impl<T: Element> RecvBuf<T> for DeviceViewMut<'_, T> {
    fn region_mut(&mut self) -> Region {
        self.part.region()
    }

    gives_back!(nothing);
}

// SAFETY: the region is that of a `DeviceView`: device memory, whose order is its block. It makes a
// call that reads wait for the calls that write any part, and a write or free of the memory wait
// for all calls before.
unsafe impl<T: Element> DeviceSend<T> for DeviceViewMut<'_, T> {}

// SAFETY: the region is that of a `DeviceView`: device memory, whose order is its block. It makes a
// call that writes to any part wait for all calls before, and a read, write or free of the memory
// wait for the calls that write.
unsafe impl<T: Element> DeviceRecv<T> for DeviceViewMut<'_, T> {}
