//! Memory that is out of use, and still to be freed.
//!
//! `cuMemFree`, `cuMemFreeHost` and `cuMemHostUnregister` wait for all kernels of a GPU. Meanwhile
//! no thread can launch there, record or create events, create streams, copy or allocate (measured
//! on H200). If one of these kernels waits for a peer whose thread is held up in this way, both
//! wait for ever. So dropping memory only sets it aside, without calling the driver.
//! [`free_set_aside`] frees it, and must be called while no kernel can wait for a peer. Later
//! allocations reuse memory that is set aside, so it need not be freed before much is.

use std::any::Any;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Debug;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaContext, result, sys};

use crate::current::make_current;
use crate::stream::relaxed;
use crate::{Error, checked};

/// The way in which memory was made, which decides how it is freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryKind {
    /// By `cuMemAlloc`.
    Device,
    /// By `cuMemHostAlloc`.
    Pinned,
    /// By `cuMemHostRegister`.
    Registered,
}

/// Memory of one of these kinds, which is set aside when this is dropped. Nothing may use it after
/// that.
#[derive(Debug)]
pub(crate) struct Reusable(ManuallyDrop<Unused>);

/// Memory that nothing uses.
#[derive(Debug)]
pub(crate) struct Unused {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) kind: MemoryKind,
    pub(crate) start: u64,
    pub(crate) bytes: usize,
    /// Whether the memory counts as set aside. It does not if it is registered elsewhere, too.
    pub(crate) counts: bool,
    /// The object that keeps registered memory mapped.
    pub(crate) owner: Option<Box<dyn Owner>>,
}

/// An object that keeps memory mapped as long as it lives.
pub(crate) trait Owner: Any + Send + Sync + Debug {}

impl<T: Any + Send + Sync + Debug> Owner for T {}

/// By device, context, kind, size and address.
type Key = (usize, usize, MemoryKind, usize, u64);

static SET_ASIDE: Mutex<BTreeMap<Key, Unused>> = Mutex::new(BTreeMap::new());

/// The number of blocks that are being freed: taken out of the map, and with the driver.
static BEING_FREED: Mutex<BTreeMap<(usize, MemoryKind), usize>> = Mutex::new(BTreeMap::new());

fn being_freed() -> MutexGuard<'static, BTreeMap<(usize, MemoryKind), usize>> {
    BEING_FREED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn all() -> MutexGuard<'static, BTreeMap<Key, Unused>> {
    SET_ASIDE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reusable {
    pub(crate) fn new(memory: Unused) -> Self {
        Self(ManuallyDrop::new(memory))
    }

    /// Notes that the memory is registered elsewhere, too.
    pub(crate) fn count_not(&mut self) {
        self.0.counts = false;
    }

    /// Memory of this kind that was set aside: the smallest of at least this many bytes, and not
    /// more than twice as many.
    pub(crate) fn take(context: &CudaContext, kind: MemoryKind, bytes: usize) -> Option<Self> {
        let (device, handle) = (context.ordinal(), context.cu_ctx().addr());
        let most = bytes.saturating_mul(2);
        let fitting = (device, handle, kind, bytes, 0)..=(device, handle, kind, most, u64::MAX);
        let mut all = all();
        let (&key, _) = all.range(fitting).next()?;
        all.remove(&key).map(Self::new)
    }
}

impl Deref for Reusable {
    type Target = Unused;

    fn deref(&self) -> &Unused {
        &self.0
    }
}

impl Drop for Reusable {
    fn drop(&mut self) {
        // SAFETY: only this line takes the memory, and `drop` runs once.
        let unused = unsafe { ManuallyDrop::take(&mut self.0) };
        all().insert(unused.key(), unused);
    }
}

impl Unused {
    fn key(&self) -> Key {
        let context = &self.context;
        let handle = context.cu_ctx().addr();
        (context.ordinal(), handle, self.kind, self.bytes, self.start)
    }

