//! A trial of a plan on a node. It is begun, and then committed or undone as a whole.
//!
//! A record of the trial holds the state before it. The guard is a process of its own. When the
//! time is over and the record is there and not committed, it undoes the trial, and tries again
//! until that succeeds. The file of netplan is tried in /run, where it is gone after a restart;
//! `keep` writes it below /etc under another name, which netplan does not read; `commit` renames
//! it. All steps hold a lock.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::file::{named, read, set, sync_folder, write};
use super::link_state::{self, LinkState};
use super::plan::Node;
use super::{netplan, yaml};

/// The file on trial, the one that is ready to last, and the one that lasts.
const TRIED: &str = "/run/netplan/90-spark-ccl.yaml";
const READY: &str = "/etc/netplan/90-spark-ccl.kept";
const LASTING: &str = "/etc/netplan/90-spark-ccl.yaml";
/// The folder of the trial's record and the guard's log, for root only. It is the lock, too.
const FOLDER: &str = "/run/spark-ccl-netplan";
const RECORD: &str = "/run/spark-ccl-netplan/trial";
/// The hint after a trial that was not wholly undone.
const AGAIN: &str = "it is tried again, see /run/spark-ccl-netplan/log there";
const NOT_TAKEN: &str = "does not take its files; mend that, then: sudo netplan apply";
/// The guard's pause until the second attempt to undo. Each is twice the one before, up to thirty
/// times this one.
const RETRY: Duration = Duration::from_secs(2);

#[derive(Debug, Serialize, Deserialize)]
struct Trial {
    /// The name of this trial, unlike all others.
    id: String,
    phase: Phase,
    node: Node,
    /// The interfaces of the plan, and all others in use, before the trial.
    before: Vec<LinkState>,
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
    if let Some(Trial { id, .. }) = Trial::read()?.filter(|one| one.phase != Phase::Committed) {
        return Err(io::Error::other(format!(
            "another trial is under way here, and ends by itself; this ends it at once: \
             sudo {} netplan-agent undo --trial {id}",
            // Root's PATH need not have it.
            std::env::current_exe()?.display()
        )));
    }
    let trial = Trial {
        id: id.to_owned(),
        phase: Phase::Trying,
        before: link_state::record(&node.interfaces)?,
        lasting: read(LASTING)?,
        node,
    };
    trial.record()?;
    // If the guard is not there, nothing has changed.
    start_guard(id, within).inspect_err(|_| drop(fs::remove_file(RECORD)))?;
    let begun = set(TRIED, Some(&yaml::file(&trial.node))).and_then(|()| netplan("apply"));
    // If this fails, the guard goes on.
    begun.inspect_err(|_| drop(trial.undo()))
}

/// Prepares [`commit`] so that it cannot fail for lack of disk space.
pub(super) fn keep(id: &str) -> io::Result<()> {
    let _lock = lock()?;
    set(READY, Some(&yaml::file(&Trial::under_way(id)?.node)))
}

/// Ends the trial, and makes the file last.
pub(super) fn commit(id: &str) -> io::Result<()> {
    let _lock = lock()?;
    let mut trial = Trial::under_way(id)?;
    let renamed = fs::rename(READY, LASTING);
    named(
        LASTING,
        renamed.and_then(|()| sync_folder(LASTING.as_ref())),
    )?;
    trial.phase = Phase::Committed;
    trial.record()?;
    set(TRIED, None)
}

/// Takes everything of a trial back, also of one that is committed. Another trial is left alone.
pub(super) fn undo(id: &str) -> io::Result<()> {
    let _lock = lock()?;
    let Some(trial) = Trial::of(id)? else {
        return Ok(());
    };
    // It waits for the lock, and goes on if this fails.
    let guarded = (trial.phase == Phase::Committed).then(|| start_guard(id, Duration::ZERO));
    trial.undo().and(guarded.unwrap_or(Ok(())))
}

