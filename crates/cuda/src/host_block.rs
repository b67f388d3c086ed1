//! Memory of the host that is registered with the driver: pinned, and in reach of kernels. Who made it, and who else maps
//! it, is not known here.

use std::any::Any;
use std::sync::Arc;

use cudarc::driver::{CudaContext, sys};

use crate::stream::{make_current, relaxed};
use crate::{Error, Feature, checked, require};

/// Memory of the host that kernels of a context reach. It stays registered until this is dropped; nothing may use it any
/// more then.
#[derive(Debug)]
pub struct HostBlock {
    start: *mut u8,
    bytes: usize,
    address: u64,
    context: Arc<CudaContext>,
    /// Dropped last: what keeps the memory mapped.
    _owner: Box<dyn Owner>,
}

/// What keeps memory mapped as long as it lives.
trait Owner: Any + Send + Sync + std::fmt::Debug {}

impl<T: Any + Send + Sync + std::fmt::Debug> Owner for T {}

// SAFETY: the memory belongs to the process, whose threads may all unregister it. `start` is only passed to the driver.
unsafe impl Send for HostBlock {}
// SAFETY: a shared reference gives only an address.
unsafe impl Sync for HostBlock {}

impl HostBlock {
    /// Registers memory that its owner keeps mapped: whole pages, which nothing else has registered at these addresses.
    ///
    /// # Errors
    /// The device or the driver cannot register such memory, more would be pinned than may be (`ulimit -l`), or the driver
    /// fails.
    ///
    /// # Safety
    /// There must be this many bytes, mapped for reads and writes, for as long as `owner` lives.
    pub unsafe fn register(
        context: &Arc<CudaContext>,
        start: *mut u8,
        bytes: usize,
        owner: impl Any + Send + Sync + std::fmt::Debug,
    ) -> Result<Self, Error> {
        require(Feature::RegisteredMemory)?;
        let device = make_current(context)?;
        let _relaxed = relaxed(device)?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the bytes are mapped (this function's contract), and the context is current.
        let status = unsafe { sys::cuMemHostRegister_v2(start.cast(), bytes, flags) };
        checked("cuMemHostRegister", device, status.result())?;
        let mut block = Self {
            start,
            bytes,
            address: 0,
            context: Arc::clone(context),
            _owner: Box::new(owner),
        };
        // SAFETY: the driver writes one address to `address`; the memory was registered with the flag that this needs.
        let status =
            unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut block.address, start.cast(), 0) };
        checked("cuMemHostGetDevicePointer", device, status.result())?;
        Ok(block)
    }

    /// Where it starts for the context's kernels.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes of it the kernels of a context reach: none, if it was registered for another.
    pub fn bytes_for(&self, context: &CudaContext) -> usize {
        let is_there = self.context.cu_ctx() == context.cu_ctx();
        if is_there { self.bytes } else { 0 }
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        let Ok(device) = make_current(&self.context) else {
            return;
        };
        let _relaxed = relaxed(device);
        // SAFETY: `register` has registered it, and nothing else unregisters it; its owner is dropped only after this. The
        // call fails only if the context has failed, which ends all use of the memory.
        let _ = unsafe { sys::cuMemHostUnregister(self.start.cast()) };
    }
}
