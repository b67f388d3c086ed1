//! Checks for available memory in steps of [`GRANT`] bytes: asking the system costs more than
//! allocating a small part.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{MemoryError, available_bytes, check_available};

/// How many bytes one check covers.
const GRANT: usize = 1 << 20;

/// The bytes that are left of the last check. It publishes nothing, so relaxed ordering is enough.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// Takes bytes; checks what is available if the last check is used up.
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
