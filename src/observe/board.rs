//! The observed communicators of a process, and what those with the same settings share. Knows no
//! thread and no socket.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use spark_ccl_config::{Observe, Record};
use spark_ccl_control::{KINDS, Watch};
use spark_ccl_fork::within;
use spark_ccl_log::Mutex;
use spark_ccl_status::{Entry, Peer, inspector, record};
use spark_ccl_types::Operation;

use super::journal::Journal;
use super::records;
use crate::error::Error;
use crate::task::Task;

/// How long a failing call waits for its record at most.
const PATIENCE: Duration = Duration::from_secs(2);

/// The most ended communicators whose operations wait to be written. Further ones are left out: a
/// file system hangs.
const MOST_LEFT: usize = 64;

/// A communicator's finished operations, in the form of the inspector.
pub(super) type Done = (inspector::Group, Vec<Entry>);

/// The communicators of this process that are observed with the same settings.
pub(super) struct Board {
    pub(super) settings: Observe,
    observed: Mutex<Vec<Weak<Observed>>>,
    /// For the inspector: the finished operations of ended communicators.
    left: Mutex<Vec<Done>>,
    /// Wakes the service up.
    pub(super) bell: OwnedFd,
    /// Ends the service. It orders no other memory: relaxed; the bell wakes the service to look.
    is_closed: AtomicBool,
    /// Locked while records of faults are written.
    files: Arc<Mutex<()>>,
}

/// An observed communicator, as this rank sees it.
pub(crate) struct Observed {
    pub(super) context: u64,
    /// The context of its world.
    pub(super) world: u64,
    rank: u32,
    /// The processes of the ranks, by rank.
    pub(super) members: Vec<Process>,
    timeout: Duration,
    pub(super) created: Instant,
    pub(super) watch: Arc<Watch>,
    /// The journal of operations on host memory.
    journal: Arc<Journal>,
    /// The journal of those on device memory, if the rank has an engine for it.
    of_devices: Arc<OnceLock<Arc<Journal>>>,
    board: Arc<Board>,
    /// Whether its fault was recorded; locked while it is.
    is_recorded: Mutex<bool>,
}

/// The process of a rank.
pub(super) struct Process {
    /// The rank's number in the world.
    pub(super) world: u32,
    pub(super) host: String,
    pub(super) pid: u32,
}

impl Board {
    pub(super) fn new(settings: Observe) -> io::Result<Self> {
        Ok(Self {
            settings,
            observed: Mutex::default(),
            left: Mutex::default(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_closed: AtomicBool::new(false),
            files: Arc::default(),
        })
    }

    /// All communicators that are observed now.
    pub(super) fn observed(&self) -> Vec<Arc<Observed>> {
        let observed = self.observed.lock();
        observed.iter().filter_map(Weak::upgrade).collect()
    }

    /// Takes the finished operations of ended communicators.
    pub(super) fn take_left(&self) -> Vec<Done> {
        std::mem::take(&mut self.left.lock())
    }

    /// Wakes the service up.
    pub(super) fn wake(&self) {
        // Fails only if the counter is full, and then the service is about to wake up.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Ends the service.
    pub(super) fn close(&self) {
        // Relaxed: it publishes nothing, and the service looks at it when it is woken up.
        self.is_closed.store(true, Ordering::Relaxed);
        self.wake();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }
}

impl Observed {
    pub(super) fn new(
        context: u64,
        world: u64,
        rank: u32,
        members: Vec<Process>,
        timeout: Duration,
        watch: &Arc<Watch>,
        board: &Arc<Board>,
    ) -> Arc<Self> {
        let observed = Arc::new(Self {
            context,
            world,
            rank,
            journal: Arc::new(Journal::new(members.len() as u32)),
            of_devices: Arc::default(),
            members,
            timeout,
            created: Instant::now(),
            watch: Arc::clone(watch),
            board: Arc::clone(board),
            is_recorded: Mutex::new(false),
        });
        let mut all = board.observed.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&observed));
        drop(all);
        // Keeps only the journals: the rest must not be dropped while the monitor's mutex is held.
        let (journal, of_devices) = (
            Arc::clone(&observed.journal),
            Arc::clone(&observed.of_devices),
        );
        watch.count_calls(move || counts(&journal, of_devices.get()));
        observed
    }

    /// The journal for operations on device memory.
    #[cfg(feature = "cuda")]
    pub(crate) fn of_devices(&self) -> Arc<Journal> {
        let new = || Arc::new(Journal::new(self.members.len() as u32));
        Arc::clone(self.of_devices.get_or_init(new))
    }

