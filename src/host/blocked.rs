//! The engines of this process on which a thread blocks, and how to wake it.

use std::sync::Arc;

use spark_ccl_fork::PerProcess;
use spark_ccl_log::Mutex;
use spark_ccl_transport::Bell;

/// The bells of the engines of this process on whose links a thread blocks. Meanwhile that thread
/// does not push other engines, so it is woken up when one of them needs a push.
static BLOCKED: PerProcess<Mutex<Vec<Arc<Bell>>>> = PerProcess::new();

/// Wakes up the threads that block on other engines of this process.
pub(super) fn wake_others(own: &Arc<Bell>) {
    let blocked = BLOCKED.get().lock();
    let others = blocked.iter().filter(|bell| !Arc::ptr_eq(bell, own));
    others.for_each(|bell| bell.ring());
}

/// A thread is about to block on the links of the engine with this bell.
pub(super) fn note(bell: &Arc<Bell>) {
    BLOCKED.get().lock().push(Arc::clone(bell));
}

/// It does not block any more.
pub(super) fn forget(bell: &Arc<Bell>) {
    let mut blocked = BLOCKED.get().lock();
    blocked.retain(|blocked| !Arc::ptr_eq(blocked, bell));
}
