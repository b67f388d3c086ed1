//! Which GPU each rank has: found here, sent to all ranks, and agreed on before a backend is set
//! up.

use std::sync::Arc;

use spark_ccl_bootstrap::HostId;
use spark_ccl_cuda::cudarc::driver::CudaContext;
use spark_ccl_cuda::{
    bus_id, context, count, generation, multiprocessors, name, share_default_pool,
};
use spark_ccl_gpu::REVISION;

use crate::api::communicator::Communicator;
use crate::error::Error;

/// A rank's GPU.
pub(super) struct FoundGpu {
    pub(super) context: Arc<CudaContext>,
    /// Its PCI bus id: where it is on its host.
    place: String,
    model: String,
    /// 9 is Hopper.
    generation: u8,
    multiprocessors: u16,
}

/// A GPU as its rank describes it to the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ToldGpu {
    /// The revision of the rank's kernels.
    pub(super) revision: u32,
    pub(super) place: String,
    pub(super) model: String,
    pub(super) generation: u8,
    pub(super) multiprocessors: u16,
    /// The most CTAs that the rank allows a kernel.
    pub(super) most_ctas: u8,
}

/// The length of this description in bytes. It has the bus id (at most 16 bytes), the model (cut
/// off where it is too long), the kernels' revision, the most CTAs, the number of multiprocessors
/// and the generation. Zeros if the rank has no GPU.
const BYTES: usize = 100;
const PLACE: usize = 28;
const MODEL: usize = 64;
const REVISED: std::ops::Range<usize> = PLACE + MODEL..PLACE + MODEL + 4;

/// Fails where there is no GPU. Makes no context.
pub(super) fn need_gpu(comm: &Communicator) -> Result<(), Error> {
    let counted = count().map_err(|error| error.of_rank(comm.rank()));
    Ok(counted.map(drop)?)
}

/// The GPU of this rank.
pub(super) fn find_gpu(comm: &Communicator) -> Result<FoundGpu, Error> {
    let own = |error: spark_ccl_cuda::Error| error.of_rank(comm.rank());
    let devices = count().map_err(own)?;
    let world = &comm.inner.world;
    let session = &world.session;
    let ordinal = match world.settings.gpu.own_device {
        Some(own) if own < devices => own,
        Some(own) => return Err(no_such_device(comm, own, devices)),
        None => {
            // The same for all communicators of the world: a GPU belongs to one rank.
            let before = (0..session.rank()).filter(|&rank| session.local_to(rank));
            let wanted = world.settings.device.saturating_add(before.count());
            // A launcher may make a different GPU visible to each process.
            wanted % devices
        }
    };
    let context = context(ordinal).map_err(own)?;
    let place = bus_id(ordinal).map_err(own)?;
    let model = name(ordinal).map_err(own)?;
    let generation = generation(&context).map_err(own)? as u8;
    let multiprocessors = multiprocessors(&context).map_err(own)? as u16;
    if let Err(error) = share_default_pool(&context) {
        spark_ccl_log::warn!(
            "rank {}: other devices of this process cannot reach memory from cudarc: {error}",
            comm.rank()
        );
    }
    Ok(FoundGpu {
        context,
        place,
        model,
        generation,
        multiprocessors,
    })
}

fn no_such_device(comm: &Communicator, own: usize, devices: usize) -> Error {
    Error::Invalid {
        operation: "choosing a device",
        problem: format!(
            "SPARK_CCL_DEVICE of rank {} is {own}, and this process sees {devices} devices, \
             numbered from 0",
            comm.rank()
        ),
    }
}

/// The GPUs of all ranks as these describe them; `None` for a rank that lacks what the backend
/// needs. Collective.
pub(super) fn tell_gpu(
    comm: &Communicator,
    found: Option<&FoundGpu>,
) -> Result<Vec<Option<ToldGpu>>, Error> {
    let mut own = [0_u8; BYTES];
    if let Some(found) = found {
        put(&mut own[..PLACE], &found.place);
        put(&mut own[PLACE..PLACE + MODEL], &found.model);
        own[REVISED].copy_from_slice(&REVISION.to_le_bytes());
        own[BYTES - 4] = comm.inner.world.settings.gpu.most_ctas as u8;
        own[BYTES - 3..BYTES - 1].copy_from_slice(&found.multiprocessors.to_le_bytes());
        own[BYTES - 1] = found.generation;
    }
    let mut all = vec![0; BYTES * comm.size()];
    comm.all_gather(&own, &mut all).internal().run()?;
    Ok(all.chunks_exact(BYTES).map(ToldGpu::from_bytes).collect())
}

fn put(field: &mut [u8], text: &str) {
    let len = text.len().min(field.len());
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
}

impl ToldGpu {
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let text = |field: &[u8]| {
            let text = String::from_utf8_lossy(field);
            text.trim_end_matches('\0').to_owned()
        };
        let place = text(&bytes[..PLACE]);
        let generation = bytes[BYTES - 1];
        let revision = bytes[REVISED].try_into().unwrap_or_default();
        (generation != 0 || !place.is_empty()).then_some(Self {
            revision: u32::from_le_bytes(revision),
            place,
            model: text(&bytes[PLACE..PLACE + MODEL]),
            generation,
            most_ctas: bytes[BYTES - 4],
            multiprocessors: u16::from_le_bytes([bytes[BYTES - 3], bytes[BYTES - 2]]),
        })
    }
}

