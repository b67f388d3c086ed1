//! Joins the ranks by way of the host: which memory carries their data, and how.

use std::sync::Arc;
use std::time::Instant;

use spark_ccl_config::{GpuProtocol, Path};
use spark_ccl_cuda::cudarc::driver::CudaContext;
use spark_ccl_gpu::{Settings, Slots, Stage, Wire};
use spark_ccl_slots::Placement;

use super::attached::Attached;
use super::offer::ELSEWHERE;
use super::pinned::Pinned;
use super::placement::{may_be_on_gpu, note_out_of_reach};
use super::refused::refused;
use super::staged::{BoxesOf, BySlots, OpenedBoxes, Prepared, Staged};
use super::transport::KernelTransport;
use super::votes::{BACKEND, agree, if_all_have};
use crate::api::communicator::Communicator;
use crate::error::Error;

/// The most CTAs through the host's memory. Measured on two H100, with 16 MiB and more: 8 CTAs take
/// 2 % less time than 16 or 32, and as long as 4.
const CTAS_THROUGH_HOST: u32 = 8;

/// The vote of a rank that can share pinned memory; one that cannot votes [`ELSEWHERE`].
const PINNED: u8 = 3;
/// How a rank's slots are used, as it tells the others: between ranks that share memory, or forced.
const SHARED: u8 = 5;
const FORCED: u8 = 6;
/// Slots that RDMA devices put into the inboxes of peers.
const PUT: u8 = 7;
/// There are no slots.
const NONE: u8 = 8;

/// The ranks' agreement, apart from where slots are.
struct Agreed<'a> {
    comm: &'a Communicator,
    context: &'a Arc<CudaContext>,
    ctas: u32,
    /// Which calls go through slots, and how many slots a lane has; `None` for no slots.
    slots: Option<(BySlots, usize)>,
    /// Whether `alloc_device` gives memory of the host.
    pins: bool,
}

/// Joins through the host: by memory that all ranks share and register, or else by links: through
/// slots in the GPUs' memory, which RDMA devices reach, or in the host's. Also returns why it does
/// not take the faster ways. Collective.
pub(super) fn join_through_host(
    comm: &Communicator,
    context: &Arc<CudaContext>,
    ctas: u32,
    deadline: Instant,
    why: &str,
) -> Result<(Attached, Vec<String>), Error> {
    let is_zero_copy = comm.inner.world.settings.path == Path::ZeroCopy;
    let mut passed_over = vec![format!("the GPUs' memory: {why}")];
    if !is_zero_copy {
        match join_pinned(comm, context, ctas, deadline)? {
            Ok(joined) => return Ok((joined, passed_over)),
            Err(why) => passed_over.push(format!("memory that ranks share: {why}")),
        }
    }
    let agreed = Agreed {
        comm,
        context,
        ctas,
        pins: all_pin(comm)?,
        slots: agree_on_slots(comm, ctas)?,
    };
    let staged = match agreed.on_gpus()? {
        Ok(staged) => staged,
        Err(why) if is_zero_copy && !agreed.pins => {
            return Err(out_of_reach(&passed_over[0], &why));
        }
        Err(why) => {
            passed_over.push(format!("slots in the GPUs' memory: {why}"));
            agreed.in_host()?
        }
    };
    Ok((Attached::new(KernelTransport::Host(staged)), passed_over))
}

