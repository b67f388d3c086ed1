//! Blocks of device memory: what uses them, when they can be freed, and which one an address is in.
//! Knows no engine.
//!
//! The guards of this process's ranks free what is dropped. If the process has no rank, a thread
//! does, which ends when all is freed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_cuda::{DeviceBlock, Error, RecordedEvent};
use spark_ccl_log::Mutex;

use super::gpu::Gpu;
use super::pause::until;
use super::set_aside::{self, FREE_EVERY};
use crate::memory::registered::Segment;

/// Memory, and what was enqueued with it.
#[derive(Debug)]
pub(crate) struct Block {
    /// `None` once it is given up.
    memory: Option<Listed>,
    pub(crate) address: u64,
    pub(crate) gpu: Arc<Gpu>,
    uses: Mutex<Uses>,
}

/// The events behind the work that uses a block.
#[derive(Debug, Default)]
struct Uses {
    /// The events after writes; several if the writes may be of different parts.
    writers: Vec<Arc<RecordedEvent>>,
    /// The events after reads.
    readers: Vec<Arc<RecordedEvent>>,
    /// The events after calls whose order the user keeps.
    kept: Vec<Arc<RecordedEvent>>,
    /// Why the end of a use is unknown. If this is set, the block is never freed.
    lost: Option<Error>,
    /// Whether the owner has dropped the block.
    dropped: bool,
}

/// Blocks that were dropped while they were in use.
static DROPPED: Mutex<Vec<Dropped>> = Mutex::new(Vec::new());
/// The number of blocks from `DROPPED` that are being examined, or freed. Relaxed: orders no other
/// memory.
static IN_HAND: AtomicUsize = AtomicUsize::new(0);

/// A block that nobody holds any more.
struct Dropped {
    uses: Uses,
    _memory: Listed,
}

/// Blocks that are not freed yet, by where they begin.
static BLOCKS: Mutex<BTreeMap<u64, Entry>> = Mutex::new(BTreeMap::new());

/// The end of a block, and the block, as long as anything holds it.
struct Entry {
    end: u64,
    block: Weak<Block>,
    /// The block's memory, if that is the host's.
    segment: Weak<Segment>,
}

/// Memory of a block. It is in the list until right before it is freed: after that, its addresses
/// may belong to other memory.
#[derive(Debug)]
struct Listed(BlockMemory);

impl Drop for Listed {
    fn drop(&mut self) {
        BLOCKS.lock().remove(&self.0.address());
    }
}

/// Memory that the GPU reaches.
#[derive(Debug)]
pub(crate) enum BlockMemory {
    /// Memory of the GPU.
    Device(DeviceBlock),
    /// Memory of the host, at this address for the GPU.
    Pinned { address: u64, segment: Arc<Segment> },
}

impl BlockMemory {
    fn address(&self) -> u64 {
        match self {
            Self::Device(block) => block.address(),
            Self::Pinned { address, .. } => *address,
        }
    }
}

/// Where a buffer lies.
pub(crate) enum Found {
    /// No block. The next one begins after this many bytes.
    Other(u64),
    Block(Arc<Block>),
    /// A block whose owner has dropped it, but which is still in use.
    Dropped,
    /// It extends beyond the end of a block, which comes after this many bytes.
    Across(u64),
}

impl Block {
    /// `bytes` of memory.
    pub(crate) fn new(memory: BlockMemory, bytes: usize, gpu: Arc<Gpu>) -> Arc<Self> {
        let address = memory.address();
        let segment = match &memory {
            BlockMemory::Device(_) => Weak::new(),
            BlockMemory::Pinned { segment, .. } => Arc::downgrade(segment),
        };
        let block = Arc::new(Self {
            address,
            memory: Some(Listed(memory)),
            gpu,
            uses: Mutex::default(),
        });
        let end = address + bytes as u64;
        let entry = Entry {
            end,
            block: Arc::downgrade(&block),
            segment,
        };
        BLOCKS.lock().insert(address, entry);
        block
    }

