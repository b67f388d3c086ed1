//! Checkpoints: a folder for each, written whole or not at all, and read by any number of ranks.

mod files;
pub(crate) mod loading;
mod lock;
pub(crate) mod manifest;
pub(crate) mod shard;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};

pub use files::Checkpoints;
use loading::Loading;
use manifest::{Manifest, ShardEntry, hex};
use sha2::{Digest, Sha256};
use shard::{Record, Shard};
use spark_ccl::Communicator;

use crate::agreement::{self, Complaint, Outcome, outliers};
use crate::buckets::Options;
use crate::data_parallel::DataParallel;
use crate::error::Error;
use crate::model::to_json;
use crate::optimizer::Optimizer;
use crate::parameters::{Parameters, write};
use crate::sampler::Sampler;
use crate::shares::round_into;
use crate::values::{Values, each};

/// A problem with a file.
fn wrong(file: &Path, problem: impl std::fmt::Display) -> Complaint {
    Complaint::new(format!("file {}: {problem}", file.display()))
}

/// A problem with a tensor in a file.
fn wrong_tensor(file: &Path, tensor: &str, problem: impl std::fmt::Display) -> Complaint {
    Complaint::of(tensor, format!("file {}: {problem}", file.display()))
}

/// Returns this rank's own result, or on all ranks the first rank's complaint as an error.
/// Collective.
fn all<T>(comm: &Communicator, outcome: Outcome<T>) -> Result<T, Error> {
    agreement::all(comm, outcome, Error::Checkpoint)
}

/// A number that no other has.
fn random() -> u64 {
    // Nothing is hashed: the keys are random.
    RandomState::new().build_hasher().finish()
}

/// Calls `part` on rank 0 only, and returns its result there; `None` on other ranks.
fn first<T>(comm: &Communicator, part: impl FnOnce() -> Outcome<T>) -> Outcome<Option<T>> {
    (comm.rank() == 0).then(part).transpose()
}

impl<O: Optimizer> DataParallel<O> {
    /// Writes a checkpoint between two steps: each rank its share, and rank 0 what belongs to all.
    /// Returns its folder. If a rank dies before all files are written, there is no checkpoint of
    /// this step, and the earlier ones are as before; if it dies later, there may be a whole one.
    /// Only one run at a time may use a folder. Collective.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] on all ranks, with the rank that could not write and its file; in the
    /// middle of a step or after a failure; if the folder has a checkpoint of a later step, or
    /// another run saves into it; if a rank's sampler is in another state.
    /// [`Error::Step`] on all ranks if one has taken another number of steps.
    pub fn save(
        &self,
        comm: &Communicator,
        store: &Checkpoints,
        sampler: Option<&Sampler>,
    ) -> Result<PathBuf, Error> {
        let finished = self.buckets.check_finished(comm);
        all(comm, finished.map_err(Complaint::from))?;
        let step = self.steps();
        compare_states(comm, step, sampler)?;
        let run = run(comm, store)?;
        let working = all(comm, first(comm, || store.prepare(step, &run)))?.unwrap_or_default();
        let working = agreement::tell(comm, 0, working.as_bytes())?;
        let working = String::from_utf8_lossy(&working);
        let shard = self.shard(comm).encode();
        let name = shard::file_name(comm.rank(), comm.size());
        all(comm, store.write_shard(&working, &name, &shard))?;
        let entries = gather_entries(comm, &shard)?;
        let (model, updates) = (self.model(), self.updates());
        let manifest = Manifest::new(model, &self.optimizer, step, updates, entries, sampler);
        let finished = first(comm, || store.finish(&working, &manifest));
        let name = all(comm, finished)?.unwrap_or_default();
        let name = agreement::tell(comm, 0, name.as_bytes())?;
        Ok(store.folder().join(&*String::from_utf8_lossy(&name)))
    }

    /// Goes on from the newest checkpoint: replaces the parameters and makes their state on all
    /// ranks, and sets `sampler`, which is new, to where the run was. The number of ranks may have
    /// changed since it was written. `None` if there is no checkpoint. Collective.
    ///
    /// After [`recover`](Communicator::recover), `shrink` or a restart, this is the only way to a
    /// state that all ranks have alike: drop the old parameters and state.
    ///
    /// # Errors
    /// The same on all ranks. [`Error::Checkpoint`], with the rank, file and tensor, for a
    /// checkpoint of another model, optimizer or data set, or of a newer version, and for one that
    /// is truncated, changed, or not what rank 0 sees. Nothing has been replaced then.
    /// [`Error::Unable`] if a rank's framework fails, after which some parameters may be replaced.
    pub fn resume(
        comm: &Communicator,
        parameters: &mut impl Parameters,
        optimizer: O,
        options: Options,
        store: &Checkpoints,
        sampler: Option<&mut Sampler>,
    ) -> Result<Option<Self>, Error> {
        let Some((folder, hash)) = newest(comm, store)? else {
            return Ok(None);
        };
        let mut training = Self::with_present(comm, parameters, optimizer, options)?;
        let read = Loading::read(&folder, &hash, &training, sampler.as_deref());
        let loaded = all(comm, read)?;
        let model = training.model().clone();
        let tensors = model.tensors().iter().zip(&loaded.parameters).enumerate();
        let mut written = tensors.map(|(tensor, (info, loaded))| {
            let mut values = Values::zeros(info.dtype, info.len()).map_err(Complaint::from)?;
            each!(Values, &mut values, it => round_into(it, loaded));
            write(parameters, tensor, info, values.bytes())
        });
        let written = written.try_for_each(|it| it);
        agreement::all(comm, written, Error::Unable)?;
        training.shares.by_tensor = loaded.shares;
        training.buckets.set_steps(loaded.step)?;
        training.set_updates(loaded.updates);
        if let (Some(sampler), Some(loaded)) = (sampler, loaded.sampler) {
            *sampler = loaded;
        }
        Ok(Some(training))
    }

