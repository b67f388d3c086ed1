//! Sets up the kernels' engine for a communicator: the ranks exchange their memory over links, and
//! join.

use std::sync::Arc;
use std::time::Instant;

use spark_ccl_config::{MOST_CTAS, Path};
use spark_ccl_cuda::cudarc::driver::CudaContext;
use spark_ccl_fork::Owned;
use spark_ccl_gpu::{Settings, Wire};

use super::attached::Attached;
use super::engine::{KernelChoice, KernelEngine};
use super::measured::{layout, measured};
use super::offer::{ELSEWHERE, LINES, Offer, PACKETS, Shared};
use super::through_host::join_through_host;
use super::votes::{BACKEND, agree, if_all_have, other_says_why};
use crate::api::communicator::Communicator;
use crate::device::agreement::{
    ToldGpu, all_have, find_gpu, have_the_same_kernels, hosts, no_other_has, tell_gpu,
};
use crate::device::guard;
use crate::device::rank::DeviceRank;
use crate::engine::Engine;
use crate::error::Error;

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

/// How many CTAs a kernel has: as many as all ranks allow. Each may take a whole multiprocessor,
/// and those of all ranks that share a GPU fit on it. `are_together` says whether two ranks are on
/// one machine.
fn ctas(all: &[ToldGpu], are_together: impl Fn(usize, usize) -> bool) -> u32 {
    let share = |rank: usize, other: usize| {
        all[rank].place == all[other].place && are_together(rank, other)
    };
    let of_rank = all.iter().enumerate().map(|(rank, gpu)| {
        let on_one = (0..all.len()).filter(|&other| share(rank, other)).count();
        let that_fit = MOST_CTAS.min(usize::from(gpu.multiprocessors)) / on_one;
        that_fit.min(usize::from(gpu.most_ctas))
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
            most_ctas: 32,
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
        let limited = |place, most_ctas| ToldGpu {
            most_ctas,
            ..gpu(place)
        };
        assert_eq!(on_one_host(&[gpu("a"), limited("b", 3)]), 3);
        assert_eq!(on_one_host(&[limited("a", 20), limited("a", 18)]), 16);
        // Hosts of one kind have their GPUs at one place.
        assert_eq!(ctas(&vec![gpu("a"); 8], |rank, other| rank == other), 32);
        assert_eq!(
            ctas(&vec![gpu("a"); 4], |rank, other| rank % 2 == other % 2),
            16
        );
    }
}
