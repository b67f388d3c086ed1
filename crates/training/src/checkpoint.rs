//! Checkpoints: a folder for each, written whole or not at all, and read by any number of ranks.

mod files;
pub(crate) mod manifest;
pub(crate) mod shard;

use std::path::{Path, PathBuf};

pub use files::Checkpoints;
use manifest::{Manifest, ShardEntry, hex};
use sha2::{Digest, Sha256};
use shard::{Record, Shard};
use spark_ccl::Communicator;

use crate::agreement::{self, Complaint};
use crate::buckets::Options;
use crate::data_parallel::DataParallel;
use crate::error::Error;
use crate::model::Model;
use crate::optimizer::Optimizer;
use crate::parameters::{Parameters, write};
use crate::sampler::Sampler;
use crate::shares::{Share, round_into};
use crate::values::Values;

/// What a rank found wrong with a file, or could not do with it.
type Outcome<T> = Result<T, Complaint>;

/// A problem with a file.
fn wrong(file: &Path, problem: impl std::fmt::Display) -> Complaint {
    Complaint::new(format!("file {}: {problem}", file.display()))
}

/// A problem with a tensor in a file.
fn wrong_tensor(file: &Path, tensor: &str, problem: impl std::fmt::Display) -> Complaint {
    Complaint::of(tensor, format!("file {}: {problem}", file.display()))
}

/// Returns what each rank has done, or the first rank's problem on all ranks. Collective.
fn all<T>(comm: &Communicator, outcome: Outcome<T>) -> Result<T, Error> {
    let (done, problem) = match outcome {
        Ok(done) => (Some(done), None),
        Err(problem) => (None, Some(problem)),
    };
    agreement::check(comm, problem, Error::Checkpoint)?;
    done.ok_or_else(|| Error::Invalid {
        what: "a checkpoint",
        problem: "the ranks do not agree whether it failed".to_owned(),
    })
}

impl<O: Optimizer> DataParallel<O> {
    /// Writes a checkpoint between two steps: each rank its share, and rank 0 what belongs to all.
    /// Returns its folder. If a rank dies before all files are written, there is no checkpoint of
    /// this step, and the earlier ones are as before; if it dies later, there may be a whole one.
    /// Only one run at a time may use a folder. Collective.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] on all ranks, with the rank that could not write and its file, or if
    /// the folder has a checkpoint of a later step; [`Error::Invalid`] in the middle of a step.
    pub fn save(
        &self,
        comm: &Communicator,
        store: &Checkpoints,
        sampler: Option<&Sampler>,
    ) -> Result<PathBuf, Error> {
        self.buckets.check_finished(comm)?;
        let step = self.steps();
        let is_first = comm.rank() == 0;
        let prepared = if is_first {
            store.prepare(step)
        } else {
            Ok(())
        };
        all(comm, prepared)?;
        let shard = self.shard(comm).encode();
        let name = shard::file_name(comm.rank(), comm.size());
        all(comm, store.write_shard(step, &name, &shard))?;
        let entries = gather_entries(comm, &shard)?;
        let manifest = Manifest::new(self.model(), &self.optimizer, step, entries, sampler);
        let finished = is_first.then(|| store.finish(step, &manifest)).transpose();
        let name = all(comm, finished)?.unwrap_or_default();
        let name = agreement::tell(comm, 0, name.as_bytes())?;
        Ok(store.folder().join(&*String::from_utf8_lossy(&name)))
    }

    /// Goes on from the newest checkpoint, by which parameters and state are replaced on all ranks.
    /// Their number may be another than when it was written. `None` if there is no checkpoint.
    /// Collective.
    ///
    /// After [`recover`](Communicator::recover), `shrink` or a restart, this is the only way to a
    /// state that all ranks have alike: drop what was there before.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] on all ranks, with the rank, file and tensor, for a checkpoint that is
    /// of another model or optimizer, of a newer version, truncated or changed. Nothing has been
    /// replaced then.
    pub fn resume(
        comm: &Communicator,
        parameters: &mut impl Parameters,
        optimizer: O,
        options: Options,
        store: &Checkpoints,
    ) -> Result<Option<(Self, Option<Sampler>)>, Error> {
        let newest = if comm.rank() == 0 {
            store.newest()
        } else {
            Ok(None)
        };
        let newest = all(comm, newest)?.unwrap_or_default();
        let newest = agreement::tell(comm, 0, newest.as_bytes())?;
        let newest = String::from_utf8_lossy(&newest);
        if newest.is_empty() {
            return Ok(None);
        }
        let mut training = Self::with_present(comm, parameters, optimizer, options)?;
        let read = Loading::read(&store.folder().join(&*newest), &training);
        let loaded = all(comm, read)?;
        let model = training.model().clone();
        for (tensor, info) in model.tensors().iter().enumerate() {
            let mut values = Values::zeros(info.dtype, info.len())?;
            round_into(&mut values, 0, &loaded.parameters[tensor]);
            write(parameters, tensor, info, values.bytes())?;
        }
        training.shares.by_tensor = loaded.shares;
        training.buckets.set_steps(loaded.step)?;
        Ok(Some((training, loaded.sampler)))
    }

