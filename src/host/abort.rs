//! Ends the process where progress panics.

/// Runs `work`; a panic in it ends the process. Should progress panic, operations in flight would
/// outlive the borrow of their buffers.
pub(crate) fn or_abort<R>(work: impl FnOnce() -> R) -> R {
    let abort = AbortOnUnwind;
    let result = work();
    std::mem::forget(abort);
    result
}

struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}
