//! A memory barrier on all cores, paid for by the caller only (`membarrier`). A waiter has the time
//! for it; senders therefore need no fence of their own.

use once_cell::race::OnceBool;
use rustix::thread::{MembarrierCommand, membarrier};

/// Registers this process for the barriers of other processes; returns whether that succeeded.
pub(crate) fn register_for_barriers() -> bool {
    // Does not block: a forked child would not have the thread to wait for. Registering twice does
    // no harm.
    static IS_REGISTERED: OnceBool = OnceBool::new();
    IS_REGISTERED.get_or_init(|| membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok())
}

/// A full memory barrier on this core, and on each core that runs a thread of a
/// [registered](register_for_barriers) process, at some moment during the call. Returns whether the
/// kernel supports it.
pub(super) fn on_all_cores() -> bool {
    membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}
