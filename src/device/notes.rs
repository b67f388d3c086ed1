//! Notes a rank's calls for reports on what runs. Knows events; knows no backend.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use spark_ccl_control::DevicePart;
use spark_ccl_cuda::RecordedEvent;
use spark_ccl_log::Mutex;
use spark_ccl_status::Peer;

use super::parts::parts_of;
use crate::observe::{DEPTH, Journal, Observed};
use crate::task::Task;

/// Notes the calls of a rank.
pub(super) struct Notes {
    observed: Arc<Observed>,
    journal: Arc<Journal>,
    /// Locked before the journal.
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    /// The number of the last collective, and of the last message with each rank in each direction.
    last: BTreeMap<Option<Peer>, u64>,
    /// The records of calls that may still run, in the order of the calls, and the ends of these
    /// calls. At most [`DEPTH`], since no more are recorded.
    under_way: VecDeque<(u64, Arc<RecordedEvent>)>,
}

impl Notes {
    pub(super) fn new(observed: &Arc<Observed>) -> Self {
        Self {
            journal: observed.of_devices(),
            observed: Arc::clone(observed),
            calls: Mutex::default(),
        }
    }

    /// Notes that a call was enqueued, which has this end.
    pub(super) fn add(&self, task: &Task, end: &Arc<RecordedEvent>) {
        let mut calls = self.calls.lock();
        for part in parts_of(task) {
            let peer = match part {
                DevicePart::Collective => None,
                DevicePart::SendTo(rank) => Some(Peer::To(rank)),
                DevicePart::ReceiveFrom(rank) => Some(Peer::From(rank)),
            };
            let number = calls.last.entry(peer).or_default();
            *number += 1;
            let record = self.journal.call(task, *number, peer);
            if calls.under_way.len() == DEPTH {
                calls.under_way.pop_front();
            }
            calls.under_way.push_back((record, Arc::clone(end)));
        }
    }

    /// The record of the last call that has ended, if any has ended since this was last asked.
    /// Calls run one after the other. A call counts as running if the driver does not tell its
    /// state.
    pub(super) fn last_ended(&self) -> Option<u64> {
        let calls = self.calls.lock();
        let has_ended = |end: &RecordedEvent| end.is_complete().unwrap_or(false);
        let ended = calls.under_way.iter();
        let ended = ended.take_while(|(_, end)| has_ended(end));
        ended.last().map(|&(record, _)| record)
    }

    /// Notes that all calls up to this record have run.
    pub(super) fn have_run(&self, last: u64) {
        let mut calls = self.calls.lock();
        while let Some(&(record, _)) = calls
            .under_way
            .front()
            .filter(|(record, _)| *record <= last)
        {
            self.journal.was_completed(record);
            calls.under_way.pop_front();
        }
    }

    /// Records that the communicator has failed, if the user wants records of faults.
    pub(super) fn record_fault(&self) {
        self.observed.record_fault();
    }
}
