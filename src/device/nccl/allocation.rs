//! New blocks of device memory, of a rank that may have dropped others.

use super::NcclEngine;
use crate::device::block::{self, Block};
use crate::device::pause::pause;
use crate::error::Error;
use spark_ccl_cuda::DeviceBlock;
use std::sync::Arc;
use std::time::Instant;

impl NcclEngine {
    /// Waits for memory that was dropped while it was in use, where there is no other.
    pub(super) fn new_block(&self, bytes: usize) -> Result<Arc<Block>, Error> {
        let start = Instant::now();
        loop {
            block::sweep();
            let error = match self.own(DeviceBlock::new(&self.context, bytes)) {
                Ok(memory) => return Ok(Arc::new(Block::new(memory, Arc::clone(&self.gpu)))),
                Err(error @ spark_ccl_cuda::Error::Call { .. }) => error,
                Err(error) => return Err(error.into()),
            };
            let is_short = error.is_of_memory();
            let is_late = || Ok::<_, Error>(start.elapsed() > self.lock()?.timeout);
            if !is_short || !self.will_free() || is_late()? {
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
