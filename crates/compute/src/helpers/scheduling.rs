//! The scheduling of a helper, which it inherits from the thread that starts it.

/// Takes a real-time priority from this thread. A helper looks for work for a while without
/// sleeping, and with that priority would keep the program's own threads from running.
pub(super) fn leave_real_time() {
    // SAFETY: the call only returns a number.
    let policy = unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK;
    if !matches!(policy, libc::SCHED_FIFO | libc::SCHED_RR) {
        return;
    }
    // SAFETY: a structure of C that is valid when all of it is 0, which is what the policy demands.
    let param: libc::sched_param = unsafe { std::mem::zeroed() };
    // Everybody may give up a priority. Where it is refused, the helper works with the one it has.
    // SAFETY: the pointer is to a value that lives during the call, which changes only how this
    // thread is scheduled.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const param) };
}
