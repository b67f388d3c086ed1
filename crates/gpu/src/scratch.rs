//! A rank's scratch memory on its GPU: the part that its peers write, followed by the part that only its own kernels
//! use. Knows neither operations nor kernels.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use spark_ccl_cuda::cudarc::driver::CudaContext;
use spark_ccl_cuda::{DeviceBlock, OwnStream, is_idle};

use crate::Error;
use crate::channels::CHANNEL_BYTES;
use crate::layout::{ENDED, MAX_RANKS, ROUNDS_BYTES, STATE_BYTES, shared_bytes};

/// A rank's memory that its peers write to, on its GPU.
///
/// Peers map what was [exported](Self::export). The memory stays until all of them, too, have unmapped it,
/// so that a rank may end while its peers' kernels still write there.
#[derive(Debug)]
pub struct Scratch {
    block: DeviceBlock,
    context: Arc<CudaContext>,
    ranks: usize,
}

impl Scratch {
    /// Allocates the memory of one of this many ranks (14 MiB for each rank), and waits until it is zero.
    ///
    /// # Errors
    /// There are too few or too many ranks, there is not enough memory, or the driver fails.
    pub fn new(context: &Arc<CudaContext>, ranks: usize) -> Result<Self, Error> {
        if !(1..=MAX_RANKS).contains(&ranks) {
            return Err(Error::Ranks { ranks });
        }
        Ok(Self {
            block: DeviceBlock::zeroed(context, Self::bytes(ranks))?,
            context: Arc::clone(context),
            ranks,
        })
    }

    /// A descriptor by which a peer maps the memory; it is passed over a socket.
    ///
    /// # Errors
    /// The GPU or the driver has no memory that other processes can map, or the driver fails.
    pub fn export(&self) -> Result<OwnedFd, Error> {
        Ok(self.block.export()?)
    }

    /// How much memory one of this many ranks needs.
    pub fn bytes(ranks: usize) -> usize {
        channels(ranks) + ranks * CHANNEL_BYTES
    }

    /// Maps a peer's memory for this rank's GPU.
    pub(crate) fn map(&self, peer: &OwnedFd) -> Result<DeviceBlock, Error> {
        let bytes = Self::bytes(self.ranks);
        Ok(DeviceBlock::import(&self.context, peer.as_fd(), bytes)?)
    }

    pub(crate) fn address(&self) -> u64 {
        self.block.address()
    }

    /// Where the numbers of rounds and the state are.
    pub(crate) fn private(&self) -> [u64; 2] {
        let rounds = self.address() + shared_bytes(self.ranks) as u64;
        [rounds, rounds + ROUNDS_BYTES as u64]
    }

    /// Where the channels are in the scratch of each rank.
    pub(crate) fn channels(&self) -> u64 {
        channels(self.ranks) as u64
    }

    /// Makes kernels that begin later do nothing, by a copy in a stream that has nothing else: copy engines do not wait for
    /// kernels. Waits until it is done, but not for long.
    pub(crate) fn end_kernels(&self, stream: &OwnStream) -> Result<(), Error> {
        const SOON: Duration = Duration::from_millis(200);
        const LOOK_EVERY: Duration = Duration::from_micros(20);
        static NOT_ZERO: [u32; 1] = [1];
        let [_, state] = self.private();
        // SAFETY: the word is in the state, which lives until `settle` has waited for the copy, or is leaked. Kernels only
        // load it, all at once with the word beside it.
        unsafe { stream.begin_write(state + ENDED, &NOT_ZERO)? };
        let start = Instant::now();
        while !is_idle(stream.inner())? && start.elapsed() < SOON {
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }

    /// Waits until all that was enqueued in the GPU's context has run.
    pub(crate) fn settle(&self) -> Result<(), Error> {
        Ok(self.block.settle()?)
    }
}

/// At the end.
const fn channels(ranks: usize) -> usize {
    shared_bytes(ranks) + ROUNDS_BYTES + STATE_BYTES
}