    /// The file that this rank writes.
    fn shard(&self, comm: &Communicator) -> Shard {
        let (model, sharing) = (self.model(), self.buckets.options().sharing);
        let ranges = self.shares.saved(model, sharing, self.buckets.world());
        let ranges = ranges
            .into_iter()
            .enumerate()
            .filter(|(_, range)| !range.is_empty());
        let records = ranges.map(|(tensor, range)| {
            let share = &self.shares.by_tensor[tensor];
            let part = range.start - share.range.start..range.end - share.range.start;
            Record {
                tensor,
                begin: range.start,
                parameters: share.parameters[part.clone()].to_vec(),
                states: share
                    .states
                    .iter()
                    .map(|it| it[part.clone()].to_vec())
                    .collect(),
            }
        });
        Shard {
            rank: comm.rank(),
            ranks: comm.size(),
            step: self.steps(),
            fingerprint: model.fingerprint(),
            records: records.collect(),
        }
    }
}

/// The name of this run, which is rank 0's, for all ranks: any of them may be rank 0 later.
/// Collective.
fn run(comm: &Communicator, store: &Checkpoints) -> Result<String, Error> {
    let peer = comm.peer(comm.rank())?;
    let process = format!("process {} on {}", peer.pid, peer.host);
    let run = agreement::tell(comm, 0, store.lock.run(&process).as_bytes())?;
    let run = String::from_utf8_lossy(&run).into_owned();
    store.lock.learn(run.clone());
    Ok(run)
}

/// The newest checkpoint that rank 0 sees, and its manifest's hash, for all ranks. Collective.
fn newest(comm: &Communicator, store: &Checkpoints) -> Result<Option<(PathBuf, Vec<u8>)>, Error> {
    let seen = first(comm, || {
        let Some(name) = store.newest()? else {
            return Ok(Vec::new());
        };
        let (_, manifest) = files::read_manifest(&store.folder().join(&name))?;
        Ok([&Sha256::digest(manifest)[..], name.as_bytes()].concat())
    });
    let seen = all(comm, seen)?.unwrap_or_default();
    let mut hash = agreement::tell(comm, 0, &seen)?;
    if hash.is_empty() {
        return Ok(None);
    }
    let name = hash.split_off(<Sha256 as Digest>::output_size());
    let folder = store.folder().join(&*String::from_utf8_lossy(&name));
    Ok(Some((folder, hash)))
}

/// Checks that all ranks have taken the same steps, and the same samples. Collective.
fn compare_states(comm: &Communicator, step: u64, sampler: Option<&Sampler>) -> Result<(), Error> {
    let sampler = Sha256::digest(to_json(&sampler));
    let own = [&step.to_le_bytes()[..], &sampler].concat();
    let mut all = vec![0; own.len() * comm.size()];
    let call = comm.all_gather(&own, &mut all);
    call.by_any_path().named("states to save").run()?;
    let states = all
        .chunks(own.len())
        .map(|it| it.split_at(size_of::<u64>()));
    let (steps, samplers): (Vec<_>, Vec<_>) = states.unzip();
    if let Some(rank) = outliers(&steps).next() {
        let problem = "saves after another number of steps than most ranks";
        return Err(Error::Step(
            Complaint::new(problem.to_owned()).culprit(comm, rank)?,
        ));
    }
    if let Some(rank) = outliers(&samplers).next() {
        let problem = "saves a sampler in another state than on most ranks";
        return Err(Error::Checkpoint(
            Complaint::new(problem.to_owned()).culprit(comm, rank)?,
        ));
    }
    Ok(())
}

/// The lengths and hashes of all ranks' shards.
fn gather_entries(comm: &Communicator, own: &[u8]) -> Result<Vec<ShardEntry>, Error> {
    let mut described = (own.len() as u64).to_le_bytes().to_vec();
    described.extend(Sha256::digest(own));
    let mut all = vec![0; described.len() * comm.size()];
    let call = comm.all_gather(&described, &mut all);
    call.by_any_path().named("shards of a checkpoint").run()?;
    let entries = all.chunks(described.len()).enumerate().map(|(rank, it)| {
        let (len, hash) = it.split_at(size_of::<u64>());
        ShardEntry {
            file: shard::file_name(rank, comm.size()),
            bytes: bytemuck::pod_read_unaligned::<u64>(len),
            sha256: hex(hash),
        }
    });
    Ok(entries.collect())
}
