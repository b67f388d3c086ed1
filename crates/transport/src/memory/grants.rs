//! Memory that is taken in small parts: to ask the system for what is available takes longer than to take it.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{MemoryError, available_bytes, check_available};

/// So many bytes are taken on one answer.
const GRANT: usize = 1 << 20;

/// What is left of the last answer. A number on its own, which publishes nothing.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// Takes bytes, after a look at what is available where the last one is used up.
pub(super) fn take(bytes: usize) -> Result<(), MemoryError> {
    let taken = LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
        left.checked_sub(bytes)
    });
    if taken.is_ok() {
        return Ok(());
    }
    check_available(bytes.max(GRANT), available_bytes())?;
    LEFT.store(GRANT.saturating_sub(bytes), Ordering::Relaxed);
    Ok(())
}
