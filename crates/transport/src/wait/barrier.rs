//! A memory barrier on all cores at once, at the price of one core: those who wait have time, those who
//! send have none, so a sender needs no fence of its own.

use once_cell::race::OnceBool;
use rustix::thread::{MembarrierCommand, membarrier};

/// Has the barriers of other processes apply to this one; whether they do.
pub(crate) fn take_part() -> bool {
    // A forked child has not got the thread that may be at it; to register twice does no harm.
    static TAKES_PART: OnceBool = OnceBool::new();
    TAKES_PART.get_or_init(|| membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok())
}

/// A full memory barrier here, and on each core that runs a thread of a process that
/// [takes part](take_part), at some moment during the call; whether the kernel can.
pub(super) fn everywhere() -> bool {
    membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}
