//! A rank's offer of its GPU's memory to the others, and how it reaches theirs.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use spark_ccl_config::{GpuProtocol, Path};
use spark_ccl_cuda::cudarc::driver::CudaContext;
use spark_ccl_cuda::{Reach, reach_of};
use spark_ccl_gpu::{self as gpu, MAX_RANKS, Member, Scratch, Settings};

use super::attached::Attached;
use super::pass::exchange;
use super::transport::KernelTransport;
use crate::api::communicator::Communicator;
use crate::device::agreement::ToldGpu;
use crate::error::Error;

/// How a rank reaches the others' memory, as it tells them; 0 if it failed.
pub(super) const PACKETS: u8 = 1;
pub(super) const LINES: u8 = 2;
/// It does not reach it.
pub(super) const ELSEWHERE: u8 = 4;

/// A rank's offer to the others.
pub(super) enum Offer {
    /// Memory that the others may reach.
    Peers(Shared),
    /// No memory that the others could reach, and why.
    Host(String),
}

/// A rank's scratch, and how it reaches that of the others.
pub(super) struct Shared {
    scratch: Scratch,
    /// `None` where there are no other ranks.
    exported: Option<OwnedFd>,
    way: u8,
}

impl Offer {
    pub(super) fn new(
        comm: &Communicator,
        context: &Arc<CudaContext>,
        all: &[ToldGpu],
    ) -> Result<Self, Error> {
        let settings = &comm.inner.world.settings;
        let (path, protocol) = (settings.path, settings.gpu.protocol);
        let way = match way(comm, context, all)? {
            Ok(_) if path == Path::Safe => Err("SPARK_CCL_PATH=safe".to_owned()),
            way => way.and_then(|way| match protocol.by_host() {
                Some(setting) => Err(setting.to_owned()),
                None => Ok(way),
            }),
        };
        let way = match way {
            Ok(way) => way,
            Err(why) => return Ok(Self::Host(why)),
        };
        Ok(Shared::new(context, all.len(), way).map_or_else(
            |why| {
                spark_ccl_log::warn!(
                    "rank {}: calls go through the host's memory, as this GPU cannot offer its \
                     own: {why}",
                    comm.rank()
                );
                Self::Host(why.to_string())
            },
            Self::Peers,
        ))
    }

    /// The number by which this rank tells the others how it reaches their memory.
    pub(super) fn says(&self) -> u8 {
        match self {
            Self::Peers(scratch) => scratch.way,
            Self::Host(_) => ELSEWHERE,
        }
    }

    /// Why this rank does not offer its GPU's memory.
    pub(super) fn why_not(self) -> Option<String> {
        match self {
            Self::Host(why) => Some(why),
            Self::Peers(_) => None,
        }
    }
}

impl Shared {
    fn new(context: &Arc<CudaContext>, ranks: usize, way: u8) -> Result<Self, gpu::Error> {
        let scratch = Scratch::new(context, ranks)?;
        let exported = (ranks > 1).then(|| scratch.export()).transpose()?;
        Ok(Self {
            scratch,
            exported,
            way,
        })
    }

    /// Maps what the others offer, or says why it cannot.
    pub(super) fn join(
        self,
        comm: &Communicator,
        settings: Settings,
        deadline: Instant,
    ) -> Result<Result<Attached, String>, Error> {
        let bytes = Scratch::bytes(comm.size());
        let peers = match &self.exported {
            Some(own) => exchange(comm, own, bytes, deadline)?,
            None => vec![None],
        };
        let joined = Member::join(comm.rank(), self.scratch, peers, settings);
        Ok(joined
            .map(|joined| Attached::new(KernelTransport::Kernels(Box::new(joined))))
            .map_err(|error| error.to_string()))
    }
}

/// How this rank's GPU reaches the memory of all others, or why it does not. Over PCIe, and where
/// the user says so, it sends packets: nothing there promises that a line arrives as a whole.
fn way(
    comm: &Communicator,
    context: &CudaContext,
    all: &[ToldGpu],
) -> Result<Result<u8, String>, Error> {
    let member = |rank: usize| comm.inner.watch.member(rank as u32);
    if comm.size() > MAX_RANKS {
        return Ok(Err(format!(
            "{} ranks are more than {MAX_RANKS}, which is the most for kernels between GPUs",
            comm.size()
        )));
    }
    let session = &comm.inner.world.session;
    let elsewhere = (0..comm.size()).find(|&rank| !session.local_to(comm.inner.members[rank]));
    if let Some(rank) = elsewhere {
        let [own, other] = [comm.rank(), rank].map(member);
        return Ok(Err(format!(
            "{own} and {other} are on different hosts, or share no network namespace"
        )));
    }
    let mut way = match comm.inner.world.settings.gpu.protocol {
        GpuProtocol::Auto => LINES,
        _ => PACKETS,
    };
    for (rank, gpu) in all.iter().enumerate() {
        let reach = reach_of(context, &gpu.place);
        match reach.map_err(|error| error.of_rank(comm.rank()))? {
            Reach::Own | Reach::Link => {}
            Reach::Pcie => way = PACKETS,
            Reach::None => {
                return Ok(Err(format!(
                    "the GPU of rank {} at {} cannot reach the memory of that of {} at {} \
                     (`nvidia-smi topo -p2p r` says which can)",
                    comm.rank(),
                    all[comm.rank()].place,
                    member(rank),
                    gpu.place
                )));
            }
        }
    }
    Ok(Ok(way))
}
