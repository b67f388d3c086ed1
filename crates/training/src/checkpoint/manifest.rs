//! The manifest of a checkpoint: what it is of, and which files belong to it. It is JSON.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{shard, wrong};
use crate::agreement::Outcome;
use crate::buckets::MOST_STEPS;
use crate::model::{Model, TensorInfo};
use crate::optimizer::Optimizer;
use crate::sampler::Sampler;

/// Tells a manifest from other JSON.
const FORMAT: &str = "spark-ccl checkpoint";
/// The newest version that this build reads, and the one that it writes.
const VERSION: u32 = 1;

/// The part that all versions have.
#[derive(Deserialize)]
struct Head {
    format: String,
    version: u32,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    format: String,
    version: u32,
    pub(crate) step: u64,
    /// How often the parameters were changed: in each step but those whose gradients were not
    /// finite. Older manifests lack it.
    updates: Option<u64>,
    fingerprint: String,
    tensors: Vec<TensorInfo>,
    optimizer: String,
    states: Vec<String>,
    /// The files, by rank.
    pub(crate) shards: Vec<ShardEntry>,
    pub(crate) sampler: Option<Sampler>,
}

/// The file of a rank.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ShardEntry {
    pub(crate) file: String,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
}

impl Manifest {
    pub(crate) fn new(
        model: &Model,
        optimizer: &impl Optimizer,
        step: u64,
        updates: u64,
        shards: Vec<ShardEntry>,
        sampler: Option<&Sampler>,
    ) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            step,
            updates: Some(updates),
            fingerprint: hex(&model.fingerprint()),
            tensors: model.tensors().to_owned(),
            optimizer: optimizer.name().to_owned(),
            states: optimizer.states().iter().map(|&it| it.to_owned()).collect(),
            shards,
            sampler: sampler.cloned(),
        }
    }

    /// How often the parameters were changed.
    pub(super) fn updates(&self) -> u64 {
        self.updates.unwrap_or(self.step)
    }

    /// Reads any bytes as a manifest that is consistent in itself.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let head: Head = serde_json::from_slice(bytes)
            .map_err(|error| format!("is no manifest of a checkpoint, or truncated: {error}"))?;
        if head.format != FORMAT {
            let format = head.format;
            return Err(format!("has format {format:?}, expected {FORMAT:?}"));
        }
        if head.version > VERSION || head.version == 0 {
            let version = head.version;
            return Err(format!(
                "has version {version}, and this build reads 1 to {VERSION}: use \
                                the build that wrote it, or a newer one"
            ));
        }
        let mut manifest: Self =
            serde_json::from_slice(bytes).map_err(|error| format!("is damaged: {error}"))?;
        if manifest.step > MOST_STEPS {
            return Err(format!("is damaged: no run reaches step {}", manifest.step));
        }
        if manifest.updates() > MOST_STEPS {
            return Err("is damaged: no run changes its parameters so often".to_owned());
        }
        let ranks = manifest.shards.len();
        let files = manifest.shards.iter().enumerate();
        let mut strange = files.filter(|(rank, it)| it.file != shard::file_name(*rank, ranks));
        if let Some((rank, entry)) = strange.next() {
            return Err(format!(
                "names {:?} as the file of rank {rank} of {ranks}",
                entry.file
            ));
        }
        let sampler = manifest.sampler.take().map(Sampler::checked).transpose();
        manifest.sampler = sampler.map_err(|error| error.to_string())?;
        let model = Model::new(manifest.tensors.clone()).map_err(|error| error.to_string())?;
        if hex(&model.fingerprint()) != manifest.fingerprint || ranks == 0 {
            return Err("is damaged: its tensors are not those of its fingerprint".to_owned());
        }
        Ok(manifest)
    }

    /// Checks that it is of this model and optimizer. Returns where the run's sampler, if it has
    /// one, goes on.
    pub(super) fn check(
        &self,
        file: &Path,
        model: &Model,
        optimizer: &impl Optimizer,
        sampler: Option<&Sampler>,
    ) -> Outcome<Option<Sampler>> {
        let saved = Model::new(self.tensors.clone());
        let saved = saved.map_err(|error| wrong(file, error))?;
        if let Some(difference) = saved.first_difference(model, "in the checkpoint") {
            let place = format!("file {}: another model", file.display());
            return Err(difference.within(&place));
        }
        let (name, states) = (optimizer.name(), optimizer.states());
        if self.optimizer != name || self.states != states {
            let (saved, of) = (&self.optimizer, &self.states);
            let problem =
                format!("is of optimizer {saved} with {of:?}, not {name} with {states:?}");
            return Err(wrong(file, problem));
        }
        let Some(sampler) = sampler else {
            return Ok(None);
        };
        let saved = self.sampler.as_ref().ok_or("has no sampler".to_owned());
        let saved = saved.and_then(|saved| sampler.go_on_from(saved));
        saved.map(Some).map_err(|problem| wrong(file, problem))
    }
}

/// Bytes as text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |byte: u8| char::from_digit(u32::from(byte), 16).unwrap_or_default();
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}
