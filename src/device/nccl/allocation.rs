//! Memory from `ncclMemAlloc`, which suits NCCL's registrations, as an `Allocation`.

use super::NcclEngine;
use super::error::refused;
use crate::device::block::{self, Allocation, Block};
use crate::device::pause::pause;
use crate::error::Error;
use spark_ccl_cuda::{make_current, relaxed};
use spark_ccl_nccl as nccl;
use std::sync::Arc;
use std::time::Instant;

impl Allocation for nccl::Allocation {
    fn address(&self) -> u64 {
        self.start().addr() as u64
    }

    unsafe fn free(self: Box<Self>) -> Result<(), String> {
        // SAFETY: the caller promises that nothing uses it any more.
        unsafe { nccl::Allocation::free(*self) }.map_err(|error| error.to_string())
    }
}

impl NcclEngine {
    pub(super) fn new_block(&self, bytes: usize) -> Result<Arc<Block>, Error> {
        let device = self.own(make_current(&self.context))?;
        let _relaxed = self.own(relaxed(device))?;
        let allocation = Box::new(self.allocate(bytes)?);
        Ok(Arc::new(Block::new(allocation, Arc::clone(&self.gpu))))
    }

    /// Waits for memory that was dropped while it was in use, where there is no other.
    fn allocate(&self, bytes: usize) -> Result<nccl::Allocation, Error> {
        const NAME: &str = "alloc_device";
        let start = Instant::now();
        loop {
            block::sweep();
            let error = match self.library.allocate(bytes) {
                Ok(allocation) => return Ok(allocation),
                Err(error @ nccl::Error::Unsupported { .. }) => {
                    return Err(refused(NAME, error));
                }
                Err(error) => error,
            };
            let is_late = || Ok::<_, Error>(start.elapsed() > self.lock()?.timeout);
            if !self.will_free() || is_late()? {
                return Err(Error::Memory {
                    what: format!(
                        "{bytes} bytes of device {} for {}",
                        self.device(),
                        self.member()
                    ),
                    problem: error.to_string(),
                });
            }
            self.tidy();
            pause(start.elapsed());
        }
    }
}
