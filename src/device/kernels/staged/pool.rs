//! Pinned memory of the host that users get in place of memory of the GPU, and that the GPU
//! reaches. It is registered with the devices of RDMA links: the host does collectives on it
//! directly, and nothing is copied to slots.

use std::sync::{Arc, Weak};

use spark_ccl_cuda::cudarc::driver::CudaContext;
use spark_ccl_cuda::{Error, PinnedWords, check_set_aside};
use spark_ccl_gpu::Call;
use spark_ccl_transport::rdma::Reach;
use spark_ccl_types::{Operation, Side};

use crate::api::communicator::Inner;
use crate::memory::device::block::{Block, BlockMemory};
use crate::memory::registered::{Hold, Holder, Segment};

/// Makes pinned memory for a communicator.
pub(in crate::device) struct Pool {
    /// The communicator that carries the pieces, which registers memory.
    carrier: Weak<Inner>,
    /// How many bytes of dropped memory may wait to be freed, before no more is allocated.
    most_set_aside: usize,
}

impl Hold for PinnedWords {}

impl Pool {
    pub(super) fn new(carrier: &Arc<Inner>) -> Self {
        Self {
            carrier: Arc::downgrade(carrier),
            most_set_aside: carrier.world.settings.gpu.most_set_aside,
        }
    }

    /// A new block, or one that was dropped; all 0.
    pub(in crate::device) fn alloc(
        &self,
        context: &Arc<CudaContext>,
        bytes: usize,
    ) -> Result<BlockMemory, Error> {
        let count = bytes.div_ceil(size_of::<u64>());
        let words = if let Some(words) = PinnedWords::reused(context, count) {
            words
        } else {
            check_set_aside(context, self.most_set_aside)?;
            PinnedWords::new(context, count)?
        };
        let address = words.address_for(context)?;
        let start = words.words().as_ptr().cast_mut().cast();
        let segment = if let Some(carrier) = self.carrier.upgrade() {
            // SAFETY: the holder keeps the memory, and never moves it. From the bell of an
            // operation on the memory to its answer, no kernel uses the memory, and `ProxyWork` has
            // only the host engine use it. If the operation fails, its results do not count, and
            // its kernel ends only when the engine has let go of the memory (`Stage::release`).
            unsafe { carrier.register_held((start, bytes), None, Reach::Lent, Box::new(words)) }
        } else {
            // The communicator has ended: none of its calls uses the memory.
            Segment::new(start, None, Holder::Own(Box::new(words)))
        };
        Ok(BlockMemory::Pinned {
            address,
            segment: Arc::new(segment),
        })
    }
}

/// Whether a rank's call uses a buffer, and all that it uses are aligned pinned memory.
pub(super) fn is_pinned(call: &Call, rank: usize, ranks: usize) -> bool {
    let lens = lens(call.operation, call.count, call.root == rank, ranks);
    let buffers = [call.input, call.output].into_iter().zip(lens);
    let mut used = buffers.filter(|&(_, len)| len > 0).peekable();
    used.peek().is_some()
        && used.all(|(start, len)| {
            let size = call.dtype.size();
            let bytes = len.checked_mul(size);
            start.is_multiple_of(size as u64)
                && bytes.is_some_and(|bytes| Block::find_pinned(start, bytes).is_some())
        })
}

/// How many elements a rank's input and its output have, in a call with this count.
pub(super) fn lens(operation: Operation, count: usize, is_root: bool, ranks: usize) -> [usize; 2] {
    [Side::Input, Side::Output].map(|side| {
        let extent = operation.extent(side);
        let is_used = operation.uses(side, is_root);
        let len = is_used.then(|| extent.elements(count as u64, ranks as u32));
        len.unwrap_or(0) as usize
    })
}