/// Waits until the trial has ended, or else undoes it when the time is over.
pub(super) fn guard(id: &str, within: Duration) -> io::Result<()> {
    rustix::process::setsid()?;
    let deadline = Instant::now() + within;
    let mut pause = RETRY;
    loop {
        match has_ended(id, deadline) {
            Ok(true) => return Ok(()),
            Ok(false) => std::thread::sleep(Duration::from_millis(200)),
            Err(error) => {
                // The disk of the log may be full: nothing may keep the guard from going on.
                spark_ccl_console::print_error(format_args!("trial {id}: rolling back: {error}"));
                std::thread::sleep(pause);
                pause = (2 * pause).min(30 * RETRY);
            }
        }
    }
}

/// Whether a trial has ended; undoes it if its time is over.
fn has_ended(id: &str, deadline: Instant) -> io::Result<bool> {
    let _lock = lock()?;
    match Trial::of(id)? {
        Some(trial) if trial.phase == Phase::Trying && Instant::now() < deadline => Ok(false),
        Some(trial) if trial.phase != Phase::Committed => trial.undo().map(|()| true),
        _ => Ok(true),
    }
}

impl Trial {
    fn read() -> io::Result<Option<Self>> {
        let text = read(RECORD)?;
        Ok(text.map(|text| serde_json::from_str(&text)).transpose()?)
    }

    fn of(id: &str) -> io::Result<Option<Self>> {
        Ok(Self::read()?.filter(|one| one.id == id))
    }

    /// The trial, if it has not ended.
    fn under_way(id: &str) -> io::Result<Self> {
        let trial = Self::of(id)?.filter(|one| one.phase == Phase::Trying);
        trial.ok_or_else(|| io::Error::other("the time was over, and it was rolled back"))
    }

    fn record(&self) -> io::Result<()> {
        write(RECORD, &serde_json::to_string(self)?)
    }

    /// Makes the node what it was. Each part is done even if another fails; the record goes when
    /// the files and interfaces are what they were. If netplan does not take the files, this
    /// returns an error, and nobody tries again: netplan may never take them, for a reason outside
    /// of the trial.
    fn undo(mut self) -> io::Result<()> {
        self.phase = Phase::Undoing;
        let files = [
            self.record(),
            set(TRIED, None),
            set(READY, None),
            set(LASTING, self.lasting.as_deref()),
        ];
        let applied = netplan("apply");
        let restored = link_state::restore(&self.before, &self.node.interfaces);
        let undone: io::Result<()> = files.into_iter().chain([restored]).collect();
        let why = match (undone, applied) {
            (Ok(()), Ok(())) => return fs::remove_file(RECORD),
            (Ok(()), Err(error)) => {
                fs::remove_file(RECORD)?;
                format!("the interfaces are what they were, but netplan {NOT_TAKEN} ({error})")
            }
            (Err(error), Ok(())) => format!("{error}; {AGAIN}"),
            (Err(error), Err(first)) => format!("{first}; {error}; {AGAIN}"),
        };
        Err(io::Error::other(why))
    }
}

/// Waits until no other step runs here, and keeps others waiting until it is dropped.
fn lock() -> io::Result<fs::File> {
    fs::create_dir_all("/run/netplan")?;
    let mut folder = fs::DirBuilder::new();
    // A process that can open the folder can lock it.
    folder.recursive(true).mode(0o700).create(FOLDER)?;
    let folder = fs::File::open(FOLDER)?;
    folder.lock()?;
    Ok(folder)
}

/// Starts the process that ends the trial, out of reach of the connection's end.
fn start_guard(id: &str, within: Duration) -> io::Result<()> {
    let mut log = fs::File::options();
    let log = log
        .append(true)
        .create(true)
        .open("/run/spark-ccl-netplan/log")?;
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["netplan-agent", "guard", "--trial", id])
        .args(["--within", &within.as_secs().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    command.spawn().map(drop)
}