/// The GPUs of all ranks, or an error if a rank lacks what the backend needs. That rank reports the
/// reason itself.
pub(super) fn all_have(
    comm: &Communicator,
    backend: &str,
    told: Vec<Option<ToldGpu>>,
) -> Result<Vec<ToldGpu>, Error> {
    let missing = told.iter().position(Option::is_none);
    match missing {
        None => Ok(told.into_iter().flatten().collect()),
        Some(rank) => Err(Error::Unsupported {
            what: backend.to_owned(),
            reason: format!(
                "{} cannot use it; its own message says why",
                comm.inner.watch.member(rank as u32)
            ),
        }),
    }
}

/// Refuses ranks whose kernels differ from this one's, as those of another build do.
pub(super) fn have_the_same_kernels(comm: &Communicator, all: &[ToldGpu]) -> Result<(), Error> {
    let other = all.iter().position(|gpu| gpu.revision != REVISION);
    other.map_or(Ok(()), |rank| {
        let [own, other] = [comm.rank(), rank].map(|rank| comm.inner.watch.member(rank as u32));
        Err(Error::Unsupported {
            what: "this library's own kernels".to_owned(),
            reason: format!(
                "{own} has their revision {REVISION:08x}, and {other} has {:08x}: use the same \
                 build on all ranks",
                all[rank].revision
            ),
        })
    })
}

/// Refuses two ranks of a host with the same GPU. The result is the same on all ranks. `hint` says
/// what to do about it.
pub(super) fn no_other_has(comm: &Communicator, all: &[ToldGpu], hint: &str) -> Result<(), Error> {
    let Some([first, second]) = two_on_one(all, &hosts(comm)) else {
        return Ok(());
    };
    let [one, other] = [first, second].map(|rank| comm.inner.watch.member(rank as u32));
    Err(Error::Invalid {
        operation: "choosing a device",
        problem: format!(
            "{one} would share the GPU at {} with {other}; start fewer ranks on this host, or show \
             each its own (CUDA_VISIBLE_DEVICES){hint}",
            all[first].place
        ),
    })
}

/// The host of each rank.
pub(super) fn hosts(comm: &Communicator) -> Vec<HostId> {
    let session = &comm.inner.world.session;
    let members = comm.inner.members.iter();
    members
        .map(|&member| session.peer(member).host_id)
        .collect()
}

/// Two ranks that have the same GPU of the same host.
fn two_on_one<H: PartialEq>(all: &[ToldGpu], hosts: &[H]) -> Option<[usize; 2]> {
    let has_same =
        |first: usize, second: &usize| hosts[*second] == hosts[first] && all[*second] == all[first];
    let mut pairs = (0..all.len()).filter_map(|first| {
        let second = (first + 1..all.len()).find(|second| has_same(first, second));
        Some([first, second?])
    });
    pairs.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_understood() {
        let mut bytes = [0; BYTES];
        assert_eq!(ToldGpu::from_bytes(&bytes), None);
        put(&mut bytes[..PLACE], "0000:1b:00.0");
        put(&mut bytes[PLACE..PLACE + MODEL], "NVIDIA H200");
        bytes[REVISED].copy_from_slice(&[4, 3, 2, 1]);
        bytes[BYTES - 4..].copy_from_slice(&[7, 0x10, 0x01, 9]);
        let told = ToldGpu::from_bytes(&bytes).unwrap();
        assert_eq!(told.model, "NVIDIA H200");
        assert_eq!((&*told.place, told.generation), ("0000:1b:00.0", 9));
        assert_eq!((told.multiprocessors, told.revision), (272, 0x0102_0304));
        assert_eq!(told.most_ctas, 7);
    }

    fn gpu(place: &str) -> ToldGpu {
        ToldGpu {
            revision: REVISION,
            place: place.to_owned(),
            model: "NVIDIA H200".to_owned(),
            generation: 9,
            multiprocessors: 132,
            most_ctas: 32,
        }
    }

    #[test]
    fn ranks_of_two_builds_are_both_named() {
        let all = Communicator::builder().local(2).unwrap();
        let (own, other) = (
            gpu("a"),
            ToldGpu {
                revision: 7,
                ..gpu("b")
            },
        );
        assert!(have_the_same_kernels(&all[0], &[own.clone(), own.clone()]).is_ok());
        let said = have_the_same_kernels(&all[0], &[own, other])
            .unwrap_err()
            .to_string();
        let revision = format!("{REVISION:08x}");
        for part in ["rank 0", "rank 1", &revision, "00000007", "the same build"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }

    #[test]
    fn two_ranks_share_a_gpu_only_on_one_host() {
        let all = ["a", "b", "a", "b"].map(gpu);
        assert_eq!(two_on_one(&all, &[1, 1, 2, 2]), None);
        assert_eq!(two_on_one(&all, &[1, 1, 2, 1]), Some([1, 3]));
        assert_eq!(two_on_one(&all, &[1; 4]), Some([0, 2]));
    }
}
