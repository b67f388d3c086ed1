//! Device memory from an engine, which suits its registrations.

use super::block::Block;
use super::buffer::{DeviceRecv, DeviceSend};
use super::engine::TypedBlock;
use super::site::{Order, Site};
use crate::buffer::{RecvBuf, Region, SendBuf};
use crate::error::Error;
use spark_ccl_fork::Owned;
use spark_ccl_types::Element;
use std::marker::PhantomData;
use std::sync::Arc;

/// `len` elements of a device's memory, from [`Communicator::alloc_device`](crate::Communicator::alloc_device).
///
/// It remembers the ends of the calls that use it: who writes next waits for all of them, who reads for the last that
/// writes. Dropping it waits for nothing: it is freed when they have come to pass, and it is not
/// [registered](crate::Communicator::register_device) any more.
#[derive(Debug)]
pub struct DeviceMemory<T> {
    owner: Owned<Owner>,
    len: usize,
    element: PhantomData<fn() -> T>,
}

/// Tells its block when it is dropped.
#[derive(Debug)]
struct Owner(Arc<Block>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.was_dropped();
    }
}

impl<T: Element> DeviceMemory<T> {
    /// All of a block that nobody else has, which is long enough for `len` elements.
    pub(super) fn new(block: Arc<Block>, len: usize) -> Self {
        Self {
            owner: Owned::new(Owner(block)),
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
        self.owner.0.address
    }

    /// Copies values to it, when the calls with it have run.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another number of values than it has elements; [`Error::Cuda`]. The memory cannot be used
    /// any more after a copy that has failed, since that may still run.
    pub fn write(&mut self, values: &[T]) -> Result<(), Error> {
        self.may_copy("DeviceMemory::write", values.len())?;
        let (block, gpu) = (self.block(), &self.block().gpu);
        let copied = block.settle(true).and_then(|()| {
            // SAFETY: the memory is as long as the values, and nothing uses it: what did has run, and no call can be
            // made meanwhile, since this is the only handle. After an error, nothing ever uses or frees it.
            let copied = unsafe { gpu.copies.write(block.address, values) };
            copied.inspect_err(|error| block.was_lost(error.clone()))
        });
        Ok(copied.map_err(|error| error.of_rank(gpu.rank))?)
    }

    /// Copies its elements to `values`, when the calls that write them have run.
    ///
    /// # Errors
    /// As of [`write`](Self::write).
    pub fn read(&self, values: &mut [T]) -> Result<(), Error> {
        self.may_copy("DeviceMemory::read", values.len())?;
        let (block, gpu) = (self.block(), &self.block().gpu);
        let copied = block.settle(false).and_then(|()| {
            // SAFETY: the memory is as long as the values, and nothing writes it: what did has run, and a call that
            // does needs the only handle, which is borrowed. After an error, nothing ever uses or frees it. All bits
            // are elements.
            let copied = unsafe { gpu.copies.read(block.address, values) };
            copied.inspect_err(|error| block.was_lost(error.clone()))
        });
        Ok(copied.map_err(|error| error.of_rank(gpu.rank))?)
    }

    pub(super) fn typed(&self) -> TypedBlock<'_> {
        TypedBlock {
            block: self.block(),
            len: self.len,
            dtype: T::DTYPE,
        }
    }

    fn block(&self) -> &Arc<Block> {
        &self.owner.0
    }

    fn may_copy(&self, operation: &'static str, seen: usize) -> Result<(), Error> {
        self.owner.process().check()?;
        if seen == self.len {
            return Ok(());
        }
        Err(Error::Invalid {
            operation,
            problem: format!("{seen} values for {} elements", self.len),
        })
    }

    fn whole(&self) -> Region {
        let block = self.block();
        let site = Site {
            device: block.gpu.context.ordinal(),
            stream: Some(Arc::clone(&block.gpu.sync_stream)),
            order: Order::Block(Arc::clone(block)),
        };
        Region::on_device(block.address, self.len, site)
    }
}

// SAFETY: it owns the memory, which stays until all calls have run whose ends its block has been told of.
unsafe impl<T: Element> SendBuf<T> for &DeviceMemory<T> {
    fn region(&self) -> Region {
        self.whole()
    }
}

// SAFETY: it borrows the memory's owner; the memory stays until all calls have run whose ends its block has been told of.
unsafe impl<T: Element> SendBuf<T> for &mut DeviceMemory<T> {
    fn region(&self) -> Region {
        self.whole()
    }
}

// SAFETY: it is a unique borrow of the only handle; the memory stays until all calls have run whose ends its block has
// been told of.
unsafe impl<T: Element> RecvBuf<T> for &mut DeviceMemory<T> {
    fn region_mut(&mut self) -> Region {
        self.whole()
    }
}

// SAFETY: the region's order is its block. It makes a call that writes wait for all calls before, and a call that reads
// wait for those that write.
unsafe impl<T: Element> DeviceSend<T> for &DeviceMemory<T> {}

// SAFETY: the region's order is its block. It makes a call that writes wait for all calls before, and a call that reads
// wait for those that write.
unsafe impl<T: Element> DeviceSend<T> for &mut DeviceMemory<T> {}

// SAFETY: the region's order is its block. It makes a call that writes wait for all calls before, and a call that reads
// wait for those that write.
unsafe impl<T: Element> DeviceRecv<T> for &mut DeviceMemory<T> {}
