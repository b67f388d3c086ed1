//! Registered memory, as a device sees it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::raw;

/// Bytes of this alignment are moved together, as words; nothing here moves a part of one.
const WORD: usize = size_of::<u64>();

#[derive(Clone, Copy)]
pub(super) struct Region {
    pub(super) start: *mut u8,
    pub(super) bytes: usize,
    /// The address of its start in requests.
    pub(super) iova: u64,
    pub(super) access: u32,
}

// SAFETY: the memory is the process's, and not a thread's. Only `read` and `write` access it, which
// require that it is left to devices, or accessed by atomic operations, meanwhile.
unsafe impl Send for Region {}

/// Regions by the keys in requests: those of one domain, and of this end's keys or its peer's.
/// Locked while a device accesses one, so it is deregistered before or after that.
pub(super) type Keys = BTreeMap<u32, Region>;

/// A part of a region, as a request names it.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) key: u32,
    pub(super) addr: u64,
    pub(super) bytes: usize,
}

impl Span {
    /// The part of the span with these bytes.
    pub(super) fn part(self, part: Range<usize>) -> Self {
        Self {
            addr: self.addr + part.start as u64,
            bytes: part.len(),
            ..self
        }
    }

    /// The span's place in memory, if the keys allow this access to it.
    fn find(self, keys: &Keys, access: u32) -> Option<*mut u8> {
        let region = keys.get(&self.key)?;
        let offset = self.addr.checked_sub(region.iova)?;
        let fits = offset.checked_add(self.bytes as u64)? <= region.bytes as u64;
        let may = region.access & access == access;
        (fits && may).then(|| region.start.wrapping_add(offset as usize))
    }
}

/// Reads registered memory that allows this access; `None` if there is none.
///
/// # Safety
///
/// Meanwhile the user leaves the memory to devices, or only reads it, or accesses it by atomic
/// operations.
pub(super) unsafe fn read(keys: &Keys, from: Span, access: u32) -> Option<Vec<u8>> {
    let start = from.find(keys, access)?;
    let mut bytes = vec![0; from.bytes];
    let mut at = 0;
    while let Some((place, len)) = step(start, at, from.bytes) {
        // SAFETY: `find` has found the span in a region, which is not deregistered while the keys
        // are borrowed, and `step` gives places within it, and words where they are aligned.
        // Nothing writes there but by atomic operations, as this function requires.
        unsafe {
            if len == WORD {
                let word = AtomicU64::from_ptr(place.cast()).load(Ordering::Relaxed);
                bytes[at..at + WORD].copy_from_slice(&word.to_ne_bytes());
            } else {
                bytes[at] = AtomicU8::from_ptr(place).load(Ordering::Relaxed);
            }
        }
        at += len;
    }
    Some(bytes)
}

/// Writes registered memory that allows this access; `None` if there is none. The completion that
/// follows gives the order; so does a write of a single word, which the peer may poll: it becomes
/// visible after all earlier writes of its queue pair.
///
/// # Safety
///
/// Meanwhile the user leaves the memory to devices, or accesses it only by atomic operations.
pub(super) unsafe fn write(keys: &Keys, to: Span, access: u32, bytes: &[u8]) -> Option<()> {
    let start = to.find(keys, access)?;
    let order = if to.bytes == WORD {
        // Pairs with the Acquire of a user who polls the word.
        Ordering::Release
    } else {
        Ordering::Relaxed
    };
    let mut at = 0;
    while let Some((place, len)) = step(start, at, to.bytes.min(bytes.len())) {
        // SAFETY: `find` has found the place in a region that stays registered, `step` has aligned
        // it for what is stored, and nothing accesses it meanwhile but by atomic operations, as
        // this function requires.
        unsafe {
            if let Some(word) = bytes[at..].first_chunk().filter(|_| len == WORD) {
                AtomicU64::from_ptr(place.cast()).store(u64::from_ne_bytes(*word), order);
            } else {
                AtomicU8::from_ptr(place).store(bytes[at], Ordering::Relaxed);
            }
        }
        at += len;
    }
    Some(())
}

/// The place of the next access, of `bytes` bytes from `start` on, and its length: a word, or a
/// byte.
fn step(start: *mut u8, at: usize, bytes: usize) -> Option<(*mut u8, usize)> {
    let place = start.wrapping_add(at);
    let is_word = place.addr().is_multiple_of(WORD) && at + WORD <= bytes;
    (at < bytes).then_some((place, if is_word { WORD } else { 1 }))
}

/// The access that a region must allow a device for its own user.
pub(super) const OWN_READ: u32 = 0;
pub(super) const OWN_WRITE: u32 = raw::IBV_ACCESS_LOCAL_WRITE;
