//! A trial of a plan on a node: begun, then committed or undone, in each case as a whole.
//!
//! A record of the trial holds what there was before. As long as it is there and not committed, the
//! guard, a process of its own, undoes the trial when the time is over, and tries again until that
//! succeeds. The file of netplan is tried in /run, where it is gone after a restart; `keep` writes
//! it below /etc under another name, which netplan does not read; `commit` renames it. All steps
//! hold a lock.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use spark_ccl_console::print_error;

use super::FILE;
use super::file::{named, read, set, write};
use super::plan::Node;
use super::program;
use super::state::{self, State};

/// Where files of netplan are gone after a restart, and where they last.
const TRIED: &str = "/run/netplan";
const LASTING: &str = "/etc/netplan";
/// The record of the trial, its lock, and the guard's log, for root only.
const FOLDER: &str = "/run/spark-ccl-netplan";
/// The guard's pauses between two attempts to undo: each is twice the one before, up to the
/// longest. Then that between two looks at the record.
const RETRY: Duration = Duration::from_secs(2);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(200);

#[derive(Debug, Serialize, Deserialize)]
struct Trial {
    /// The name of this trial, unlike all others.
    id: String,
    phase: Phase,
    node: Node,
    /// The interfaces of the plan, and all others in use, before the trial.
    before: Vec<State>,
    /// The lasting file before the trial.
    lasting: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Phase {
    Trying,
    Undoing,
    Committed,
}

/// Begins a trial, unless another one is under way. If that fails, the node is as it was, or
/// becomes so by the guard.
pub(super) fn begin(node: Node, id: &str, within: Duration) -> io::Result<()> {
    let _lock = lock()?;
    if let Some(other) = Trial::read()?
        && other.phase != Phase::Committed
    {
        // Root's PATH need not have it.
        let program = std::env::current_exe()?;
        return Err(io::Error::other(format!(
            "another trial is under way here, and ends by itself; this ends it at once: \
             sudo {} netplan-agent undo --trial {}",
            program.display(),
            other.id
        )));
    }
    let names: Vec<_> = node.interfaces.iter().map(|one| &*one.name).collect();
    let mut trial = Trial {
        id: id.to_owned(),
        phase: Phase::Trying,
        before: state::record(&names)?,
        lasting: read(&lasting())?,
        node,
    };
    trial.record()?;
    if let Err(error) = start_guard(id, within) {
        fs::remove_file(record())?;
        return Err(error);
    }
    let file = super::yaml::file(&trial.node);
    let begun = set(&tried(), Some(&file)).and_then(|()| program::apply());
    begun.inspect_err(|_| {
        // If this fails, the guard goes on.
        let _ = trial.undo();
    })
}

/// Prepares [`commit`] so that it cannot fail for lack of disk space.
pub(super) fn keep(id: &str) -> io::Result<()> {
    let _lock = lock()?;
    let trial = Trial::under_way(id)?;
    set(&kept(), Some(&super::yaml::file(&trial.node)))
}

/// Ends the trial, and makes the file last.
pub(super) fn commit(id: &str) -> io::Result<()> {
    let _lock = lock()?;
    let mut trial = Trial::under_way(id)?;
    named(&lasting(), fs::rename(kept(), lasting()))?;
    fs::File::open(LASTING)?.sync_all()?;
    trial.phase = Phase::Committed;
    trial.record()?;
    set(&tried(), None)
}

/// Takes everything of a trial back, also of one that is committed. Another trial is left alone.
pub(super) fn undo(id: &str) -> io::Result<()> {
    let _lock = lock()?;
    let Some(mut trial) = Trial::read()?.filter(|trial| trial.id == id) else {
        return Ok(());
    };
    let has_guard = trial.phase != Phase::Committed;
    match trial.undo() {
        Ok(applied) => applied.map_err(|error| io::Error::other(by_hand(&error))),
        Err(error) => {
            if !has_guard {
                start_guard(id, Duration::ZERO)?;
            }
            Err(io::Error::other(format!(
                "{error}; it is tried again, see {FOLDER}/log there"
            )))
        }
    }
}

/// What is left to do where netplan does not take the files of before either.
fn by_hand(error: &io::Error) -> String {
    format!(
        "the interfaces are what they were, but netplan does not take its files; mend that, then: \
         sudo netplan apply ({error})"
    )
}

/// Waits until the trial has ended, or else undoes it when the time is over.
pub(super) fn guard(id: &str, within: Duration) -> io::Result<()> {
    rustix::process::setsid()?;
    let deadline = Instant::now() + within;
    let mut pause = RETRY;
    loop {
        let phase = match Trial::read() {
            Ok(Some(trial)) if trial.id == id => trial.phase,
            Ok(_) => return Ok(()),
            Err(error) => {
                log(id, &error);
                Phase::Trying
            }
        };
        if phase == Phase::Committed {
            return Ok(());
        }
        if Instant::now() < deadline && phase == Phase::Trying {
            std::thread::sleep(LOOK);
            continue;
        }
        if let Err(error) = end(id) {
            log(id, &error);
            std::thread::sleep(pause);
            pause = LONGEST_RETRY.min(2 * pause);
        }
    }
}

/// Writes to the guard's log. Its disk may be full: nothing may keep the guard from going on.
fn log(id: &str, error: &impl std::fmt::Display) {
    print_error(format_args!("trial {id}: rolling back: {error}"));
}

/// Undoes a trial, unless it has ended meanwhile.
fn end(id: &str) -> io::Result<()> {
    let _lock = lock()?;
    match Trial::read()? {
        Some(mut trial) if trial.id == id && trial.phase != Phase::Committed => {
            if let Err(error) = trial.undo()? {
                log(id, &by_hand(&error));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

impl Trial {
    fn read() -> io::Result<Option<Self>> {
        let text = read(&record())?;
        Ok(text.map(|text| serde_json::from_str(&text)).transpose()?)
    }

    /// The trial, if it has not ended.
    fn under_way(id: &str) -> io::Result<Self> {
        let trial = Self::read()?.filter(|one| one.id == id && one.phase == Phase::Trying);
        trial.ok_or_else(|| io::Error::other("the time was over, and it was rolled back"))
    }

    fn record(&self) -> io::Result<()> {
        write(&record(), &serde_json::to_string(self)?)
    }

    /// Makes the node what it was. Each part is done even if another fails; the record goes when
    /// the files and interfaces are what they were. Returns whether netplan took the files: it may
    /// never, for a reason that is not the trial's.
    fn undo(&mut self) -> io::Result<io::Result<()>> {
        self.phase = Phase::Undoing;
        let files = [
            self.record(),
            set(&tried(), None),
            set(&kept(), None),
            set(&lasting(), self.lasting.as_deref()),
        ];
        let applied = program::apply();
        let restored = state::restore(&self.before, &self.node.interfaces);
        let restored = restored.map_err(|error| match &applied {
            Ok(()) => error,
            Err(first) => io::Error::other(format!("{first}; {error}")),
        });
        let all = files.into_iter().chain([restored]);
        all.collect::<io::Result<()>>()?;
        fs::remove_file(record())?;
        Ok(applied)
    }
}

/// The file on trial, the one that is ready to last, and the one that lasts.
fn tried() -> PathBuf {
    Path::new(TRIED).join(FILE)
}

fn kept() -> PathBuf {
    lasting().with_extension("kept")
}

fn lasting() -> PathBuf {
    Path::new(LASTING).join(FILE)
}

fn record() -> PathBuf {
    Path::new(FOLDER).join("trial")
}

/// Waits until no other step runs here, and keeps others waiting until it is dropped.
fn lock() -> io::Result<fs::File> {
    for (folder, mode) in [(FOLDER, 0o700), (TRIED, 0o755)] {
        let mut folders = fs::DirBuilder::new();
        folders.recursive(true).mode(mode).create(folder)?;
    }
    let file = open("lock")?;
    file.lock()?;
    Ok(file)
}

/// Opens a file of the folder for appending.
fn open(name: &str) -> io::Result<fs::File> {
    let mut options = fs::File::options();
    options.append(true).create(true).mode(0o600);
    options.open(Path::new(FOLDER).join(name))
}

/// Starts the process that ends the trial, out of reach of the connection's end.
fn start_guard(id: &str, within: Duration) -> io::Result<()> {
    let mut command = Command::new("/proc/self/exe");
    let seconds = within.as_secs().to_string();
    command
        .args([
            "netplan-agent",
            "guard",
            "--trial",
            id,
            "--within",
            &seconds,
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(open("log")?);
    command.spawn().map(drop)
}
