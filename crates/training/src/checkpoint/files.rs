//! The files of checkpoints. A checkpoint is written into a folder with another name, which gets
//! its own name when all is on the disk: a folder with that name is whole.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::lock::Lock;
use super::manifest::{Manifest, ShardEntry, hex};
use super::{random, wrong};
use crate::agreement::Outcome;
use crate::model::to_json;

const MANIFEST: &str = "manifest.json";
const WRITING: &str = ".writing-";
const REMOVING: &str = ".removing-";

/// A folder of checkpoints. All ranks need the same one, on a file system that they share.
///
/// One training per folder: the first [`save`](crate::DataParallel::save) locks it for this value
/// and its clones, until they are dropped or the process ends. Keep it after
/// [`recover`](spark_ccl::Communicator::recover) or `shrink`, where a rank that hangs may still
/// have the lock: it knows that this is the same run.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    folder: PathBuf,
    kept: usize,
    pub(super) lock: Arc<Lock>,
}

impl Checkpoints {
    /// Checkpoints in this folder, which is made when the first one is written. The two newest are
    /// kept.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            kept: 2,
            lock: Arc::default(),
        }
    }

    /// Keeps this many, at least one.
    #[must_use]
    pub fn keeping(mut self, count: usize) -> Self {
        self.kept = count.max(1);
        self
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes the folder for a checkpoint that is being written, and removes what is left of those
    /// that were never finished. Returns its name, which no other attempt has: the rank 0 of an
    /// earlier attempt may wake up, and must not finish this one. A step before the newest one is
    /// refused: it is of another run, and would be the first to be removed. So is a folder that
    /// another run has locked; `run` names this one.
    pub(super) fn prepare(&self, step: u64, run: &str) -> Outcome<String> {
        let folder = &self.folder;
        fs::create_dir_all(folder).map_err(|error| wrong(folder, error))?;
        self.lock.take(folder, run)?;
        if let Some(((newest, _), name)) = self.whole()?.pop()
            && newest > step
        {
            let problem = format!(
                "is of step {newest}, and this run is only at step {step}: go on from it by \
                 `resume`, or save into another folder"
            );
            return Err(wrong(&folder.join(name), problem));
        }
        self.remove_left()?;
        let working = format!("{WRITING}{step}-{:016x}", random());
        let writing = folder.join(&working);
        fs::create_dir(&writing).map_err(|error| wrong(&writing, error))?;
        Ok(working)
    }

    /// Writes a rank's file into the folder that rank 0 has made.
    pub(super) fn write_shard(&self, working: &str, name: &str, bytes: &[u8]) -> Outcome<()> {
        let file = self.folder.join(working).join(name);
        write_whole(&file, bytes).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => wrong(
                &file,
                "rank 0 has made its folder, which is not here: all ranks need the same file \
                 system; or another attempt to save has removed it",
            ),
            _ => wrong(&file, error),
        })
    }

    /// Makes a checkpoint of the files that all ranks have written. Returns its name.
    pub(super) fn finish(&self, working: &str, manifest: &Manifest) -> Outcome<String> {
        let writing = self.folder.join(working);
        let file = writing.join(MANIFEST);
        write_whole(&file, &to_json(manifest)).map_err(|error| wrong(&file, error))?;
        let name = self.free_name(manifest.step)?;
        let whole = self.folder.join(&name);
        let renamed = sync(&writing)
            .and_then(|()| fs::rename(&writing, &whole))
            .and_then(|()| sync(&self.folder));
        renamed.map_err(|error| wrong(&whole, error))?;
        self.prune()?;
        Ok(name)
    }

    /// Removes the folders of attempts that were never finished. Renames each first: it can then
    /// neither become a checkpoint meanwhile, nor lose files after it has become one.
    fn remove_left(&self) -> Outcome<()> {
        let gone = |outcome: io::Result<()>| match outcome {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        };
        for name in self.names()? {
            let left = self.folder.join(&name);
            let removing = match name.strip_prefix(WRITING) {
                Some(rest) => self.folder.join(format!("{REMOVING}{rest}")),
                None if name.starts_with(REMOVING) => left.clone(),
                None => continue,
            };
            let renamed = gone(fs::rename(&left, &removing));
            renamed
                .and_then(|()| gone(fs::remove_dir_all(&removing)))
                .map_err(|error| wrong(&left, error))?;
        }
        Ok(())
    }

    /// The name of the newest checkpoint.
    pub(super) fn newest(&self) -> Outcome<Option<String>> {
        Ok(self.whole()?.pop().map(|(_, name)| name))
    }

    /// The names of checkpoints, with step and number, the oldest first.
    fn whole(&self) -> Outcome<Vec<((u64, u64), String)>> {
        let names = self.names()?.into_iter();
        let whole = names.filter_map(|name| Some((order(&name)?, name)));
        let mut whole: Vec<_> = whole.collect();
        whole.sort();
        Ok(whole)
    }

    /// A name for a checkpoint of this step. There may be one from before a restart, which stays
    /// until the new one is there.
    fn free_name(&self, step: u64) -> Outcome<String> {
        let whole = self.whole()?.into_iter();
        let numbers = whole.filter_map(|((of, number), _)| (of == step).then_some(number));
        let number = numbers.max().map_or(0, |last| last + 1);
        Ok(format!("step-{step}-{number}"))
    }

    fn prune(&self) -> Outcome<()> {
        let whole = self.whole()?;
        let old = whole.len().saturating_sub(self.kept);
        for (_, name) in &whole[..old] {
            let (from, to) = (
                self.folder.join(name),
                self.folder.join(format!("{REMOVING}{name}")),
            );
            let removed = fs::rename(&from, &to).and_then(|()| fs::remove_dir_all(&to));
            removed.map_err(|error| wrong(&from, error))?;
        }
        Ok(())
    }

    /// The names in the folder; none if it does not exist.
    fn names(&self) -> Outcome<Vec<String>> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries,
        };
        let names = entries.and_then(|entries| {
            let name = |entry: io::Result<fs::DirEntry>| {
                entry.map(|entry| entry.file_name().to_string_lossy().into_owned())
            };
            entries.map(name).collect::<io::Result<Vec<_>>>()
        });
        names.map_err(|error| wrong(&self.folder, error))
    }
}