    /// What this rank writes.
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

/// What is read of a checkpoint, before anything is replaced.
struct Loading {
    step: u64,
    sampler: Option<Sampler>,
    /// By tensor: all its parameters.
    parameters: Vec<Vec<f32>>,
    /// By tensor: what this rank has of it.
    shares: Vec<Share>,
    /// By tensor: which elements were in a shard.
    seen: Vec<Vec<std::ops::Range<usize>>>,
}

impl Loading {
    /// Reads and checks a whole checkpoint.
    fn read<O: Optimizer>(folder: &Path, training: &DataParallel<O>) -> Outcome<Self> {
        let model = training.model();
        let (file, manifest) = files::read_manifest(folder)?;
        manifest.check(&file, model, &training.optimizer)?;
        let mut loading = Self {
            step: manifest.step,
            sampler: manifest.sampler.clone(),
            parameters: model
                .tensors()
                .iter()
                .map(|it| vec![0.0; it.len()])
                .collect(),
            shares: training.shares.by_tensor.clone(),
            seen: vec![Vec::new(); model.tensors().len()],
        };
        for (rank, entry) in manifest.shards.iter().enumerate() {
            let file = folder.join(&entry.file);
            let bytes = files::read_shard(&file, entry)?;
            let shard = Shard::decode(&bytes).map_err(|problem| wrong(&file, problem))?;
            let is_of_it = shard.rank == rank
                && shard.ranks == manifest.shards.len()
                && shard.step == manifest.step
                && shard.fingerprint == model.fingerprint();
            if !is_of_it {
                return Err(wrong(&file, "belongs to another checkpoint"));
            }
            for record in &shard.records {
                loading.take(&file, model, record)?;
            }
        }
        loading.check_whole(&file, model)?;
        Ok(loading)
    }

    /// Takes what a shard has of a tensor.
    fn take(&mut self, file: &Path, model: &Model, record: &Record) -> Outcome<()> {
        let tensors = model.tensors();
        let Some(info) = tensors.get(record.tensor) else {
            let problem = format!("has tensor {} of {}", record.tensor, tensors.len());
            return Err(wrong(file, problem));
        };
        let (begin, end) = (
            record.begin,
            record.begin.saturating_add(record.parameters.len()),
        );
        let share = &mut self.shares[record.tensor];
        if end > info.len() || record.states.len() != share.states.len() {
            let problem = format!(
                "elements {begin} to {end} with {} states, of {} with {}",
                record.states.len(),
                info.len(),
                share.states.len()
            );
            return Err(wrong_tensor(file, &info.name, problem));
        }
        self.parameters[record.tensor][begin..end].copy_from_slice(&record.parameters);
        self.seen[record.tensor].push(begin..end);
        let own = begin.max(share.range.start)..end.min(share.range.end);
        if !own.is_empty() {
            let to = own.start - share.range.start..own.end - share.range.start;
            let from = own.start - begin..own.end - begin;
            share.parameters[to.clone()].copy_from_slice(&record.parameters[from.clone()]);
            for (state, saved) in share.states.iter_mut().zip(&record.states) {
                state[to.clone()].copy_from_slice(&saved[from.clone()]);
            }
        }
        Ok(())
    }

    /// Checks that the shards had each element once.
    fn check_whole(&mut self, file: &Path, model: &Model) -> Outcome<()> {
        for (seen, info) in self.seen.iter_mut().zip(model.tensors()) {
            seen.sort_by_key(|range| range.start);
            let mut end = 0;
            let follow = seen
                .iter()
                .all(|range| range.start == std::mem::replace(&mut end, range.end));
            if !follow || end != info.len() {
                let problem = "the shards do not have each of its elements once";
                return Err(wrong_tensor(file, &info.name, problem));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use spark_ccl::DType;

    use super::*;
    use crate::model::TensorInfo;

    /// Whether shards with these parts of a tensor of four elements are whole.
    fn check(seen: &[(usize, usize)]) -> Outcome<()> {
        let model = Model::new(vec![TensorInfo::new("a", DType::F32, &[4])]).unwrap();
        let mut loading = Loading {
            step: 1,
            sampler: None,
            parameters: Vec::new(),
            shares: Vec::new(),
            seen: vec![seen.iter().map(|&(begin, end)| begin..end).collect()],
        };
        loading.check_whole(Path::new("manifest"), &model)
    }

    #[test]
    fn shards_must_have_each_element_once() {
        assert_eq!(check(&[(2, 4), (0, 2)]), Ok(()));
        for seen in [
            &[(0, 2)][..],
            &[(1, 4)],
            &[(0, 2), (3, 4)],
            &[(0, 3), (2, 4)],
            &[],
        ] {
            let complaint = check(seen).unwrap_err();
            let expected = wrong_tensor(
                Path::new("manifest"),
                "a",
                "the shards do not have each of its elements once",
            );
            assert_eq!(complaint, expected, "{seen:?}");
        }
    }
}
