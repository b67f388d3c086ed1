//! The last operations of a communicator. The engine writes them, the service reads them. Knows no
//! files and no clients.

use std::collections::VecDeque;

use spark_ccl_control::KINDS;
use spark_ccl_log::Mutex;
use spark_ccl_status::{Entry, Peer, clock};
use spark_ccl_types::{Extent, Operation, Side};

use crate::task::Task;

/// The number of operations that are kept.
pub(crate) const DEPTH: usize = 1000;

/// The counter of the library's own calls, whatever their operation.
pub(super) const INTERNAL_KIND: usize = KINDS - 1;

const _: () = assert!(
    Operation::ALL.len() <= INTERNAL_KIND,
    "every operation is counted"
);

/// The last operations of a communicator, and how many there were of each kind.
///
/// The engine takes the mutex for each operation, and readers take it to copy. A thread that holds
/// it takes no other lock.
pub(crate) struct Journal {
    size: u32,
    pages: Mutex<Pages>,
}

struct Pages {
    /// Their records are consecutive.
    entries: VecDeque<Entry>,
    next: u64,
    calls: [u64; KINDS],
    /// The records that are done and that nobody has taken, in the order in which they were done.
    fresh: VecDeque<u64>,
}

impl Journal {
    /// The journal of a communicator of `size` ranks.
    pub(super) fn new(size: u32) -> Self {
        Self {
            size,
            pages: Mutex::new(Pages {
                entries: VecDeque::with_capacity(DEPTH),
                next: 0,
                calls: [0; KINDS],
                fresh: VecDeque::with_capacity(DEPTH),
            }),
        }
    }

    /// Notes that an operation was called. Returns its record.
    pub(crate) fn call(&self, task: &Task, sequence: u64, peer: Option<Peer>) -> u64 {
        let called = now();
        let mut pages = self.pages.lock();
        let entry = self.entry(pages.next, task, sequence, peer, called);
        pages.next += 1;
        let kind = if task.is_internal {
            INTERNAL_KIND
        } else {
            usize::from(entry.signature.operation.code())
        };
        pages.calls[kind] += 1;
        if pages.entries.len() == DEPTH {
            pages.entries.pop_front();
        }
        pages.entries.push_back(entry);
        entry.record
    }

    /// Notes that an operation is done.
    pub(super) fn complete(&self, record: u64) {
        let completed = now();
        let mut pages = self.pages.lock();
        if pages.complete(record, completed) {
            if pages.fresh.len() == DEPTH {
                pages.fresh.pop_front();
            }
            pages.fresh.push_back(record);
        }
    }

    /// Notes that an operation was seen to be done. It may have ended earlier, so the inspector
    /// does not get it.
    #[cfg(feature = "cuda")]
    pub(crate) fn was_completed(&self, record: u64) {
        let seen = now();
        self.pages.lock().complete(record, seen);
    }

    /// The last operations, in the order of their calls.
    pub(super) fn entries(&self) -> Vec<Entry> {
        self.pages.lock().entries.iter().copied().collect()
    }

    /// The operations that were done since this was called last, as far as they are kept.
    pub(super) fn take_fresh(&self) -> Vec<Entry> {
        let mut pages = self.pages.lock();
        let fresh = std::mem::take(&mut pages.fresh);
        let entries = fresh
            .into_iter()
            .filter_map(|record| pages.find(record).copied());
        entries.collect()
    }

    /// How many calls there were, by the operations' codes.
    pub(super) fn calls(&self) -> [u64; KINDS] {
        self.pages.lock().calls
    }

    fn entry(
        &self,
        record: u64,
        task: &Task,
        sequence: u64,
        peer: Option<Peer>,
        called: u64,
    ) -> Entry {
        let mut signature = task.signature;
        match peer {
            // Also counts both halves of an exchange of messages.
            Some(Peer::To(_)) => {
                signature.operation = Operation::Send;
                signature.count = task.input.len as u64;
            }
            Some(Peer::From(_)) => {
                signature.operation = Operation::Recv;
                signature.count = task.output.len as u64;
            }
            None => {}
        }
        let elements = |side, len: usize| match signature.operation.extent(side) {
            Extent::Any => len as u64,
            extent => extent.elements(signature.count, self.size),
        };
        Entry {
            record,
            sequence,
            peer,
            signature,
            input: elements(Side::Input, task.input.len),
            output: elements(Side::Output, task.output.len),
            called,
            completed: None,
        }
    }
}