    /// Notes that an operation was called: a collective, or, with a peer, a message. Returns its
    /// record.
    pub(crate) fn call(&self, task: &Task, sequence: u64, peer: Option<Peer>) -> u64 {
        self.journal.call(task, sequence, peer)
    }

    /// Notes that an operation is done.
    pub(crate) fn complete(&self, record: u64) {
        self.journal.complete(record);
    }

    /// A function that wakes the service up when this communicator fails. It does not keep the
    /// communicator alive.
    pub(crate) fn alarm(&self) -> impl Fn() + Send + Sync + use<> {
        let board = Arc::clone(&self.board);
        move || board.wake()
    }

    /// Records that the communicator has failed, if that is wanted and not done yet. Returns when
    /// it is done.
    pub(crate) fn record_fault(&self) {
        let Record::Folder(folder) = &self.board.settings.record else {
            return;
        };
        let mut is_recorded = self.is_recorded.lock();
        if *is_recorded || !self.watch.failed() {
            return;
        }
        *is_recorded = true;
        let (own, groups) = (self.own().world, self.groups());
        let (folder, files) = (folder.clone(), Arc::clone(&self.board.files));
        let write = move || {
            // Several communicators may fail at once, and have the same files.
            let _alone = files.lock();
            records::write_for_fault(&folder, own, &groups)
        };
        // A file system that hangs must not keep the fault from the program.
        match within(Instant::now() + PATIENCE, write) {
            Ok(Ok(path)) => spark_ccl_log::warn!(
                "the last operations of rank {own} are recorded in {}",
                path.display()
            ),
            Ok(Err(error)) => spark_ccl_log::warn!("{error}"),
            Err(error) => spark_ccl_log::warn!("the record of operations is not written: {error}"),
        }
    }

    /// Writes this rank's records of all communicators of its world to a file.
    pub(crate) fn record(&self, path: &Path) -> Result<(), Error> {
        records::write(path, &self.groups())
    }

    /// The operations done since the last call of this, if there are any. Operations on device
    /// memory are left out: their times are not known.
    pub(super) fn take_done(&self) -> Option<Done> {
        let mut entries = self.journal.take_fresh();
        entries.retain(|entry| entry.signature.operation != Operation::Alloc);
        if entries.is_empty() {
            return None;
        }
        let own = self.own();
        let hosts: BTreeSet<&str> = self.members.iter().map(|member| &*member.host).collect();
        let group = inspector::Group {
            context: self.context,
            rank: self.rank,
            world_rank: own.world,
            size: self.members.len() as u32,
            nodes: hosts.len(),
            host: own.host.clone(),
            pid: own.pid,
            job: self
                .board
                .settings
                .inspector
                .as_ref()
                .and_then(|it| it.job.clone()),
        };
        Some((group, entries))
    }

    fn own(&self) -> &Process {
        &self.members[self.rank as usize]
    }

    /// This rank's records of all communicators of its world.
    fn groups(&self) -> Vec<record::Group> {
        let all = self.board.observed();
        let own = all
            .iter()
            .filter(|it| it.world == self.world && it.own().world == self.own().world);
        own.flat_map(|it| it.own_groups()).collect()
    }

    /// The communicator's records: a group for each kind of memory, as their operations run in no
    /// common order.
    fn own_groups(&self) -> Vec<record::Group> {
        let name = format!("{:016x}", self.context);
        let group = |name, on_device, journal: &Journal| record::Group {
            name,
            ranks: self.members.iter().map(|member| member.world).collect(),
            rank: self.rank,
            on_device,
            timeout_ms: u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX),
            entries: journal.entries(),
        };
        let of_devices = self.of_devices.get();
        let of_devices = of_devices.map(|it| group(format!("{name}-device"), true, it));
        let all = [Some(group(name, false, &self.journal)), of_devices];
        all.into_iter().flatten().collect()
    }
}

impl Drop for Observed {
    /// Leaves the rest to the service: no program may wait for a file system here.
    fn drop(&mut self) {
        if self.board.settings.inspector.is_none() {
            return;
        }
        let Some(done) = self.take_done() else {
            return;
        };
        let mut left = self.board.left.lock();
        if left.len() < MOST_LEFT {
            left.push(done);
        }
        drop(left);
        self.board.wake();
    }
}

/// How many calls there were, by kind, on all memory.
fn counts(journal: &Journal, of_devices: Option<&Arc<Journal>>) -> [u64; KINDS] {
    let mut calls = journal.calls();
    let others = of_devices.map(|journal| journal.calls());
    for (calls, others) in calls.iter_mut().zip(others.into_iter().flatten()) {
        *calls += others;
    }
    calls
}
