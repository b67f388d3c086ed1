//! One communicator, as far as it is read and written without a lock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::fault::{Fault, Member};
use crate::history::History;

pub(crate) struct View {
    pub(crate) context: u64,
    /// World ranks, by communicator rank.
    pub(crate) members: Vec<u32>,
    pub(crate) me: Member,
    pub(crate) describe: fn([u64; 2]) -> String,
    pub(crate) history: History,
    ranks: HashMap<u32, u32>,
    names: Arc<[Arc<str>]>,
    fault: OnceLock<Arc<Fault>>,
    /// Called when there is a fault.
    pub(crate) alarm: OnceLock<Box<dyn Fn() + Send + Sync>>,
    finished: AtomicU64,
    inspect_from: AtomicU64,
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
            ranks,
            names,
            fault: OnceLock::new(),
            alarm: OnceLock::new(),
            finished: AtomicU64::new(0),
            inspect_from: AtomicU64::new(u64::MAX),
        }
    }

    /// The communicator rank of a rank of the world.
    pub(crate) fn rank(&self, world: u32) -> Option<u32> {
        self.ranks.get(&world).copied()
    }

    /// How to call a rank of the world here.
    pub(crate) fn member(&self, world: u32) -> Member {
        member(&self.ranks, &self.names, world)
    }

    /// Fills in how the ranks that a fault names are called here.
    pub(crate) fn localise(&self, mut fault: Fault) -> Fault {
        for named in fault.members_mut() {
            *named = self.member(named.world);
        }
        fault
    }

    pub(crate) fn fault(&self) -> Option<&Arc<Fault>> {
        self.fault.get()
    }

    /// Keeps the first fault. Whether this one is the first.
    pub(crate) fn fail(&self, fault: Fault) -> bool {
        let fault = Arc::new(fault);
        let first = self.fault.set(Arc::clone(&fault)).is_ok();
        if first {
            tracing::warn!(context = self.context, "{}: {fault}", self.me);
            if let Some(alarm) = self.alarm.get() {
                alarm();
            }
        }
        first
    }

    pub(crate) fn finished(&self) -> u64 {
        self.finished.load(Ordering::Relaxed)
    }

    pub(crate) fn finish(&self, sequence: u64) {
        // A number on its own, which publishes nothing else.
        self.finished.store(sequence, Ordering::Relaxed);
    }

    /// Whether operation `sequence` has to be held against what is known of the others.
    pub(crate) fn needs_inspection(&self, sequence: u64) -> bool {
        // A hint, pairs with nothing: what it hints at is read under the lock, and a hint that
        // comes too late is made good by the next announcement.
        sequence >= self.inspect_from.load(Ordering::Relaxed)
    }

    pub(crate) fn inspect_from(&self, sequence: u64) {
        self.inspect_from.store(sequence, Ordering::Relaxed);
    }
}

fn member(ranks: &HashMap<u32, u32>, names: &[Arc<str>], world: u32) -> Member {
    let rank = ranks.get(&world).copied().unwrap_or(world);
    let name = match names.get(world as usize) {
        Some(name) => Arc::clone(name),
        None => format!("rank {world}").into(),
    };
    Member { rank, world, name }
}
