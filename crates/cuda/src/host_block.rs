//! Memory of the host that is registered with the driver: pinned, and in reach of kernels. Does not
//! know who made it, or who else maps it.

use std::any::Any;
use std::sync::Arc;

use cudarc::driver::{CudaContext, sys};

use crate::current::make_current;
use crate::set_aside::{MemoryKind, Reusable, Unused};
use crate::stream::relaxed;
use crate::{Error, Feature, checked, require};

/// Memory of the host that kernels of a context reach. Nothing may use it any more when this is
/// dropped; it stays registered until memory that is set aside [is freed](crate::free_set_aside).
#[derive(Debug)]
pub struct HostBlock {
    memory: Reusable,
    address: u64,
}

impl HostBlock {
    /// Registers memory that `owner` keeps mapped: whole pages, which nothing else has registered
    /// at these addresses.
    ///
    /// # Errors
    /// The device or the driver cannot register memory, the limit of pinned memory (`ulimit -l`) is
    /// too low, or the driver fails.
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
        // SAFETY: the caller has mapped `bytes` bytes from `start` on for reads and writes for as
        // long as `owner` lives. `block` keeps `owner`, and `Unused::free` drops it only after it
        // has ended the registration.
        let status = unsafe { sys::cuMemHostRegister_v2(start.cast(), bytes, flags) };
        checked("cuMemHostRegister", device, status.result())?;
        let mut block = Self {
            memory: Reusable::new(Unused {
                context: Arc::clone(context),
                kind: MemoryKind::Registered,
                start: start.addr() as u64,
                bytes,
                counts: true,
                owner: Some(Box::new(owner)),
            }),
            address: 0,
        };
        // SAFETY: the driver writes one address to `address`, and only looks `start` up.
        let status =
            unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut block.address, start.cast(), 0) };
        checked("cuMemHostGetDevicePointer", device, status.result())?;
        Ok(block)
    }

    /// Excludes the block from [`set_aside_bytes`](crate::set_aside_bytes): the same memory is
    /// registered elsewhere, too.
    #[must_use]
    pub fn uncounted(mut self) -> Self {
        self.memory.count_not();
        self
    }

    /// The address of the block for the context's kernels.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes of the block the kernels of a context reach: none, if it was registered for
    /// another context.
    pub fn bytes_for(&self, context: &CudaContext) -> usize {
        let is_there = self.memory.context.cu_ctx() == context.cu_ctx();
        if is_there { self.memory.bytes } else { 0 }
    }
}
