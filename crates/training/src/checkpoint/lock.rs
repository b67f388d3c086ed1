//! The lock of a folder of checkpoints: one run at a time saves into it. Some file systems have no
//! locks.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{random, wrong};
use crate::agreement::Outcome;

/// The file that is locked. It has the name of the run that locked it last.
const FILE: &str = ".lock";
/// The kernel may still be ending a process that was killed, whose lock it frees then. Short, as
/// the other ranks wait meanwhile in a call, whose time limit is not known here.
const PATIENCE: Duration = Duration::from_millis(500);
/// How Linux says that a file server has no locks; `ErrorKind` has no name for it.
const ENOLCK: i32 = 37;

/// The lock of a folder, and the run that may have it.
#[derive(Debug, Default)]
pub(super) struct Lock(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The name of this run, on all ranks from the first checkpoint on.
    run: Option<String>,
    /// On rank 0.
    held: Option<Held>,
}

/// A locked file.
#[derive(Debug)]
struct Held {
    file: File,
    /// The process that locked it.
    process: u32,
}

impl Lock {
    /// This run's name. If it has none, it gets one of this process and a random number.
    pub(super) fn run(&self, process: &str) -> String {
        let name = || format!("{process} (run {:016x})", random());
        self.state().run.get_or_insert_with(name).clone()
    }

    /// This run has this name on rank 0.
    pub(super) fn learn(&self, run: String) {
        self.state().run = Some(run);
    }

    /// Locks the folder, unless this process has done so. A process of the same run that was left
    /// behind may still have the lock, if it hangs or is stopped. Its files do no harm: they are in
    /// a folder of its own.
    pub(super) fn take(&self, folder: &Path, run: &str) -> Outcome<()> {
        let path = folder.join(FILE);
        let failed = |error| wrong(&path, error);
        let mut state = self.state();
        if state.held.as_ref().is_some_and(|held| held.is_at(&path)) {
            return Ok(());
        }
        state.held = None;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut options = File::options();
            let options = options.read(true).write(true).create(true).truncate(false);
            let file = options.open(&path).map_err(failed)?;
            let is_late = Instant::now() >= deadline;
            match file.try_lock() {
                Ok(()) => {
                    state.held = Some(Held::new(file, run).map_err(failed)?);
                    return Ok(());
                }
                Err(TryLockError::WouldBlock) => {
                    let other = io::read_to_string(&file).map_err(failed)?;
                    if other == run {
                        return Ok(());
                    }
                    if is_late {
                        return Err(wrong(&path, taken(&other)));
                    }
                }
                Err(TryLockError::Error(error)) if has_no_locks(&error) => return Ok(()),
                Err(TryLockError::Error(error)) => {
                    if is_late || error.kind() != io::ErrorKind::Interrupted {
                        return Err(failed(error));
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// A file that this process has just locked, with the run's name in it.
    fn new(file: File, run: &str) -> io::Result<Self> {
        let process = std::process::id();
        let held = Self { file, process };
        held.file.set_len(0)?;
        (&held.file).write_all(run.as_bytes())?;
        Ok(held)
    }

    /// Whether this is the file with that path: somebody may have removed it since.
    fn is_at(&self, path: &Path) -> bool {
        let place = |it: fs::Metadata| (it.dev(), it.ino());
        match (self.file.metadata(), fs::metadata(path)) {
            (Ok(own), Ok(there)) => place(own) == place(there),
            _ => false,
        }
    }
}

impl Drop for Held {
    /// A forked child has the lock, too: it must neither keep it nor free it.
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // The kernel frees it when the last process with this file ends.
            let _ = self.file.unlock();
        }
    }
}

fn has_no_locks(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported || error.raw_os_error() == Some(ENOLCK)
}

/// The complaint where another run has the lock.
fn taken(other: &str) -> String {
    let other = if other.is_empty() {
        "another run"
    } else {
        other
    };
    format!(
        "{other} saves into this folder: one training per folder, with one `Checkpoints` or its \
         clones from beginning to end. If no run that saves here is alive (its host may have died, \
         and a file server keeps the lock for a while), remove this file"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_server_without_locks_is_no_other_error() {
        assert!(has_no_locks(&io::Error::from_raw_os_error(ENOLCK)));
        assert!(has_no_locks(&io::ErrorKind::Unsupported.into()));
        assert!(!has_no_locks(&io::ErrorKind::PermissionDenied.into()));
        let text = io::Error::from_raw_os_error(ENOLCK).to_string();
        assert!(text.contains("No locks available"), "{text}");
    }
}
