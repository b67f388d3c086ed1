//! Where device memory is, and who keeps its uses in order, within streams and between them.

use std::sync::Arc;

use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_cuda::{Buffer, Error, RecordedEvent};

use super::block::Block;

/// Where device memory is.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub(crate) device: usize,
    /// The stream that the memory comes with; `None`: the device's default stream.
    pub(crate) stream: Option<Arc<CudaStream>>,
    pub(crate) order: Order,
}

/// Keeps the uses of memory in streams in order.
#[derive(Debug, Clone)]
pub(crate) enum Order {
    /// The user.
    User,
    /// cudarc, by the events of its buffer; or the error of reading these.
    Cudarc(Result<Buffer, Error>),
    /// The block.
    Block(Arc<Block>),
    /// The user; the block only keeps the memory until its uses have run.
    Kept(Arc<Block>),
}

impl Order {
    /// Makes a stream wait for the uses that must end before a call reads, or writes, the memory
    /// there.
    pub(crate) fn hold_back(&self, stream: &Arc<CudaStream>, writes: bool) -> Result<(), Error> {
        match self {
            Self::User | Self::Kept(_) => Ok(()),
            Self::Cudarc(buffer) => {
                let buffer = buffer.as_ref().map_err(Clone::clone)?;
                // SAFETY: `buffer` observes a buffer that the call has, or borrows, until it, or
                // the group that it is in, has been enqueued and noted. So cudarc has not dropped
                // the buffer, nor destroyed its events.
                unsafe { buffer.hold_back(stream, writes) }
            }
            Self::Block(block) => block.hold_back(stream, writes),
        }
    }

    /// Notes that a call has read, or written, the memory in a stream, up to an event.
    pub(crate) fn was_used(
        &self,
        stream: &CudaStream,
        end: &Arc<RecordedEvent>,
        writes: bool,
    ) -> Result<(), Error> {
        match self {
            Self::User => Ok(()),
            Self::Cudarc(buffer) => {
                let buffer = buffer.as_ref().map_err(Clone::clone)?;
                // SAFETY: `buffer` observes a buffer that the call has, or borrows, until it, or
                // the group that it is in, has been enqueued and noted. So cudarc has not dropped
                // the buffer, nor destroyed its events.
                unsafe { buffer.was_used(stream) }
            }
            Self::Block(block) => {
                block.was_used(end, writes);
                Ok(())
            }
            Self::Kept(block) => {
                block.was_used_by_a_call(end);
                Ok(())
            }
        }
    }
}