impl Pages {
    /// Sets the time; returns whether the entry is still kept.
    fn complete(&mut self, record: u64, at: u64) -> bool {
        let entry = self.find(record);
        entry.map(|entry| entry.completed = Some(at)).is_some()
    }

    fn find(&mut self, record: u64) -> Option<&mut Entry> {
        let first = self.entries.front()?.record;
        self.entries.get_mut(record.checked_sub(first)? as usize)
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    u64::try_from(clock::since_1970().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use spark_ccl_types::DType;

    use super::*;
    use crate::memory::buffer::Region;
    use crate::task::Spec;

    fn task(operation: Operation, count: u64) -> Task {
        let mut task = Spec::new(operation, DType::F32).task((Region::empty(), Region::empty()));
        task.signature.count = count;
        task
    }

    #[test]
    fn the_last_thousand_are_kept_and_all_are_counted() {
        let journal = Journal::new(3);
        let records: Vec<u64> = (1..=1500)
            .map(|sequence| journal.call(&task(Operation::AllGather, sequence), sequence, None))
            .collect();
        for &record in &records[..1400] {
            journal.complete(record);
        }
        let entries = journal.entries();
        assert_eq!(entries.len(), 1000);
        assert_eq!((entries[0].sequence, entries[999].sequence), (501, 1500));
        assert_eq!((entries[0].input, entries[0].output), (501, 3 * 501));
        let done = entries.iter().filter(|entry| entry.completed.is_some());
        assert_eq!(done.count(), 900);
        assert_eq!(
            journal.calls()[usize::from(Operation::AllGather.code())],
            1500
        );
        let fresh = journal.take_fresh();
        assert_eq!(fresh.len(), 900);
        assert!(
            fresh
                .iter()
                .all(|entry| entry.completed >= Some(entry.called))
        );
        assert_eq!(journal.take_fresh(), []);
        journal.complete(records[1499]);
        assert_eq!(journal.take_fresh()[0].sequence, 1500);
    }

    #[test]
    fn internal_calls_are_recorded_and_count_apart() {
        let journal = Journal::new(2);
        let mut own = task(Operation::AllGather, 5);
        own.is_internal = true;
        journal.call(&own, 1, None);
        journal.call(&task(Operation::AllGather, 5), 2, None);
        assert_eq!(journal.entries().len(), 2);
        let counts = journal.calls();
        let gathered = counts[usize::from(Operation::AllGather.code())];
        assert_eq!((gathered, counts[INTERNAL_KIND]), (1, 1));
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn what_is_seen_late_is_done_but_not_timed() {
        let journal = Journal::new(2);
        let record = journal.call(&task(Operation::AllReduce, 5), 1, None);
        journal.was_completed(record);
        assert!(journal.entries()[0].completed.is_some());
        assert_eq!(journal.take_fresh(), []);
    }

    #[test]
    fn halves_of_an_exchange_are_a_send_and_a_receive() {
        let journal = Journal::new(2);
        let region = |len| Region::host(std::ptr::without_provenance::<f32>(4), len);
        let exchange = Spec::new(Operation::SendRecv, DType::F32).task((region(3), region(2)));
        journal.call(&exchange, 1, Some(Peer::To(1)));
        journal.call(&exchange, 1, Some(Peer::From(1)));
        let halves = journal.entries();
        let halves = halves.iter().map(|it| it.signature);
        let halves: Vec<_> = halves.map(|it| (it.operation, it.count)).collect();
        assert_eq!(halves, [(Operation::Send, 3), (Operation::Recv, 2)]);
    }
}
