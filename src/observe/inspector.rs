//! The inspector's files.

use spark_ccl_config::{Inspector, InspectorFormat};
use spark_ccl_status::inspector::{Group, line, prometheus};
use spark_ccl_status::{Entry, clock};
use std::fs;
use std::io;
use std::path::Path;

use super::files;

/// Writes the operations of this process's communicators to its file.
pub(super) struct Writer {
    settings: Inspector,
    /// For Prometheus: what the next file is about.
    pending: Vec<(Group, Entry)>,
    has_complained: bool,
}

impl Writer {
    pub(super) fn new(settings: &Inspector) -> Self {
        Self {
            settings: settings.clone(),
            pending: Vec::new(),
            has_complained: false,
        }
    }

    /// Takes operations that are done. Their lines of JSON are written at once; Prometheus' file is written by
    /// [`flush`](Self::flush).
    pub(super) fn add(&mut self, group: &Group, entries: &[Entry]) {
        match self.settings.format {
            InspectorFormat::Json => {
                let outcome = self.append(group, entries);
                self.complain(outcome);
            }
            InspectorFormat::Prometheus => {
                let entries = entries.iter().map(|&entry| (group.clone(), entry));
                self.pending.extend(entries);
            }
        }
    }

    /// Writes Prometheus' file anew, if anything was done since the last time.
    pub(super) fn flush(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let Some((group, _)) = pending.first() else {
            return;
        };
        let name = format!("nccl_inspector_metrics_{}.prom", process(group));
        let path = self.settings.folder.join(name);
        let operations: Vec<_> = pending
            .iter()
            .map(|(group, entry)| (group, *entry))
            .collect();
        let outcome = replace(&path, &prometheus(&operations));
        self.complain(outcome);
    }

    fn append(&self, group: &Group, entries: &[Entry]) -> io::Result<()> {
        let now = u64::try_from(clock::since_1970().as_micros()).unwrap_or(u64::MAX);
        let mut text = String::new();
        for entry in entries {
            text.extend(line(group, entry, now, crate::VERSION)?);
        }
        fs::create_dir_all(&self.settings.folder)?;
        let path = self.settings.folder.join(format!("{}.log", process(group)));
        files::append(&path, text.as_bytes())
    }

    /// Says once why nothing is written.
    fn complain(&mut self, outcome: io::Result<()>) {
        if let Err(error) = outcome
            && !std::mem::replace(&mut self.has_complained, true)
        {
            tracing::warn!(
                "the times of operations cannot be written to {}: {error}",
                self.settings.folder.display()
            );
        }
    }
}

/// What tells the files of processes apart, also where hosts share a folder.
fn process(group: &Group) -> String {
    format!("{}-pid{}", group.host.replace('/', "_"), group.pid)
}

/// Replaces a file at once: Prometheus may be reading it.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    files::replace(path, &path.with_extension("draft"), text.as_bytes())
}
