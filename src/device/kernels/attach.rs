//! Sets up the kernels' engine for a communicator: the ranks exchange their memory over links, and
//! join.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use spark_ccl_config::{GpuProtocol, Path};
use spark_ccl_cuda::cudarc::driver::CudaContext;
use spark_ccl_cuda::{Reach, reach_of};
use spark_ccl_fork::Owned;
use spark_ccl_gpu::{MAX_RANKS, Member, Scratch, Settings, Slots, Stage, Wire};
use spark_ccl_slots::Placement;

use super::attached::Attached;
use super::engine::{KernelChoice, KernelEngine};
use super::measured::{layout, measured};
use super::pass::exchange;
use super::pinned::Pinned;
use super::refused::refused;
use super::staged::{BoxesOf, BySlots, OpenedBoxes, Staged};
use super::transport::KernelTransport;
use crate::api::communicator::Communicator;
use crate::device::agreement::{
    ToldGpu, all_have, find_gpu, have_the_same_kernels, no_other_has, tell_gpu,
};
use crate::device::guard;
use crate::device::rank::DeviceRank;
use crate::engine::Engine;
use crate::error::Error;

const BACKEND: &str = "SPARK_CCL_BACKEND=engine";
/// The most CTAs of a GPU that kernels take.
const CTAS: usize = 32;
/// The most CTAs through the host's memory. Measured on two H100, with 16 MiB and more: 8 CTAs take
/// 2 % less time than 16 or 32, and as long as 4.
const CTAS_THROUGH_HOST: u32 = 8;

/// How a rank reaches the others' memory, as it tells them; 0 if it does not reach it.
const PACKETS: u8 = 1;
const LINES: u8 = 2;
const PINNED: u8 = 3;
const ELSEWHERE: u8 = 4;
/// How a rank's slots are used, as it tells the others: between ranks that share memory, or forced.
const SHARED: u8 = 5;
const FORCED: u8 = 6;
/// Slots that RDMA devices put into the inboxes of peers.
const PUT: u8 = 7;
/// There are no slots.
const NONE: u8 = 8;

/// The engine for the device memory of a communicator's ranks. Collective.
pub(crate) fn attach(
    comm: &Communicator,
    deadline: Instant,
) -> Result<Owned<Arc<dyn Engine>>, Error> {
    let world = &comm.inner.world.settings;
    let found = find_gpu(comm);
    let told = tell_gpu(comm, found.as_ref().ok());
    let context = found?.context;
    let all = all_have(comm, BACKEND, told?)?;
    have_the_same_kernels(comm, &all)?;
    if !world.gpu.may_be_shared {
        no_other_has(comm, &all, "; in tests, SPARK_CCL_SHARE_GPU=1 allows it")?;
    }
    let (offer, ways) = agree(comm, Offer::new(comm, &context, &all), Offer::says)?;
    // One rank that does not reach the others' GPUs is enough.
    let without = ways.iter().position(|&way| way == ELSEWHERE);
    let joined = match (offer, without) {
        (Offer::Peers(scratch), None) => {
            let is_whole = ways.iter().all(|&way| way == LINES);
            let wire = if is_whole { Wire::Whole } else { Wire::Any };
            let ctas = ctas(&all);
            let joined = scratch.join(comm, Settings { ctas, wire }, deadline);
            joined.map(|joined| (joined, Vec::new()))
        }
        (offer, without) => {
            let why = offer.why_not(comm, without.unwrap_or(comm.rank()));
            join_through_host(comm, &context, ctas(&all), deadline, &why)
        }
    };
    let made = joined.and_then(|(member, passed_over)| {
        let kernels = kernels(comm, &all, &member);
        engine(comm, context, member, passed_over, kernels)
    });
    // No rank launches before all have joined: what the driver does when a rank joins may wait for
    // running kernels.
    let (engine, _) = agree(comm, made, |_| PACKETS)?;
    spark_ccl_log::info!(
        "rank {}: kernels for {} ranks on device {} ({}): {}",
        comm.rank(),
        comm.size(),
        engine.base.device(),
        all[comm.rank()].place,
        engine.path().unwrap_or_default(),
    );
    Ok(Owned::new(engine))
}

