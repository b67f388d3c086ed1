//! Reads a checkpoint: all files are checked before anything is replaced.

use std::ops::Range;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::manifest::Manifest;
use super::shard::{Record, Shard};
use super::{files, wrong, wrong_tensor};
use crate::agreement::Outcome;
use crate::data_parallel::DataParallel;
use crate::model::Model;
use crate::optimizer::Optimizer;
use crate::sampler::Sampler;
use crate::shares::Share;

/// A checkpoint that is being read, or has been.
pub(crate) struct Loading {
    pub(super) step: u64,
    pub(super) updates: u64,
    /// Where the run's sampler, if it has one, goes on.
    pub(super) sampler: Option<Sampler>,
    /// All parameters of each tensor.
    pub(crate) parameters: Vec<Vec<f32>>,
    /// This rank's share of each tensor.
    pub(crate) shares: Vec<Share>,
    /// The elements of each tensor that were in a shard.
    seen: Vec<Vec<Range<usize>>>,
}

impl Loading {
    /// Nothing has been read. `shares` are those of this rank, whatever they contain.
    pub(crate) fn new(model: &Model, shares: Vec<Share>) -> Self {
        let parameters = model.tensors().iter().map(|it| vec![0.0; it.len()]);
        Self {
            step: 0,
            updates: 0,
            sampler: None,
            parameters: parameters.collect(),
            shares,
            seen: vec![Vec::new(); model.tensors().len()],
        }
    }

    /// Reads and checks a whole checkpoint, whose manifest has this hash on rank 0.
    pub(super) fn read<O: Optimizer>(
        folder: &Path,
        hash: &[u8],
        training: &DataParallel<O>,
        sampler: Option<&Sampler>,
    ) -> Outcome<Self> {
        let model = training.model();
        let (file, bytes) = files::read_manifest(folder)?;
        if Sha256::digest(&bytes)[..] != *hash {
            let problem = "is not what rank 0 has read: all ranks need the same file system";
            return Err(wrong(&file, problem));
        }
        let manifest = Manifest::parse(&bytes).map_err(|problem| wrong(&file, problem))?;
        let mut loading = Self::new(model, training.shares.by_tensor.clone());
        loading.step = manifest.step;
        loading.updates = manifest.updates();
        loading.sampler = manifest.check(&file, model, &training.optimizer, sampler)?;
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

    /// Takes a shard's part of a tensor.
    pub(crate) fn take(&mut self, file: &Path, model: &Model, record: &Record) -> Outcome<()> {
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
    pub(crate) fn check_whole(&mut self, file: &Path, model: &Model) -> Outcome<()> {
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
        let mut loading = Loading::new(&model, Vec::new());
        loading.seen = vec![seen.iter().map(|&(begin, end)| begin..end).collect()];
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
