//! The table of device memory that is registered with a communicator.

use std::sync::Arc;

use spark_ccl_log::Mutex;
use spark_ccl_nccl as nccl;

use crate::engine::Registration;
use crate::memory::device::block::Block;

/// The blocks that are registered with a communicator. Ranks of one process share the table: NCCL
/// gives up the remaining registrations when the last of these ranks ends.
#[derive(Debug, Default)]
pub(super) struct RegistrationTable {
    entries: Mutex<Vec<Entry>>,
    /// Windows that NCCL has refused to give up. They last until the communicator ends. The ranks
    /// do not count them, because other ranks may have given up theirs.
    refused: Mutex<Vec<Entry>>,
}

/// A block that a rank has registered.
#[derive(Debug)]
pub(super) struct Entry {
    rank: usize,
    block: Arc<Block>,
    kind: Registration,
    /// `None` if NCCL may have registered a part; the entry then lasts until the communicator ends.
    made: Option<Made>,
}

#[derive(Debug)]
pub(super) enum Made {
    Local(nccl::Registration),
    Window(nccl::Window),
}

impl RegistrationTable {
    /// Keeps a block that is about to be registered.
    pub(super) fn add(&self, rank: usize, block: &Arc<Block>, kind: Registration) {
        self.entries.lock().push(Entry {
            rank,
            block: Arc::clone(block),
            kind,
            made: None,
        });
    }

    /// Notes the registration that NCCL has made for an entry.
    pub(super) fn settle(&self, rank: usize, block: &Arc<Block>, made: Made) {
        let mut entries = self.entries.lock();
        let mut own = entries.iter_mut().filter(|entry| entry.rank == rank);
        let entry = own.rfind(|entry| entry.made.is_none() && Arc::ptr_eq(&entry.block, block));
        if let Some(entry) = entry {
            entry.made = Some(made);
        }
    }

    /// Ends registrations. An entry that NCCL fails to deregister is kept.
    pub(super) fn deregister(
        &self,
        entries: Vec<Entry>,
        nccl: &nccl::Communicator,
    ) -> Result<(), nccl::Error> {
        let mut outcome = Ok(());
        for mut entry in entries {
            if let Err(error) = entry.deregister(nccl) {
                self.put_back(entry);
                outcome = Err(error);
            }
        }
        outcome
    }

    /// Keeps an entry that could not be deregistered.
    pub(super) fn put_back(&self, entry: Entry) {
        let list = match entry.kind {
            Registration::Local => &self.entries,
            Registration::Symmetric => &self.refused,
        };
        list.lock().push(entry);
    }

    pub(super) fn any(&self, is_meant: impl Fn(&Entry) -> bool) -> bool {
        self.entries.lock().iter().any(is_meant)
    }

    /// Takes a rank's entries, except windows, whose blocks are out of use.
    pub(super) fn take_unused(&self, rank: usize) -> Vec<Entry> {
        let mut entries = self.entries.lock();
        entries
            .extract_if(.., |entry| entry.is_unused(rank))
            .collect()
    }

    /// Takes all entries of a rank.
    pub(super) fn take_all(&self, rank: usize) -> Vec<Entry> {
        let mut entries = self.entries.lock();
        entries
            .extract_if(.., |entry| entry.rank == rank && entry.made.is_some())
            .collect()
    }

    /// Which of a rank's first windows are not in use any more, a bit for each. All ranks have the
    /// same windows, in the same order.
    pub(super) fn unused_windows(&self, rank: usize) -> u64 {
        let entries = self.entries.lock();
        let windows = entries.iter().filter(|entry| entry.is_window(rank));
        let first = windows.take(u64::BITS as usize).enumerate();
        first.fold(0, |bits, (place, entry)| {
            let is_unused = entry.made.is_some() && entry.block.is_unused();
            bits | u64::from(is_unused) << place
        })
    }

    pub(super) fn take_windows(&self, rank: usize, bits: u64) -> Vec<Entry> {
        let mut place = 0;
        let mut entries = self.entries.lock();
        entries
            .extract_if(.., |entry| {
                if !entry.is_window(rank) {
                    return false;
                }
                place += 1;
                bits.checked_shr(place - 1)
                    .is_some_and(|bits| bits & 1 == 1)
            })
            .collect()
    }
}

impl Entry {
    fn deregister(&mut self, nccl: &nccl::Communicator) -> Result<(), nccl::Error> {
        match self.made.take() {
            Some(Made::Local(made)) => nccl.deregister(made),
            Some(Made::Window(made)) => nccl.deregister_window(made),
            None => Ok(()),
        }
    }

    fn is_window(&self, rank: usize) -> bool {
        self.rank == rank && self.kind == Registration::Symmetric
    }

    pub(super) fn is_unused(&self, rank: usize) -> bool {
        self.is_local(rank) && self.block.is_unused()
    }

    pub(super) fn will_be_unused(&self, rank: usize) -> bool {
        self.is_local(rank) && self.block.will_be_unused()
    }

    fn is_local(&self, rank: usize) -> bool {
        self.rank == rank && matches!(self.made, Some(Made::Local(_)))
    }
}
