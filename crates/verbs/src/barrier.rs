//! The barrier between a device's writes and this thread's reads.

use std::sync::atomic::{Ordering, fence};

/// Orders this thread's reads of memory that a device writes. A thread sees a flag that a device
/// wrote, and then calls this: from then on it sees what the device wrote before the flag.
///
/// Polling a completion includes this. On aarch64, [`fence`] is not enough: devices are in the
/// outer shareable domain, processors in the inner one.
#[inline]
pub fn device_fence() {
    // SAFETY: the instruction is a barrier, which changes neither memory nor registers.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    // Pairs with the device's order of writes; the compiler may not move reads across it.
    fence(Ordering::Acquire);
}