    fn free(self) {
        let start = std::ptr::without_provenance_mut(self.start as usize);
        let freed = make_current(&self.context).and_then(|device| {
            let _relaxed = relaxed(device)?;
            // SAFETY: the memory was made in this context in the way that `kind` says. `Reusable`
            // was dropped when nothing used the memory any more, and nothing else has it.
            let freed = unsafe {
                match self.kind {
                    MemoryKind::Device => result::free_sync(self.start),
                    MemoryKind::Pinned => result::free_host(start),
                    MemoryKind::Registered => sys::cuMemHostUnregister(start).result(),
                }
            };
            checked("cuMemFree", device, freed)
        });
        if freed.is_err() {
            // The context has failed, which ends all use of the memory. The owner is leaked, since
            // the driver may still have the memory registered.
            std::mem::forget(self.owner);
        }
    }
}

/// The bytes of a context that are set aside. Memory that is registered twice counts once.
pub fn set_aside_bytes(context: &CudaContext) -> usize {
    let own = context.cu_ctx().addr();
    let all = all();
    let of_context = all
        .values()
        .filter(|unused| unused.context.cu_ctx().addr() == own);
    of_context
        .filter(|unused| unused.counts)
        .map(|unused| unused.bytes)
        .sum()
}

/// Whether a context's object is used only by memory that is set aside, and by the caller.
pub(crate) fn only_set_aside_has(context: &Arc<CudaContext>) -> bool {
    let all = all();
    let has = |unused: &&Unused| Arc::ptr_eq(&unused.context, context);
    let count = all.values().filter(has).count();
    count > 0 && Arc::strong_count(context) == count + 1
}

/// Checks that no more than `most` bytes of a context are set aside.
///
/// # Errors
/// [`Error::SetAside`]: there are more.
pub fn check_set_aside(context: &CudaContext, most: usize) -> Result<(), Error> {
    let (device, bytes) = (context.ordinal(), set_aside_bytes(context));
    if bytes <= most {
        return Ok(());
    }
    Err(Error::SetAside {
        device,
        bytes,
        most,
    })
}

/// The devices that have memory set aside, by CUDA's numbers, each with its bytes as
/// [`set_aside_bytes`] counts them.
pub fn devices_with_memory_set_aside() -> BTreeMap<usize, usize> {
    let mut devices = BTreeMap::new();
    for ((device, ..), unused) in all().iter() {
        *devices.entry(*device).or_default() += usize::from(unused.counts) * unused.bytes;
    }
    devices
}

/// Whether a device has memory that is set aside, or that a thread frees now; `only` of a kind, if
/// one is given.
pub fn has_set_aside(device: usize, only: Option<MemoryKind>) -> bool {
    let is_meant = |(of, kind)| of == device && only.is_none_or(|only| only == kind);
    // Blocks go from one to the other under this lock.
    let all = all();
    let is_kept = all.keys().any(|&(of, _, kind, ..)| is_meant((of, kind)));
    is_kept || being_freed().keys().copied().any(is_meant)
}

/// Has memory that is set aside keep `to` in use instead of `from`, another object of the same
/// context.
pub(crate) fn hand_over(from: &Arc<CudaContext>, to: &Arc<CudaContext>) {
    let mut all = all();
    let own = all
        .values_mut()
        .filter(|unused| Arc::ptr_eq(&unused.context, from));
    own.for_each(|unused| unused.context = Arc::clone(to));
}

