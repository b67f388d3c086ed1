//! Parts of device memory, and the user's own uses of them.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;

use spark_ccl_cuda::cudarc::driver::sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
use spark_ccl_cuda::cudarc::driver::{CudaStream, DriverError};
use spark_ccl_cuda::{
    Error as CudaError, RecordedEvent, is_capturing, is_of_the_thread, keep_context,
};
use spark_ccl_fork::Owned;
use spark_ccl_types::Element;

use super::block::Block;
use super::buffer::DeviceSend;
use super::site::{Order, Site};
use crate::error::Error;
use crate::memory::buffer::{Region, SendBuf, gives_back};

/// The owner of a block. Tells the block when it is dropped.
#[derive(Debug)]
pub(crate) struct Owner(ManuallyDrop<Arc<Block>>);

impl Owner {
    pub(crate) fn new(block: Arc<Block>) -> Self {
        Self(ManuallyDrop::new(block))
    }

    pub(crate) fn block(&self) -> &Arc<Block> {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Also while the block and its GPU are dropped, if it was the last.
        let _context = keep_context();
        self.0.was_dropped();
        // SAFETY: `drop` runs once, and its last line is this one, so nothing uses the `Arc` after
        // it.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

/// A part of [`DeviceMemory`](super::memory::DeviceMemory) that calls read.
#[derive(Debug)]
pub struct DeviceView<'a, T> {
    owner: &'a Owned<Owner>,
    start: usize,
    len: usize,
    element: PhantomData<&'a [T]>,
}

impl<T> Clone for DeviceView<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DeviceView<'_, T> {}

impl<'a, T: Element> DeviceView<'a, T> {
    /// All of a block that has `len` elements.
    pub(crate) fn whole(owner: &'a Owned<Owner>, len: usize) -> Self {
        Self {
            owner,
            start: 0,
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

    /// Its address, for CUDA.
    pub fn address(&self) -> u64 {
        self.block().address + (self.start * size_of::<T>()) as u64
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the range is not within it.
    pub fn view(self, range: Range<usize>) -> Result<Self, Error> {
        if range.start > range.end || range.end > self.len {
            return Err(Error::Invalid {
                operation: "view",
                problem: format!(
                    "elements {}..{} of device memory of {} elements",
                    range.start, range.end, self.len
                ),
            });
        }
        Ok(Self {
            start: self.start + range.start,
            len: range.len(),
            ..self
        })
    }

    /// Copies its elements to `values`, when the calls that write to the memory have run.
    ///
    /// # Errors
    /// Those of [`DeviceMemory::read`](super::memory::DeviceMemory::read).
    pub fn read(&self, values: &mut [T]) -> Result<(), Error> {
        self.may_copy("DeviceMemory::read", values.len())?;
        let _context = keep_context();
        let (block, gpu) = (self.block(), &self.block().gpu);
        let copied = block.settle(false).and_then(|()| {
            // SAFETY: the memory is as long as the values. Nothing writes it: earlier writes have
            // run (`settle`), and a new call that writes needs a unique borrow of the part. After
            // an error, nothing ever uses or frees it. All bits are elements.
            let copied = unsafe { gpu.copies.read(self.address(), values) };
            copied.inspect_err(|error| block.was_lost(error.clone()))
        });
        Ok(copied.map_err(|error| error.of_rank(gpu.rank))?)
    }

    /// Enqueues the user's own reads: as
    /// [`DeviceMemory::read_in`](super::memory::DeviceMemory::read_in).
    ///
    /// # Errors
    /// As there.
    pub fn read_in<R>(
        &self,
        stream: &Arc<CudaStream>,
        enqueue: impl FnOnce(u64) -> R,
    ) -> Result<R, Error> {
        self.enqueue("DeviceMemory::read_in", stream, false, enqueue)
    }

    pub(crate) fn block(&self) -> &'a Arc<Block> {
        self.owner.block()
    }

    pub(crate) fn may_copy(&self, operation: &'static str, seen: usize) -> Result<(), Error> {
        self.owner.process().check()?;
        if seen == self.len {
            return Ok(());
        }
        Err(Error::Invalid {
            operation,
            problem: format!("{seen} values for {} elements", self.len),
        })
    }

    pub(crate) fn enqueue<R>(
        &self,
        operation: &'static str,
        stream: &Arc<CudaStream>,
        writes: bool,
        enqueue: impl FnOnce(u64) -> R,
    ) -> Result<R, Error> {
        self.owner.process().check()?;
        let _context = keep_context();
        let (block, gpu) = (self.block(), &self.block().gpu);
        let invalid = |problem: &str| Error::Invalid {
            operation,
            problem: problem.to_owned(),
        };
        if stream.context().cu_ctx() != gpu.context.cu_ctx() {
            return Err(invalid("the stream is of another context than the memory"));
        }
        if is_of_the_thread(stream) {
            return Err(invalid(
                "the per-thread stream is another one in each thread; take a new stream",
            ));
        }
        let own = |error: CudaError| error.of_rank(gpu.rank);
        if is_capturing(stream).map_err(own)? {
            return Err(invalid("a graph may run when this memory is gone"));
        }
        block.hold_back(stream, writes).map_err(own)?;
        // Dropped also when `enqueue` panics: by then, a part of it may be in the stream.
        let _used = Use {
            block,
            stream,
            writes,
        };
        Ok(enqueue(self.address()))
    }

    fn region(&self) -> Region {
        let block = self.block();
        let site = Site {
            device: block.gpu.context.ordinal(),
            stream: Some(Arc::clone(&block.gpu.sync_stream)),
            order: Order::Block(Arc::clone(block)),
        };
        Region::on_device(self.address(), self.len, site)
    }
}

/// A use of a block by what the user enqueues. Dropping it ends the use.
struct Use<'a> {
    block: &'a Block,
    stream: &'a Arc<CudaStream>,
    writes: bool,
}

impl Use<'_> {
    fn end(&self) -> Result<RecordedEvent, CudaError> {
        // In a graph, it would never come.
        if is_capturing(self.stream)? {
            let captured = DriverError(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
            let device = self.stream.context().ordinal();
            return Err(CudaError::of("cuEventRecord", device, captured));
        }
        self.block.gpu.events.record(self.stream)
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        match self.end() {
            Ok(end) => self.block.was_used(&Arc::new(end), self.writes),
            // The next use returns the error.
            Err(error) => self.block.was_lost(error),
        }
    }
}

// SAFETY: it borrows the memory's owner, and with it the part, which is not written meanwhile. The
// memory stays until all calls have run whose ends its block has been told of.
unsafe impl<T: Element> SendBuf<T> for DeviceView<'_, T> {
    fn region(&self) -> Region {
        DeviceView::region(self)
    }

    gives_back!(nothing);
}

// SAFETY: the region's order is the block. It makes a call that writes to any part wait for all
// calls before, and a call that reads wait for those that write.
unsafe impl<T: Element> DeviceSend<T> for DeviceView<'_, T> {}