/// Joins through the host: by memory that all ranks share and register, or else by the host's own
/// links. Also returns why it does not take the faster transports. Collective.
fn join_through_host(
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
    let pins = all_pin(comm)?;
    if is_zero_copy && !pins {
        return Err(out_of_reach(why));
    }
    let by_slots = agree_on_slots(comm, ctas)?;
    let stage = Stage::new(context, comm.rank(), comm.size(), ctas);
    let stage = Arc::new(stage.map_err(|error| refused(error, comm.rank()))?);
    let slots = match by_slots {
        Some((by_slots, depth)) if Slots::are_for(comm.size()) => {
            let made = Slots::new(
                context,
                &stage,
                ctas,
                depth,
                by_slots.least(),
                Placement::Host,
            );
            slots_of_all(comm, made, by_slots)?
        }
        _ => None,
    };
    let slots = slots.map(|made| opened(comm, made)).transpose()?;
    let staged = Staged::new(comm, stage, slots, pins)?;
    Ok((Attached::new(KernelTransport::Host(staged)), passed_over))
}

/// The slots, if all ranks have some; else calls go by pieces. Collective.
fn slots_of_all(
    comm: &Communicator,
    made: Result<Slots, spark_ccl_gpu::Error>,
    by_slots: BySlots,
) -> Result<Option<(Arc<Slots>, BySlots)>, Error> {
    let made = if_all_have(comm, made.map_err(|error| error.to_string()))?;
    Ok(match made {
        Ok(slots) => Some((Arc::new(slots), by_slots)),
        Err(why) => {
            spark_ccl_log::warn!(
                "rank {}: calls of device memory go by pieces, as there are no slots: {why}; \
                 SPARK_CCL_GPU_PROTOCOL=pieces asks for none",
                comm.rank()
            );
            None
        }
    })
}

