//! Sets up the kernels' engine for a communicator: the ranks exchange their memory over links, and
//! join.

use std::sync::Arc;
use std::time::Instant;

use spark_ccl_config::{GpuProtocol, Path};
use spark_ccl_cuda::cudarc::driver::CudaContext;
use spark_ccl_fork::Owned;
use spark_ccl_gpu::{Settings, Slots, Stage, Wire};
use spark_ccl_slots::Placement;

use super::attached::Attached;
use super::engine::{KernelChoice, KernelEngine};
use super::measured::{layout, measured};
use super::offer::{ELSEWHERE, LINES, Offer, PACKETS, Shared};
use super::pinned::Pinned;
use super::refused::refused;
use super::staged::{BoxesOf, BySlots, OpenedBoxes, Staged};
use super::transport::KernelTransport;
use crate::api::communicator::Communicator;
use crate::device::agreement::{
    ToldGpu, all_have, find_gpu, have_the_same_kernels, hosts, no_other_has, tell_gpu,
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

/// What a rank tells the others that has what is asked for; else [`ELSEWHERE`].
const PINNED: u8 = 3;
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
    // Containers may count as several hosts, and have the GPUs of their machine in common.
    let hosts = hosts(comm);
    let ctas = ctas(&all, |rank, other| {
        hosts[rank].is_same_machine(&hosts[other])
    });
    let joined = match (offer, without) {
        (Offer::Peers(scratch), None) => {
            let is_whole = ways.iter().all(|&way| way == LINES);
            let wire = if is_whole { Wire::Whole } else { Wire::Any };
            join_peers(comm, scratch, Settings { ctas, wire }, deadline)
        }
        (offer, without) => Ok(Err(offer
            .why_not()
            .unwrap_or_else(|| other_says_why(comm, without.unwrap_or(comm.rank()))))),
    };
    let joined = joined.and_then(|joined| match joined {
        Ok(joined) => Ok((joined, Vec::new())),
        Err(why) => join_through_host(comm, &context, ctas, deadline, &why),
    });
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

/// Joins by the GPUs' memory, or says why not all ranks can map that of the others: a process that
/// sees only its own GPU learns it here. Collective.
fn join_peers(
    comm: &Communicator,
    scratch: Shared,
    settings: Settings,
    deadline: Instant,
) -> Result<Result<Attached, String>, Error> {
    let joined = scratch.join(comm, settings, deadline)?;
    if let Err(why) = &joined {
        spark_ccl_log::warn!(
            "rank {}: calls go through the host's memory, as this GPU cannot map that of others: \
             {why}",
            comm.rank()
        );
    }
    if_all_have(comm, joined)
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

fn out_of_reach(why: &str) -> Error {
    Error::Unsupported {
        what: format!("{BACKEND} with SPARK_CCL_PATH=zero-copy"),
        reason: format!(
            "{why}, and memory for calls is not the host's on all ranks (SPARK_CCL_GPU_PINNED=1 \
             makes it so); SPARK_CCL_PATH=auto stages through the host then"
        ),
    }
}

/// How many CTAs a kernel has. Each may take a whole multiprocessor, and those of all ranks that
/// share a GPU fit on it. `are_together` says whether two ranks are on one machine.
fn ctas(all: &[ToldGpu], are_together: impl Fn(usize, usize) -> bool) -> u32 {
    let share = |rank: usize, other: usize| {
        all[rank].place == all[other].place && are_together(rank, other)
    };
    let of_rank = all.iter().enumerate().map(|(rank, gpu)| {
        let on_one = (0..all.len()).filter(|&other| share(rank, other)).count();
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
        let on_one_host = |all: &[ToldGpu]| ctas(all, |_, _| true);
        assert_eq!(on_one_host(&[gpu("a")]), 32);
        assert_eq!(on_one_host(&[gpu("a"), gpu("b")]), 32);
        assert_eq!(on_one_host(&[gpu("a"), gpu("b"), gpu("a")]), 16);
        assert_eq!(on_one_host(&vec![gpu("a"); 8]), 4);
        // A small GPU, or a part of one, bounds the grids of all ranks.
        assert_eq!(on_one_host(&[gpu("a"), of("b", 20)]), 20);
        assert_eq!(on_one_host(&vec![of("b", 20); 3]), 6);
        assert_eq!(on_one_host(&vec![of("b", 2); 3]), 1);
        // Hosts of one kind have their GPUs at one place.
        assert_eq!(ctas(&vec![gpu("a"); 8], |rank, other| rank == other), 32);
        assert_eq!(
            ctas(&vec![gpu("a"); 4], |rank, other| rank % 2 == other % 2),
            16
        );
    }
}