/// Frees memory that is set aside on a device; `only` of a kind, if one is given. Waits for all
/// kernels that run there, and meanwhile holds up all threads that use the device: none of these
/// kernels may wait for one of these threads.
pub fn free_set_aside(device: usize, only: Option<MemoryKind>) {
    let unused: Vec<_> = {
        let mut all = all();
        let keys: Vec<Key> = all
            .keys()
            .filter(|(of, _, kind, ..)| *of == device && only.is_none_or(|only| only == *kind))
            .copied()
            .collect();
        let mut being_freed = being_freed();
        for &(device, _, kind, ..) in &keys {
            *being_freed.entry((device, kind)).or_default() += 1;
        }
        keys.iter().filter_map(|key| all.remove(key)).collect()
    };
    // Not under the lock, which threads that drop memory of other devices need.
    for unused in unused {
        let kind = unused.kind;
        unused.free();
        if let Entry::Occupied(mut count) = being_freed().entry((device, kind)) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use spark_ccl_testing::{Need, has};

    use super::*;
    use crate::{HostBlock, PinnedWords};

    /// Other tests set memory of device 0 aside, and free it.
    const DEVICE: usize = 1;

    #[test]
    fn memory_that_is_dropped_is_used_again_or_freed() {
        if !has(Need::Gpus(2)) {
            return;
        }
        let _alone = crate::device::tests::second_device();
        let context = crate::context(DEVICE).unwrap();
        let words = PinnedWords::new(&context, 1000).unwrap();
        words.words()[999].store(7, std::sync::atomic::Ordering::Relaxed);
        let start = words.words().as_ptr();
        drop(words);
        assert_eq!(set_aside_bytes(&context), 8000);
        assert_eq!(devices_with_memory_set_aside()[&DEVICE], 8000);
        // Neither for more than it has, nor for less than half.
        let others = [1001, 499].map(|count| PinnedWords::new(&context, count).unwrap());
        assert_eq!(set_aside_bytes(&context), 8000);
        let words = PinnedWords::new(&context, 500).unwrap();
        assert_eq!(words.words().as_ptr(), start);
        assert_eq!(words.words().len(), 500);
        assert_eq!(set_aside_bytes(&context), 0);
        drop(words);
        let words = PinnedWords::new(&context, 1000).unwrap();
        assert_eq!(words.words().as_ptr(), start);
        let mut all = words.words().iter();
        assert!(all.all(|word| word.load(std::sync::atomic::Ordering::Relaxed) == 0));
        drop(others);
        assert_eq!(set_aside_bytes(&context), (1001 + 499) * 8);
        // Memory that is set aside keeps the context's object in use.
        drop(words);
        let device_memory = Some(MemoryKind::Device);
        assert!(!has_set_aside(DEVICE, device_memory));
        free_set_aside(DEVICE, device_memory);
        assert_eq!(set_aside_bytes(&context), (1001 + 499 + 1000) * 8);
        assert!(has_set_aside(DEVICE, Some(MemoryKind::Pinned)));
        free_set_aside(DEVICE, None);
        assert_eq!(set_aside_bytes(&context), 0);
        assert!(!has_set_aside(DEVICE, None));
    }

    /// Registered memory stays mapped until its registration has ended.
    #[test]
    fn registered_memory_is_kept_until_it_is_freed() {
        if !has(Need::Gpus(2)) {
            return;
        }
        let _alone = crate::device::tests::second_device();
        let context = crate::context(DEVICE).unwrap();
        let owner = Arc::new(());
        let layout = std::alloc::Layout::from_size_align(4096, 4096).unwrap();
        // SAFETY: the layout has a size. The memory is freed below.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        // SAFETY: `start` has 4096 bytes, which this test frees last, after `free_set_aside` has
        // ended the registration.
        let block = unsafe { HostBlock::register(&context, start, 4096, Arc::clone(&owner)) };
        drop(block.unwrap().uncounted());
        assert_eq!(set_aside_bytes(&context), 0);
        assert_eq!(devices_with_memory_set_aside()[&DEVICE], 0);
        assert_eq!(Arc::strong_count(&owner), 2);
        free_set_aside(DEVICE, None);
        assert_eq!(Arc::strong_count(&owner), 1);
        // SAFETY: the memory was allocated with this layout, and nothing uses it any more.
        unsafe { std::alloc::dealloc(start, layout) };
    }
}