    /// The block that a buffer is in.
    pub(crate) fn find(address: u64, bytes: u64) -> Found {
        // Dropping a block takes the lock, so no reference ends while it is held.
        let found = {
            let (blocks, end) = (BLOCKS.lock(), address.saturating_add(bytes));
            let before = blocks.range(..=address).next_back();
            match before.filter(|(_, entry)| address < entry.end) {
                Some((_, entry)) if entry.end < end => return Found::Across(entry.end - address),
                Some((_, entry)) => entry.block.upgrade(),
                None => {
                    let next = blocks.range(address..).next();
                    return Found::Other(next.map_or(u64::MAX, |(start, _)| start - address));
                }
            }
        };
        match found {
            Some(block) if !block.uses.lock().dropped => Found::Block(block),
            _ => Found::Dropped,
        }
    }

    /// The host memory that these bytes lie in, and their offset there; also if its owner has
    /// dropped it, as long as calls use it.
    pub(crate) fn find_pinned(address: u64, bytes: usize) -> Option<(Arc<Segment>, usize)> {
        let end = address.checked_add(bytes as u64)?;
        let blocks = BLOCKS.lock();
        let (start, entry) = blocks.range(..=address).next_back()?;
        let segment = entry.segment.upgrade().filter(|_| end <= entry.end)?;
        Some((segment, (address - start) as usize))
    }

    /// Makes a stream wait for writes of the block; and also for reads, if it `writes` itself.
    pub(crate) fn hold_back(&self, stream: &Arc<CudaStream>, writes: bool) -> Result<(), Error> {
        let uses = self.uses.lock();
        let mut before = uses.before(writes)?.filter(|end| !end.is_in(stream));
        before.try_for_each(|end| end.hold_back(stream))
    }

    /// Notes that it was read, or written, up to an event.
    pub(crate) fn was_used(&self, end: &Arc<RecordedEvent>, writes: bool) {
        let mut uses = self.uses.lock();
        // Other uses are kept, even if this one writes: it may be of another part, and then has not
        // waited for them. A use whose state cannot be queried may still be running.
        let is_over =
            |other: &Arc<RecordedEvent>| end.follows(other) || other.is_complete().unwrap_or(false);
        uses.readers.retain(|other| !is_over(other));
        if writes {
            uses.writers.retain(|other| !is_over(other));
            uses.writers.push(Arc::clone(end));
        } else {
            uses.readers.push(Arc::clone(end));
        }
    }

    /// Notes that a call whose order the user keeps has used the block, up to an event.
    ///
    /// Calls of a communicator, which has events of its own, run one after the other. So the last
    /// event of each stream is enough, even if that stream has the handle of one that is gone.
    pub(crate) fn was_used_by_a_call(&self, end: &Arc<RecordedEvent>) {
        let is_over = |other: &Arc<RecordedEvent>| {
            end.succeeds(other) || other.is_complete().unwrap_or(false)
        };
        let mut uses = self.uses.lock();
        uses.kept.retain(|other| !is_over(other));
        uses.kept.push(Arc::clone(end));
    }

    /// Notes that the block may be in use for an unknown time.
    pub(crate) fn was_lost(&self, error: Error) {
        self.uses.lock().lost = Some(error);
    }

    /// Waits until all uses that a read, or a write, must follow have run.
    pub(crate) fn settle(&self, writes: bool) -> Result<(), Error> {
        let before: Vec<_> = self.uses.lock().before(writes)?.cloned().collect();
        before
            .iter()
            .try_for_each(|end| until(|| end.is_complete()))
    }

    /// Notes that its owner has dropped it.
    pub(crate) fn was_dropped(&self) {
        self.uses.lock().dropped = true;
    }

    /// Whether it has no users other than calls in flight.
    pub(crate) fn will_be_unused(&self) -> bool {
        let uses = self.uses.lock();
        uses.dropped && uses.lost.is_none()
    }