/// The step and number in a checkpoint's name.
fn order(name: &str) -> Option<(u64, u64)> {
    let (step, number) = name.strip_prefix("step-")?.split_once('-')?;
    Some((step.parse().ok()?, number.parse().ok()?))
}

/// The manifest of a checkpoint, and its path.
pub(super) fn read_manifest(folder: &Path) -> Outcome<(PathBuf, Vec<u8>)> {
    let file = folder.join(MANIFEST);
    let bytes = fs::read(&file).map_err(|error| wrong(&file, error))?;
    Ok((file, bytes))
}

/// Reads a shard, and checks that it is the one that was written.
pub(super) fn read_shard(file: &Path, entry: &ShardEntry) -> Outcome<Vec<u8>> {
    let bytes = fs::read(file).map_err(|error| wrong(file, error))?;
    if bytes.len() as u64 != entry.bytes {
        let problem = format!(
            "has {} bytes, expected {}: it is truncated or another file",
            bytes.len(),
            entry.bytes
        );
        return Err(wrong(file, problem));
    }
    if hex(&Sha256::digest(&bytes)) != entry.sha256 {
        return Err(wrong(
            file,
            "its hash is not that of what was written: it has changed since",
        ));
    }
    Ok(bytes)
}

/// Writes a file that is on the disk when this returns.
fn write_whole(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(file)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Puts a folder's entries on the disk.
fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use spark_ccl::DType;

    use super::*;
    use crate::model::{Model, TensorInfo};
    use crate::optimizer::Sgd;

    /// It stops after the shards, its run goes on without it, and comes to the same step.
    #[test]
    fn a_rank_0_that_was_left_behind_ends_no_checkpoint_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new] = [(); 2].map(|()| Checkpoints::new(folder.path()));
        let model = Model::new(vec![TensorInfo::new("x", DType::F32, &[1])]).unwrap();
        let optimizer = Sgd::new(0.1, 0.0);
        let manifest = Manifest::new(&model, &optimizer, 5, 5, Vec::new(), None);
        let left = old.prepare(5, "one run").unwrap();
        old.write_shard(&left, "a shard", b"old").unwrap();
        let working = new.prepare(5, "one run").unwrap();
        new.write_shard(&working, "a shard", b"new").unwrap();
        let error = format!("{:?}", old.finish(&left, &manifest).unwrap_err());
        assert!(error.contains("No such file"), "{error}");
        assert_eq!(new.newest().unwrap(), None);
        let name = new.finish(&working, &manifest).unwrap();
        let shard = fs::read(folder.path().join(name).join("a shard")).unwrap();
        assert_eq!(shard, b"new");
    }
}
