//! The control plane's knowledge of a communicator that is read and written without the monitor's
//! mutex. Knows faults and departures; knows no stream and no frame.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use spark_ccl_log::Mutex;

use crate::device_calls::DeviceCalls;
use crate::fault::{DEVICE_MARK, Fault, Member, is_apart, is_on_device};
use crate::history::History;
use crate::ledger::Ledger;
use crate::standing::KINDS;

pub(crate) struct View {
    pub(crate) context: u64,
    /// World ranks, by communicator rank.
    pub(crate) members: Vec<u32>,
    pub(crate) me: Member,
    pub(crate) describe: fn([u64; 2]) -> String,
    pub(crate) history: History,
    /// Calls of device memory, by their number.
    pub(crate) on_device: History,
    ranks: HashMap<u32, u32>,
    names: Arc<[Arc<str>]>,
    fault: OnceLock<Arc<Fault>>,
    /// The fault of later calls that need the first member that ended between calls.
    latent: OnceLock<Arc<Fault>>,
    /// Called when the first fault is recorded, and when a member ends between calls. `fault`,
    /// `latent` and `alarm` are set with the monitor's mutex held.
    pub(crate) alarm: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Counts this rank's calls by kind, for ranks that ask; not set where nobody counts them.
    pub(crate) calls: OnceLock<Box<dyn Fn() -> [u64; KINDS] + Send + Sync>>,
    /// The calls of device memory that this rank has done; set before it leaves.
    pub(crate) device_calls: OnceLock<DeviceCalls>,
    /// This rank's progress in leaving: a stage of [`begins_to_leave`](Self::begins_to_leave).
    leaving: AtomicU8,
    /// The last operation that this rank has finished. Accessed relaxed, as is the next one:
    /// neither orders other memory.
    finished: AtomicU64,
    /// The next operation that has to be compared with what is known of the other members.
    inspect_from: AtomicU64,
    /// The calls of device memory that ranks compare. Its mutex is the innermost.
    pub(crate) ledger: Mutex<Ledger>,
    /// All companions have made the same calls as this rank up to this one. Accessed relaxed, as is
    /// the next one: neither orders other memory.
    compared: AtomicU64,
    /// How many claims other ranks have made about their calls.
    claims: AtomicU64,
}

impl View {
    pub(crate) fn new(
        context: u64,
        members: Vec<u32>,
        me: u32,
        names: Arc<[Arc<str>]>,
        describe: fn([u64; 2]) -> String,
    ) -> Self {
        let ranks: HashMap<u32, u32> = members.iter().copied().zip(0..).collect();
        Self {
            context,
            me: member(&ranks, &names, me),
            members,
            describe,
            history: History::new(),
            on_device: History::new(),
            ranks,
            names,
            fault: OnceLock::new(),
            latent: OnceLock::new(),
            alarm: OnceLock::new(),
            calls: OnceLock::new(),
            device_calls: OnceLock::new(),
            leaving: AtomicU8::new(0),
            finished: AtomicU64::new(0),
            inspect_from: AtomicU64::new(u64::MAX),
            ledger: Mutex::default(),
            compared: AtomicU64::new(0),
            claims: AtomicU64::new(0),
        }
    }

    /// The communicator rank of a rank of the world.
    pub(crate) fn rank(&self, world: u32) -> Option<u32> {
        self.ranks.get(&world).copied()
    }

    /// A rank of the world, as a member of this communicator.
    pub(crate) fn member(&self, world: u32) -> Member {
        member(&self.ranks, &self.names, world)
    }

    /// Fills in the communicator's numbers and names of the ranks in a fault.
    pub(crate) fn localise(&self, mut fault: Fault) -> Fault {
        for named in fault.members_mut() {
            *named = self.member(named.world as u32);
        }
        fault
    }

    #[inline]
    pub(crate) fn fault(&self) -> Option<&Arc<Fault>> {
        self.fault.get()
    }

    /// Records a fault, unless there is one already. Returns whether this one is the first. The
    /// caller holds the monitor's mutex.
    pub(crate) fn fail(&self, fault: Fault) -> bool {
        let fault = Arc::new(fault);
        let first = self.fault.set(Arc::clone(&fault)).is_ok();
        if first {
            spark_ccl_log::warn!("{}: {fault}", self.me);
            self.ring();
        }
        first
    }

    /// The fault of calls that need the first member that ended while this rank was in none.
    pub(crate) fn latent(&self) -> Option<&Arc<Fault>> {
        self.latent.get()
    }

    /// Records that a member has ended while this rank was in no collective. The caller holds the
    /// monitor's mutex.
    pub(crate) fn keep_latent(&self, fault: Fault) {
        spark_ccl_log::info!("{}: calls that need it will fail: {fault}", self.me);
        // The first one stays: a collective needs all members, and may name any missing one.
        let _is_first = self.latent.set(Arc::new(fault)).is_ok();
        // A thread may wait for a message of that member.
        self.ring();
    }

    fn ring(&self) {
        if let Some(alarm) = self.alarm.get() {
            alarm();
        }
    }

    pub(crate) fn finished(&self) -> u64 {
        self.finished.load(Ordering::Relaxed)
    }

    /// Records that this rank leaves, with or without something in flight. Returns whether that is
    /// new to the others.
    pub(crate) fn begins_to_leave(&self, is_in_flight: bool) -> bool {
        let stage = if is_in_flight { 1 } else { 2 };
        // Relaxed: this only decides which caller is the first, and publishes no other data.
        self.leaving.fetch_max(stage, Ordering::Relaxed) < stage
    }

    /// The signature of one of this rank's last collectives, of host or device memory.
    pub(crate) fn called(&self, sequence: u64) -> Option<[u64; 2]> {
        if is_on_device(sequence) {
            self.on_device.get(sequence & !DEVICE_MARK)
        } else if is_apart(sequence) {
            None
        } else {
            self.history.get(sequence)
        }
    }

    /// Whether this rank is in a collective.
    pub(crate) fn is_in_call(&self) -> bool {
        self.history.latest() > self.finished()
    }

    #[inline]
    pub(crate) fn finish(&self, sequence: u64) {
        // Relaxed: the number publishes no other data.
        self.finished.store(sequence, Ordering::Relaxed);
    }

    /// Whether operation `sequence` has to be compared with what is known about the other members.
    #[inline]
    pub(crate) fn needs_inspection(&self, sequence: u64) -> bool {
        // Relaxed: a hint that pairs with nothing. The data behind it is read under the mutex, and
        // if the hint is missed, the next announcement inspects the operation again.
        sequence >= self.inspect_from.load(Ordering::Relaxed)
    }

    /// The last call of device memory up to which all companions have made the same.
    pub(crate) fn compared(&self) -> u64 {
        self.compared.load(Ordering::Relaxed)
    }

    /// How many claims other ranks have made about their calls.
    pub(crate) fn claims(&self) -> u64 {
        self.claims.load(Ordering::Relaxed)
    }

    /// Notes a claim, and the last call up to which all companions have made the same.
    pub(crate) fn set_compared(&self, number: u64) {
        self.compared.store(number, Ordering::Relaxed);
        self.claims.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set_inspect_from(&self, sequence: u64) {
        self.inspect_from.store(sequence, Ordering::Relaxed);
    }
}

fn member(ranks: &HashMap<u32, u32>, names: &[Arc<str>], world: u32) -> Member {
    let rank = ranks.get(&world).copied().unwrap_or(world);
    let name = match names.get(world as usize) {
        Some(name) => Arc::clone(name),
        None => format!("rank {world}").into(),
    };
    Member::new(rank, world, name)
}