/// Lets RDMA devices put slots, where they can on all ranks; else slots carry packets only, unless
/// the user asks for them. Collective.
fn opened(comm: &Communicator, (slots, by_slots): (Arc<Slots>, BySlots)) -> Result<BoxesOf, Error> {
    let boxes = match by_slots {
        BySlots::Put | BySlots::All => if_all_have(comm, OpenedBoxes::new(&slots, comm))?,
        _ => Err(String::new()),
    };
    let by_slots = match (&boxes, by_slots) {
        (Err(why), BySlots::Put) => {
            spark_ccl_log::info!(
                "rank {}: calls of device memory go by pieces and packets, as RDMA devices cannot \
                 write slots: {why}",
                comm.rank()
            );
            BySlots::PacketsOnly
        }
        _ => by_slots,
    };
    Ok(BoxesOf {
        slots,
        by_slots,
        opened: boxes.ok(),
    })
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

/// Returns `own` if it is `Ok` on all ranks; else why it failed here, or on which rank it failed.
/// Collective.
fn if_all_have<R>(comm: &Communicator, own: Result<R, String>) -> Result<Result<R, String>, Error> {
    let (own, ways) = agree(
        comm,
        Ok(own),
        |own| {
            if own.is_ok() { PINNED } else { ELSEWHERE }
        },
    )?;
    let without = ways.iter().position(|&way| way == ELSEWHERE);
    Ok(match (own, without) {
        (Ok(_), Some(rank)) => Err(other_says_why(comm, rank)),
        (own, _) => own,
    })
}

fn other_says_why(comm: &Communicator, rank: usize) -> String {
    let other = comm.inner.watch.member(rank as u32);
    format!("{other} has none to offer; it says why")
}

/// The engine of a rank that has joined.
fn engine(
    comm: &Communicator,
    context: Arc<CudaContext>,
    member: Attached,
    passed_over: Vec<String>,
    kernels: KernelChoice,
) -> Result<Arc<KernelEngine>, Error> {
    let member = Arc::new(member);
    let base = DeviceRank::new(comm, context, Arc::clone(&member))?;
    let engine = Arc::new(KernelEngine::new(base, member, passed_over, kernels));
    engine.adapt_patience();
    guard::start(&engine, KernelEngine::look)?;
    Ok(engine)
}

/// Which kernels are taken: the same on all ranks, since all have rank 0's measurements, and know
/// the same about all GPUs.
fn kernels(comm: &Communicator, all: &[ToldGpu], member: &Attached) -> KernelChoice {
    let limits = member.limits();
    let layout = limits.and_then(|limits| layout(all, limits));
    let found = limits.zip(layout.as_ref());
    let found = found.map(|(limits, layout)| measured(&comm.inner.world.tuning, layout, limits));
    KernelChoice {
        measured: found.unwrap_or_default(),
        layout,
        may_stage: comm.inner.world.settings.path != Path::ZeroCopy,
    }
}

/// This rank's result, and what `says` makes of each rank's, if all succeed; else this rank's own
/// error, or an error that names another rank. Collective.
fn agree<R>(
    comm: &Communicator,
    own: Result<R, Error>,
    say: impl FnOnce(&R) -> u8,
) -> Result<(R, Vec<u8>), Error> {
    let said = [own.as_ref().map_or(0, say)];
    let mut all = vec![0; comm.size()];
    let told = comm.all_gather(&said, &mut all).internal().run();
    // This rank's own error says more than that others have given up meanwhile.
    let own = own?;
    told?;
    match all.iter().position(|&said| said == 0) {
        None => Ok((own, all)),
        Some(rank) => Err(Error::Unsupported {
            what: BACKEND.to_owned(),
            reason: format!(
                "{} cannot use it; its own message says why",
                comm.inner.watch.member(rank as u32)
            ),
        }),
    }
}

/// What a rank offers to the others.
enum Offer {
    /// Memory that the others may reach.
    Peers(Shared),
    /// No memory that the others could reach, and why.
    Host(String),
}

/// A rank's scratch, and how it reaches that of the others.
struct Shared {
    scratch: Scratch,
    /// `None` where there are no other ranks.
    exported: Option<OwnedFd>,
    way: u8,
}

impl Offer {
    fn new(
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
        let own = |error| refused(error, comm.rank());
        let scratch = Scratch::new(context, all.len()).map_err(own)?;
        let exported = (all.len() > 1).then(|| scratch.export()).transpose();
        Ok(Self::Peers(Shared {
            exported: exported.map_err(own)?,
            scratch,
            way,
        }))
    }

    /// What this rank tells the others of its scratch.
    fn says(&self) -> u8 {
        match self {
            Self::Peers(scratch) => scratch.way,
            Self::Host(_) => ELSEWHERE,
        }
    }

    /// Why not through the GPUs' memory: this rank's reason, or that rank `without` has one, which
    /// it logs itself.
    fn why_not(self, comm: &Communicator, without: usize) -> String {
        match self {
            Self::Host(why) => why,
            Self::Peers(_) => other_says_why(comm, without),
        }
    }
}

impl Shared {
    /// Maps what the others offer.
    fn join(
        self,
        comm: &Communicator,
        settings: Settings,
        deadline: Instant,
    ) -> Result<Attached, Error> {
        let bytes = Scratch::bytes(comm.size());
        let peers = match &self.exported {
            Some(own) => exchange(comm, own, bytes, deadline)?,
            None => vec![None],
        };
        let joined = Member::join(comm.rank(), self.scratch, peers, settings);
        let joined = joined.map_err(|error| refused(error, comm.rank()))?;
        Ok(Attached::new(KernelTransport::Kernels(Box::new(joined))))
    }
}

fn out_of_reach(why: &str) -> Error {
    Error::Unsupported {
        what: format!("{BACKEND} with SPARK_CCL_PATH=zero-copy"),
        reason: format!(
            "{why}, and memory for calls is not the host's on all ranks (SPARK_CCL_GPU_PINNED=1 \
             makes it so); SPARK_CCL_PATH=auto stages through the host then"
        ),
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

/// How many CTAs a kernel has. Each may take a whole multiprocessor, and those of all ranks that
/// share a GPU fit on it.
fn ctas(all: &[ToldGpu]) -> u32 {
    let of_rank = all.iter().map(|gpu| {
        let on_one = all.iter().filter(|&other| other.place == gpu.place).count();
        CTAS.min(usize::from(gpu.multiprocessors)) / on_one
    });
    of_rank.min().unwrap_or(1).max(1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_share_a_gpu_share_its_ctas() {
        let of = |place: &str, multiprocessors| ToldGpu {
            revision: 1,
            place: place.to_owned(),
            model: "NVIDIA H200".to_owned(),
            generation: 9,
            multiprocessors,
        };
        let gpu = |place| of(place, 132);
        assert_eq!(ctas(&[gpu("a")]), 32);
        assert_eq!(ctas(&[gpu("a"), gpu("b")]), 32);
        assert_eq!(ctas(&[gpu("a"), gpu("b"), gpu("a")]), 16);
        assert_eq!(ctas(&vec![gpu("a"); 8]), 4);
        // A small GPU, or a part of one, bounds the grids of all ranks.
        assert_eq!(ctas(&[gpu("a"), of("b", 20)]), 20);
        assert_eq!(ctas(&vec![of("b", 20); 3]), 6);
        assert_eq!(ctas(&vec![of("b", 2); 3]), 1);
    }
}