    /// Whether nothing uses it, and nothing will.
    pub(crate) fn is_unused(&self) -> bool {
        let mut uses = self.uses.lock();
        uses.dropped && uses.are_over()
    }
}

impl Uses {
    /// The uses that a read, or a write, must follow.
    fn before(&self, writes: bool) -> Result<impl Iterator<Item = &Arc<RecordedEvent>>, Error> {
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        let readers = if writes { &self.readers[..] } else { &[] };
        Ok(self.writers.iter().chain(readers))
    }

    /// Whether all uses are known to have run. If the driver cannot say, the block is lost: a
    /// failed context never says more, and nobody is to wait for it.
    fn are_over(&mut self) -> bool {
        let mut ends = self.writers.iter().chain(&self.readers).chain(&self.kept);
        let are_over = ends.try_fold(true, |over, end| Ok(over && end.is_complete()?));
        let are_over = are_over.unwrap_or_else(|error: Error| {
            self.lost.get_or_insert(error);
            false
        });
        self.lost.is_none() && are_over
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else {
            return;
        };
        let mut block = Dropped {
            uses: std::mem::take(self.uses.get_mut()),
            _memory: memory,
        };
        if block.uses.are_over() {
            // It is set aside, which waits for nothing.
            drop(block);
        } else {
            DROPPED.lock().push(block);
        }
        free_the_rest_in_background();
    }
}

/// Whether a thread frees what is left without a rank.
static FREES: Mutex<bool> = Mutex::new(false);

/// Frees dropped blocks, unless a rank of this process does, by its guard, or another thread.
pub(crate) fn free_the_rest() {
    if begins_to_free() {
        free_until_nothing_is_left();
    }
}

/// Frees the rest, on a thread of its own.
fn free_the_rest_in_background() {
    if !begins_to_free() {
        return;
    }
    if let Err(error) = spark_ccl_log::spawn("spark-gpu-rest", free_until_nothing_is_left) {
        spark_ccl_log::warn!("dropped memory stays until the next communicator: {error}");
        *FREES.lock() = false;
    }
}

/// Claims the flag for the caller, if there is anything to free and nobody frees it.
fn begins_to_free() -> bool {
    !set_aside::has_ranks() && is_any_left() && !std::mem::replace(&mut *FREES.lock(), true)
}

/// Whether there is dropped memory that is to be set aside, or freed, and is not yet.
fn is_any_left() -> bool {
    any() || set_aside::is_too_much()
}

/// Releases the flag at the end. The guard of a rank that comes meanwhile goes on.
fn free_until_nothing_is_left() {
    loop {
        sweep();
        if set_aside::is_ready() {
            set_aside::free_in_background();
        }
        {
            // A drop takes this lock after it has set its block aside, so none is missed.
            let mut frees = FREES.lock();
            if set_aside::has_ranks() || !is_any_left() {
                *frees = false;
                return;
            }
        }
        std::thread::sleep(FREE_EVERY);
    }
}

/// Whether there are blocks that were dropped and are not freed yet, but will be.
pub(crate) fn any() -> bool {
    let dropped = DROPPED.lock();
    IN_HAND.load(Ordering::Relaxed) > 0 || dropped.iter().any(|block| block.uses.lost.is_none())
}

/// Frees those of them that are no longer in use. Waits for no kernel.
pub(crate) fn sweep() {
    let mut dropped: Vec<_> = {
        let mut dropped = DROPPED.lock();
        IN_HAND.fetch_add(dropped.len(), Ordering::Relaxed);
        std::mem::take(&mut *dropped)
    };
    let count = dropped.len();
    // The driver may take long to answer and to free, so the lock is not held meanwhile.
    let over: Vec<_> = dropped
        .extract_if(.., |block| block.uses.are_over())
        .collect();
    DROPPED.lock().extend(dropped);
    drop(over);
    IN_HAND.fetch_sub(count, Ordering::Relaxed);
}
