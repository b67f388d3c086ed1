//! Memory that no stream allocates or frees: of a device, and of the host for kernels.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use cudarc::driver::{CudaContext, result, sys};

use crate::stream::{OwnStream, make_current, relaxed};
use crate::{Error, Feature, checked, require};

/// Memory of a device that is zero at first. Other GPUs can reach it ([`reach`](crate::reach)).
///
/// Nothing may use it any more when it is dropped: see [`settle`](Self::settle).
#[derive(Debug)]
pub struct DeviceBlock {
    address: u64,
    context: Arc<CudaContext>,
}

impl DeviceBlock {
    /// Sets a number of bytes aside, and waits until they are zero.
    ///
    /// # Errors
    /// There is not enough memory, or the driver fails.
    pub fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self, Error> {
        let device = make_current(context)?;
        let stream = OwnStream::new(context)?;
        let _relaxed = relaxed(device)?;
        // SAFETY: the context is current.
        let address = unsafe { result::malloc_sync(bytes) };
        let block = Self {
            address: checked("cuMemAlloc", device, address)?,
            context: Arc::clone(context),
        };
        // SAFETY: the block has this many bytes, and nothing else has its address. If it is freed
        // after an error, the driver waits for what uses it.
        unsafe { stream.fill_zeros(block.address, bytes)? };
        Ok(block)
    }

    /// Where it starts on its device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Waits until all that was enqueued in its context has run.
    ///
    /// # Errors
    /// Something has failed, or a graph is being captured in the context.
    pub fn settle(&self) -> Result<(), Error> {
        let device = make_current(&self.context)?;
        let _relaxed = relaxed(device)?;
        checked("cuCtxSynchronize", device, result::ctx::synchronize())
    }
}

impl Drop for DeviceBlock {
    fn drop(&mut self) {
        let Ok(device) = make_current(&self.context) else {
            return;
        };
        let _relaxed = relaxed(device);
        // SAFETY: `new` allocated it, and nothing frees it before. The call fails only if the
        // context has failed, which frees its memory.
        let _ = unsafe { result::free_sync(self.address) };
    }
}

/// Numbers in memory of the host that kernels reach, too; all are 0 at first. No kernel may use them
/// any more when they are dropped.
#[derive(Debug)]
pub struct PinnedWords {
    start: *const AtomicU64,
    count: usize,
    context: Arc<CudaContext>,
    is_leaked: bool,
}

// SAFETY: it is memory of the process, which any thread may use and free.
unsafe impl Send for PinnedWords {}
// SAFETY: a shared reference gives shared references to atomics, and an address.
unsafe impl Sync for PinnedWords {}

impl PinnedWords {
    /// Sets numbers aside for the kernels of all devices.
    ///
    /// # Errors
    /// There is not enough memory, or the driver fails.
    pub fn new(context: &Arc<CudaContext>, count: usize) -> Result<Self, Error> {
        require(Feature::PinnedMemory)?;
        let device = make_current(context)?;
        let _relaxed = relaxed(device)?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the context is current.
        let start = unsafe { result::malloc_host(count * size_of::<AtomicU64>(), flags) };
        let start: *mut AtomicU64 = checked("cuMemHostAlloc", device, start)?.cast();
        // SAFETY: the driver has just allocated room for `count` numbers, and nothing else has its
        // address.
        unsafe { start.write_bytes(0, count) };
        Ok(Self {
            start,
            count,
            context: Arc::clone(context),
            is_leaked: false,
        })
    }

    /// The numbers.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `new` allocated `count` numbers and set them to 0. They live as long as `self`;
        // whoever changes them, this process or a kernel, does so atomically.
        unsafe { std::slice::from_raw_parts(self.start, self.count) }
    }

    /// Leaves the memory set aside for good, since a kernel may still use it.
    pub fn leak(&mut self) {
        self.is_leaked = true;
    }

    /// Where they start for the kernels of a device.
    ///
    /// # Errors
    /// The driver fails.
    pub fn address_for(&self, context: &CudaContext) -> Result<u64, Error> {
        let device = make_current(context)?;
        let mut address = 0;
        // SAFETY: the driver writes one address to `address`; the memory was allocated with the flag
        // that this needs.
        let status = unsafe {
            sys::cuMemHostGetDevicePointer_v2(&raw mut address, self.start.cast_mut().cast(), 0)
        };
        checked("cuMemHostGetDevicePointer", device, status.result())?;
        Ok(address)
    }
}

impl Drop for PinnedWords {
    fn drop(&mut self) {
        let entered = make_current(&self.context);
        let (false, Ok(device)) = (self.is_leaked, entered) else {
            return;
        };
        let _relaxed = relaxed(device);
        // SAFETY: `new` allocated it, and nothing frees it before. If the call fails, it is leaked.
        let _ = unsafe { result::free_host(self.start.cast_mut().cast()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spark_ccl_testing::{Need, has};
    use std::sync::atomic::Ordering;

    #[test]
    fn memory_is_zero_at_first() {
        if !has(Need::Gpu) {
            return;
        }
        let context = crate::context(0).unwrap();
        let block = DeviceBlock::new(&context, 1 << 20).unwrap();
        let mut seen = vec![1_u8; 1 << 20];
        let stream = OwnStream::new(&context).unwrap();
        // SAFETY: the block has this many bytes, and nothing writes there.
        unsafe { stream.read(block.address(), &mut seen).unwrap() };
        assert!(seen.iter().all(|byte| *byte == 0));

        let words = PinnedWords::new(&context, 3).unwrap();
        words.words()[2].store(7, Ordering::Relaxed);
        let mut seen = [1_u64; 3];
        // SAFETY: there are three words, and nothing writes them meanwhile.
        unsafe {
            stream
                .read(words.address_for(&context).unwrap(), &mut seen)
                .unwrap();
        };
        assert_eq!(seen, [0, 0, 7]);
    }
}
