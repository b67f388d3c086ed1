//! The inspector's files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use spark_ccl_config::{Inspector, InspectorFormat, files};
use spark_ccl_status::inspector::{Group, line, prometheus};
use spark_ccl_status::{Entry, clock};

/// Writes the operations of this process's communicators to its files.
pub(super) struct Writer {
    settings: Inspector,
    /// For Prometheus: what the next files are about.
    pending: BTreeMap<PathBuf, Vec<(Group, Entry)>>,
    /// Prometheus' files that were written.
    written: BTreeSet<PathBuf>,
    has_complained: bool,
}

impl Writer {
    pub(super) fn new(settings: &Inspector) -> Self {
        Self {
            settings: settings.clone(),
            pending: BTreeMap::new(),
            written: BTreeSet::new(),
            has_complained: false,
        }
    }

    /// Takes operations that are done. Their lines of JSON are written at once; Prometheus' files
    /// are written by [`flush`](Self::flush).
    pub(super) fn add(&mut self, group: &Group, entries: &[Entry]) {
        match self.settings.format {
            InspectorFormat::Json => {
                let outcome = self.append(group, entries);
                self.complain(outcome);
            }
            InspectorFormat::Prometheus => {
                let path = self.settings.folder.join(metrics(group));
                let entries = entries.iter().map(|&entry| (group.clone(), entry));
                self.pending.entry(path).or_default().extend(entries);
            }
        }
    }

    /// Writes Prometheus' files anew, if anything was done since the last time.
    pub(super) fn flush(&mut self) {
        for (path, pending) in std::mem::take(&mut self.pending) {
            let operations: Vec<_> = pending
                .iter()
                .map(|(group, entry)| (group, *entry))
                .collect();
            let outcome = replace(&path, &prometheus(&operations));
            self.complain(outcome);
            self.written.insert(path);
        }
    }

    /// Removes Prometheus' files: they would say for ever that this process runs.
    pub(super) fn end(&mut self) {
        for path in std::mem::take(&mut self.written) {
            let outcome = match fs::remove_file(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                outcome => outcome,
            };
            self.complain(outcome);
        }
    }

    fn append(&self, group: &Group, entries: &[Entry]) -> io::Result<()> {
        let now = u64::try_from(clock::since_1970().as_micros()).unwrap_or(u64::MAX);
        let mut text = String::new();
        for entry in entries {
            text.extend(line(group, entry, now, crate::world::VERSION)?);
        }
        fs::create_dir_all(&self.settings.folder)?;
        let name = format!("{}-pid{}.log", plain(&group.host), group.pid);
        let path = self.settings.folder.join(name);
        files::append(&path, text.as_bytes())
    }

    /// Says once why nothing is written.
    fn complain(&mut self, outcome: io::Result<()>) {
        if let Err(error) = outcome
            && !std::mem::replace(&mut self.has_complained, true)
        {
            spark_ccl_log::warn!(
                "the times of operations cannot be written to {}: {error}",
                self.settings.folder.display()
            );
        }
    }
}

/// The file of a rank, on its host: the next process of that rank replaces the file of one that was
/// killed. The node exporter refuses two files with the same labels, so the name consists of the
/// labels alone.
fn metrics(group: &Group) -> String {
    let job = group
        .job
        .as_deref()
        .map(|job| format!("-job{}", plain(job)));
    format!(
        "nccl_inspector_metrics_{}{}-rank{}.prom",
        plain(&group.host),
        job.unwrap_or_default(),
        group.world_rank
    )
}

/// A part of a file's name.
fn plain(name: &str) -> String {
    name.replace('/', "_")
}

/// Replaces a file atomically: Prometheus may be reading it, and another job may have a rank of
/// that number here.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let draft = path.with_extension(format!("draft-pid{}", std::process::id()));
    files::replace(path, &draft, text.as_bytes())
}
