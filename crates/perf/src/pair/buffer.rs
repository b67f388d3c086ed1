//! The memory that is sent and received: ordinary, or pinned for the GPU.

use std::ptr::NonNull;
#[cfg(feature = "cuda")]
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use spark_ccl::Communicator;
use spark_ccl_config::Settings;
use spark_ccl_console::rails::MemoryKind;
#[cfg(feature = "cuda")]
use spark_ccl_cuda::{Feature, PinnedWords, cudarc::driver::CudaContext};

use crate::error::Error;
use crate::ranks::hosts::share;

/// The source of a rank's buffers.
#[derive(Debug, Clone)]
pub(crate) enum Allocator {
    Host,
    /// Memory of the host that the kernels of all its GPUs reach.
    #[cfg(feature = "cuda")]
    Pinned(Arc<CudaContext>),
}

/// Memory that is sent or received: as many bytes as were asked for, rounded up to a multiple of 8.
#[derive(Debug)]
pub(crate) enum Buffer {
    Host(Vec<u64>),
    #[cfg(feature = "cuda")]
    Pinned(PinnedWords),
}

impl Allocator {
    /// Finds what both ranks need for this kind of memory; an error on both if one of them lacks
    /// it. Collective.
    pub(super) fn open(
        comm: &Communicator,
        kind: MemoryKind,
        settings: &Settings,
    ) -> Result<Self, Error> {
        if kind == MemoryKind::Host {
            return Ok(Self::Host);
        }
        let own = Self::pinned(settings.gpu.own_device.unwrap_or(0));
        let missing = share(comm, &own.as_ref().err().map(ToString::to_string))?;
        let mut missing = missing.into_iter().enumerate();
        match missing.find_map(|(rank, reason)| Some((rank, reason?))) {
            Some((rank, reason)) => Err(Error::NoPinned {
                rank,
                host: comm.peer(rank)?.host,
                reason,
            }),
            None => Ok(own?),
        }
    }

    #[cfg(feature = "cuda")]
    fn pinned(device: usize) -> Result<Self, spark_ccl_cuda::Error> {
        // Says that there is no GPU more plainly than the attempt to use one.
        spark_ccl_cuda::count()?;
        spark_ccl_cuda::require(Feature::PinnedMemory)?;
        Ok(Self::Pinned(spark_ccl_cuda::context(device)?))
    }

    #[cfg(not(feature = "cuda"))]
    fn pinned(_: usize) -> Result<Self, Error> {
        Err(Error::without_cuda())
    }

    /// A new buffer; all 0.
    pub(crate) fn zeroed(&self, bytes: usize) -> Result<Buffer, Error> {
        let words = bytes.div_ceil(size_of::<u64>());
        Ok(match self {
            Self::Host => Buffer::Host(vec![0; words]),
            #[cfg(feature = "cuda")]
            Self::Pinned(context) => Buffer::Pinned(PinnedWords::new(context, words)?),
        })
    }
}

impl Buffer {
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Host(words) => bytemuck::cast_slice_mut(words),
            #[cfg(feature = "cuda")]
            Self::Pinned(words) => words.bytes_mut(),
        }
    }

    /// The address of its words. They stay there until it is dropped, wherever it is moved.
    pub(crate) fn words(&mut self) -> NonNull<[AtomicU64]> {
        match self {
            Self::Host(words) => {
                let start = NonNull::from(words.as_mut_slice());
                NonNull::slice_from_raw_parts(start.cast(), start.len())
            }
            #[cfg(feature = "cuda")]
            Self::Pinned(words) => NonNull::from(words.words()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_has_whole_words_which_stay_where_they_are() {
        let mut buffer = Allocator::Host.zeroed(20).unwrap();
        assert_eq!(buffer.bytes_mut(), [0; 24]);
        let words = buffer.words();
        let mut moved = Box::new(buffer);
        assert_eq!(
            (words.len(), words.cast::<AtomicU64>().is_aligned()),
            (3, true)
        );
        assert_eq!(moved.words(), words);
        assert_eq!(words.cast::<u8>().as_ptr(), moved.bytes_mut().as_mut_ptr());
    }
}
