use std::sync::atomic::{Ordering, fence};

/// Orders this thread's reads of memory that a device writes: whoever has seen a flag that a device
/// wrote, and calls this, sees what the device wrote before.
///
/// Polling a completion does this by itself. A device's writes are in a wider domain than those of
/// other processors, so on aarch64 [`fence`] is not enough.
#[inline]
pub fn device_fence() {
    // SAFETY: a barrier, which changes neither memory nor registers.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    // Pairs with the device's order of writes; the compiler may not move reads across it.
    fence(Ordering::Acquire);
}
