//! Scratch in memory of the host that all ranks of a communicator map and register: for GPUs that
//! do not reach each other's memory. Each rank's kernels poll the rank's own scratch.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use spark_ccl_cuda::HostBlock;
use spark_ccl_cuda::cudarc::driver::CudaContext;
use spark_ccl_gpu::{MAX_RANKS, Member, Scratch, Settings};
use spark_ccl_transport::memory::SharedMemory;

use super::attached::Attached;
use super::pass::exchange;
use super::transport::KernelTransport;
use crate::api::communicator::Communicator;
use crate::error::Error;
use crate::memory::device::set_aside::wait_for_room;

/// A rank's scratch, and the descriptor by which the others map it.
pub(super) struct Pinned {
    scratch: Scratch,
    exported: OwnedFd,
    context: Arc<CudaContext>,
}

impl Pinned {
    /// Makes this rank's scratch, or says why it cannot be shared with all others.
    pub(super) fn new(comm: &Communicator, context: &Arc<CudaContext>) -> Result<Self, String> {
        let world = &comm.inner.world;
        let all_are_here = || {
            let mut members = comm.inner.members.iter();
            members.all(|&member| world.session.local_to(member))
        };
        if let Some(setting) = world.settings.gpu.protocol.by_host() {
            return Err(setting.to_owned());
        }
        if !world.settings.shm {
            return Err("SPARK_CCL_SHM=0: ranks share no memory".to_owned());
        }
        if comm.size() > MAX_RANKS || !all_are_here() {
            return Err(format!("it takes up to {MAX_RANKS} ranks of one host"));
        }
        // The scratch cannot be freed at once when the communicator ends.
        let most = world.settings.gpu.most_set_aside;
        wait_for_room(context, most).map_err(|error| error.to_string())?;
        let bytes = Scratch::bytes_in_host(comm.size());
        let made = SharedMemory::create(bytes, bytes);
        let (memory, exported) = made.map_err(|error| error.to_string())?;
        let scratch = register(context, memory)
            .map_err(Into::into)
            .and_then(|memory| Scratch::in_host(context, comm.size(), memory));
        Ok(Self {
            scratch: scratch.map_err(|error| error.to_string())?,
            exported,
            context: Arc::clone(context),
        })
    }

    /// Maps the others' scratch, or says why this rank cannot. Collective.
    pub(super) fn join(
        self,
        comm: &Communicator,
        settings: Settings,
        deadline: Instant,
    ) -> Result<Result<Attached, String>, Error> {
        let bytes = Scratch::bytes_in_host(comm.size());
        let exported = exchange(comm, &self.exported, bytes, deadline)?;
        let map = |rank: usize, exported: OwnedFd| {
            let memory = SharedMemory::from_fd(exported, bytes, bytes);
            let memory = memory.map_err(|error| error.to_string());
            let block = memory.and_then(|memory| {
                let registered = register(&self.context, memory);
                // The rank that made the memory counts it.
                let block = registered.map(HostBlock::uncounted);
                block.map_err(|error| error.to_string())
            });
            block.map_err(|error| format!("rank {rank}'s: {error}"))
        };
        let peers = exported.into_iter().enumerate();
        let peers = peers.map(|(rank, peer)| peer.map(|peer| map(rank, peer)).transpose());
        let joined = peers.collect::<Result<Vec<_>, String>>().and_then(|peers| {
            let joined = Member::join_in_host(comm.rank(), self.scratch, peers, settings);
            joined.map_err(|error| error.to_string())
        });
        Ok(joined.map(|joined| Attached::new(KernelTransport::Kernels(Box::new(joined)))))
    }
}

fn register(
    context: &Arc<CudaContext>,
    memory: SharedMemory,
) -> Result<HostBlock, spark_ccl_cuda::Error> {
    let (start, bytes) = (memory.as_ptr(), memory.len());
    // SAFETY: `memory` has `bytes` bytes from `start` on, mapped for reads and writes until it is
    // dropped, and the block owns it.
    unsafe { HostBlock::register(context, start, bytes, memory) }
}
