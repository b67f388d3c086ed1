//! Which calls kernels have begun.

use spark_ccl_gpu::{Rung, Slots};
use spark_ccl_slots::Record;

/// A rank's calls that are not made by slots.
pub(in super::super) struct Others {
    /// How many have begun.
    pub(in super::super) begun: u64,
    /// What the kernel has said of the one that is not done.
    pub(in super::super) current: Option<Rung>,
}

/// The calls by slots that have begun, as far as proxies have seen.
#[derive(Default)]
pub(super) struct Calls {
    begun: u64,
    /// By lane, the slots of all of them to each peer; as many come from each.
    slots: Vec<u64>,
}

impl Calls {
    /// Takes note of a slot of the first lane, which each call uses.
    pub(super) fn note(&mut self, record: Record, slots: &Slots) {
        if record.call < self.begun {
            return;
        }
        self.begun = record.call + 1;
        let plan = slots.plan(record.total);
        self.slots.resize(slots.lanes(), 0);
        for (lane, all) in self.slots.iter_mut().enumerate() {
            *all += plan.slots(lane);
        }
    }

    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// The slots of a lane to each peer.
    pub(super) fn slots(&self, lane: usize) -> u64 {
        self.slots.get(lane).copied().unwrap_or(0)
    }
}
