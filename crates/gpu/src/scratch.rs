//! A rank's scratch memory on its GPU: the part that its peers write, followed by the part that
//! only its own kernels use. Knows neither operations nor kernels.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use spark_ccl_cuda::cudarc::driver::CudaContext;
use spark_ccl_cuda::{DeviceBlock, HostBlock, OwnStream, is_idle};

use crate::Error;
use crate::channels::{CHANNEL_BYTES, COUNTS_BYTES, Places};
use crate::layout::{ENDED, MAX_RANKS, ROUNDS_BYTES, STATE_BYTES, shared_bytes};

/// A rank's memory that its peers write to: on its GPU, or, if they do not reach that, in the
/// host's memory.
///
/// Peers map it by the [exported](Self::export) descriptor. The memory stays until all peers, too,
/// have unmapped it, so that a rank may end while its peers' kernels still write there.
#[derive(Debug)]
pub struct Scratch {
    area: Area,
    /// The block on the rank's GPU with the memory of its own kernels: behind the memory that peers
    /// write, if that is here, too.
    own: DeviceBlock,
    context: Arc<CudaContext>,
    ranks: usize,
}

/// Where the memory is that peers write.
#[derive(Debug)]
enum Area {
    /// The beginning of the rank's own block.
    Device,
    Host(HostBlock),
}

impl Scratch {
    /// Allocates a rank's memory (14 MiB for each of the `ranks` ranks), and waits until it is
    /// zero.
    ///
    /// # Errors
    /// There are too few or too many ranks, there is not enough memory, or the driver fails.
    pub fn new(context: &Arc<CudaContext>, ranks: usize) -> Result<Self, Error> {
        Self::with(context, ranks, Area::Device, Self::bytes(ranks))
    }

    /// As [`new`](Self::new), for GPUs that do not reach each other: peers write this memory of the
    /// host, which is zero and at least [as long as needed](Self::bytes_in_host).
    ///
    /// # Errors
    /// There are too few or too many ranks; the memory is too short, or was registered for another
    /// GPU; the GPU lacks memory; the driver fails.
    pub fn in_host(
        context: &Arc<CudaContext>,
        ranks: usize,
        memory: HostBlock,
    ) -> Result<Self, Error> {
        check_host(context, ranks, &memory)?;
        Self::with(context, ranks, Area::Host(memory), own_bytes(ranks))
    }

    fn with(
        context: &Arc<CudaContext>,
        ranks: usize,
        area: Area,
        bytes: usize,
    ) -> Result<Self, Error> {
        if !(1..=MAX_RANKS).contains(&ranks) {
            return Err(Error::Ranks { ranks });
        }
        Ok(Self {
            area,
            own: DeviceBlock::zeroed(context, bytes)?,
            context: Arc::clone(context),
            ranks,
        })
    }

    /// A descriptor by which a peer maps the memory on its GPU; it is passed over a socket.
    ///
    /// # Errors
    /// The GPU or the driver has no memory that other processes can map, or the driver fails.
    pub fn export(&self) -> Result<OwnedFd, Error> {
        Ok(self.own.export()?)
    }

    /// How much memory a rank needs on its GPU.
    pub fn bytes(ranks: usize) -> usize {
        shared_bytes(ranks) + own_bytes(ranks) + ranks * CHANNEL_BYTES
    }

    /// How much host memory a rank needs, if peers write that.
    pub fn bytes_in_host(ranks: usize) -> usize {
        shared_bytes(ranks) + ranks * CHANNEL_BYTES
    }

    /// Maps a peer's memory for this rank's GPU.
    pub(crate) fn map(&self, peer: &OwnedFd) -> Result<DeviceBlock, Error> {
        let bytes = Self::bytes(self.ranks);
        Ok(DeviceBlock::import(&self.context, peer.as_fd(), bytes)?)
    }

    /// The start of the memory that peers write.
    pub(crate) fn address(&self) -> u64 {
        match &self.area {
            Area::Device => self.own.address(),
            Area::Host(block) => block.address(),
        }
    }

    /// The addresses of the numbers of rounds, and of the state.
    pub(crate) fn private(&self) -> [u64; 2] {
        let before = match self.area {
            Area::Device => shared_bytes(self.ranks),
            Area::Host(_) => 0,
        };
        let rounds = self.own.address() + before as u64;
        [rounds, rounds + ROUNDS_BYTES as u64]
    }

    /// Where the channels are: at the end of the memory that peers write.
    pub(crate) fn channels(&self) -> Places {
        let before = match self.area {
            Area::Device => shared_bytes(self.ranks) + own_bytes(self.ranks),
            Area::Host(_) => shared_bytes(self.ranks),
        };
        let [_, state] = self.private();
        Places {
            channels: before as u64,
            counts: state + STATE_BYTES as u64,
        }
    }

    /// Makes kernels that begin later do nothing, by a copy in a stream of its own: copy engines do
    /// not wait for kernels. Waits for the copy, but not for long.
    pub(crate) fn end_kernels(&self, stream: &OwnStream) -> Result<(), Error> {
        const SOON: Duration = Duration::from_millis(200);
        const LOOK_EVERY: Duration = Duration::from_micros(20);
        static NOT_ZERO: [u32; 1] = [1];
        let [_, state] = self.private();
        // SAFETY: the word is in the state, which lives until `settle` has waited for the copy, or
        // is leaked. Kernels only load it, all at once with the word beside it.
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

    /// Waits until everything that was enqueued in the GPU's context has run.
    pub(crate) fn settle(&self) -> Result<(), Error> {
        Ok(self.own.settle()?)
    }
}

/// Checks that memory of the host has room for a rank's scratch, in reach of a GPU.
pub(crate) fn check_host(
    context: &CudaContext,
    ranks: usize,
    memory: &HostBlock,
) -> Result<(), Error> {
    let (given, needed) = (memory.bytes_for(context), Scratch::bytes_in_host(ranks));
    if given < needed {
        return Err(Error::HostScratch { given, needed });
    }
    Ok(())
}

/// The bytes that only the rank's own kernels use: rounds, state, and counts of each channel.
const fn own_bytes(ranks: usize) -> usize {
    ROUNDS_BYTES + STATE_BYTES + ranks * COUNTS_BYTES
}