impl Agreed<'_> {
    /// By slots in the GPUs' memory that RDMA devices write, once a pattern has passed that way, or
    /// says why not. Collective.
    fn on_gpus(&self) -> Result<Result<Staged, String>, Error> {
        let comm = self.comm;
        let Some((BySlots::Put | BySlots::All, _)) = self.slots else {
            return Ok(Err("RDMA devices put no slots".to_owned()));
        };
        if let Err(why) = if_all_have(comm, may_be_on_gpu(comm, self.context))? {
            return Ok(Err(why));
        }
        let stage = self.stage()?;
        let boxes = match self.boxes(&stage, Placement::Device)? {
            Ok(boxes) => boxes,
            Err(why) => return Ok(Err(self.without(why))),
        };
        let prepared = Prepared::new(comm, stage, Some(boxes), self.pins)?;
        let proven = match if_all_have(comm, prepared.probe())? {
            Ok(probe) => if_all_have(
                comm,
                prepared.prove(probe).inspect_err(|_| note_out_of_reach()),
            )?,
            Err(why) => Err(why),
        };
        match proven {
            Ok(proven) => proven.start().map(Ok),
            Err(why) => Ok(Err(self.without(why))),
        }
    }

    /// Says why slots that could be in the GPUs' memory are not there.
    fn without(&self, why: String) -> String {
        spark_ccl_log::warn!(
            "rank {}: slots are not in the GPUs' memory, but in the host's: {why}; \
             SPARK_CCL_GPU_DMABUF=0 asks for that",
            self.comm.rank()
        );
        why
    }

    /// By slots or pieces in the host's memory. Collective.
    fn in_host(&self) -> Result<Staged, Error> {
        let stage = self.stage()?;
        let boxes = match self.boxes(&stage, Placement::Host)? {
            Ok(boxes) => Some(boxes),
            Err(why) => {
                if self.slots.is_some() && Slots::are_for(self.comm.size()) {
                    spark_ccl_log::warn!(
                        "rank {}: calls of device memory go by pieces, as there are no slots: \
                         {why}; SPARK_CCL_GPU_PROTOCOL=pieces asks for none",
                        self.comm.rank()
                    );
                }
                None
            }
        };
        Prepared::new(self.comm, stage, boxes, self.pins)?.start()
    }

    fn stage(&self) -> Result<Arc<Stage>, Error> {
        let (rank, ranks) = (self.comm.rank(), self.comm.size());
        let stage = Stage::new(self.context, rank, ranks, self.ctas);
        stage.map(Arc::new).map_err(|error| refused(error, rank))
    }

    /// The slots, if all ranks have some. RDMA devices put them, where they can on all ranks; else
    /// those in the host's memory carry packets only, unless the user asks for them. Collective.
    fn boxes(
        &self,
        stage: &Arc<Stage>,
        placement: Placement,
    ) -> Result<Result<BoxesOf, String>, Error> {
        let comm = self.comm;
        let Some((by_slots, depth)) = self.slots.filter(|_| Slots::are_for(comm.size())) else {
            return Ok(Err("this communicator uses none".to_owned()));
        };
        let least = by_slots.least();
        let made = Slots::new(self.context, stage, self.ctas, depth, least, placement);
        let slots = match if_all_have(comm, made.map_err(|error| error.to_string()))? {
            Ok(slots) => Arc::new(slots),
            Err(why) => return Ok(Err(why)),
        };
        let opened = match by_slots {
            BySlots::Put | BySlots::All => if_all_have(comm, OpenedBoxes::new(&slots, comm))?,
            _ => Err(String::new()),
        };
        let by_slots = match (&opened, by_slots) {
            (Err(why), _) if placement == Placement::Device => {
                return Ok(Err(why.clone()));
            }
            (Err(why), BySlots::Put) => {
                spark_ccl_log::info!(
                    "rank {}: calls of device memory go by pieces and packets, as RDMA devices \
                     cannot write slots: {why}",
                    comm.rank()
                );
                BySlots::PacketsOnly
            }
            _ => by_slots,
        };
        Ok(Ok(BoxesOf {
            slots,
            by_slots,
            opened: opened.ok(),
        }))
    }
}

/// Whether `alloc_device` gives memory of the host, for calls by way of the host. Collective.
fn all_pin(comm: &Communicator) -> Result<bool, Error> {
    let settings = &comm.inner.world.settings;
    let pins = settings.path != Path::Safe && settings.gpu.pinned;
    let say = |&pins: &bool| if pins { PINNED } else { ELSEWHERE };
    let (_, all) = agree(comm, Ok(pins), say)?;
    Ok(all.iter().all(|&said| said == PINNED))
}

/// Which calls go through slots, and how many slots a lane has. A rank may refuse slots for all, or
/// else force them; the rank with the fewest slots decides the number. Collective.
fn agree_on_slots(comm: &Communicator, ctas: u32) -> Result<Option<(BySlots, usize)>, Error> {
    let settings = &comm.inner.world.settings;
    let depth = Slots::depth_within(settings.gpu.most_in_slots, ctas);
    let own = match settings.gpu.protocol {
        _ if depth == 0 => NONE,
        GpuProtocol::Pieces => NONE,
        GpuProtocol::Slots => FORCED,
        _ if comm.planner().over_rdma() && settings.path != Path::Safe => PUT,
        _ if comm.planner().all_share_memory => SHARED,
        _ => ELSEWHERE,
    };
    let (_, all) = agree(comm, Ok(own), |&own| own)?;
    if all.contains(&NONE) {
        return Ok(None);
    }
    let (_, depths) = agree(comm, Ok(depth), |&depth| depth as u8)?;
    let depth = depths.into_iter().min().map_or(depth, usize::from);
    let by_slots = if all.contains(&FORCED) {
        BySlots::All
    } else if all.contains(&PUT) {
        BySlots::Put
    } else if all.iter().all(|&said| said == SHARED) {
        BySlots::InMemory
    } else {
        BySlots::OverLinks
    };
    Ok(Some((by_slots, depth)))
}

/// Joins by memory that all ranks share and register, or says why not all ranks can. Collective.
fn join_pinned(
    comm: &Communicator,
    context: &Arc<CudaContext>,
    ctas: u32,
    deadline: Instant,
) -> Result<Result<Attached, String>, Error> {
    let pinned = match if_all_have(comm, Pinned::new(comm, context))? {
        Ok(pinned) => pinned,
        Err(why) => return Ok(Err(why)),
    };
    let settings = Settings {
        ctas: ctas.min(CTAS_THROUGH_HOST),
        wire: Wire::Host,
    };
    if_all_have(comm, pinned.join(comm, settings, deadline)?)
}

fn out_of_reach(passed_over: &str, why: &str) -> Error {
    Error::Unsupported {
        what: format!("{BACKEND} with SPARK_CCL_PATH=zero-copy"),
        reason: format!(
            "{passed_over}; slots in the GPUs' memory: {why}; and memory for calls is not the \
             host's on all ranks (SPARK_CCL_GPU_PINNED=1 makes it so). SPARK_CCL_PATH=auto stages \
             through the host then"
        ),
    }
}
