//! The engines of this process.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use spark_ccl_fork::PerProcess;
use spark_ccl_log::Mutex;
use spark_ccl_sched::Rank;

use super::HostEngine;
use crate::host::first_caller::FirstCallerView;

/// The engines of this process. A thread that waits on one of them also pushes, from time to time,
/// those on which no thread waits. So a program may wait for operations of several communicators in
/// any order, and several ranks may share a thread.
static ENGINES: PerProcess<Mutex<Vec<EngineEntry>>> = PerProcess::new();

struct EngineEntry {
    engine: Weak<HostEngine>,
    waiters: Waiters,
    /// Its communicator's context, and its rank there.
    place: (u64, Rank),
    first_caller: FirstCallerView,
}

/// How many threads wait on an engine. It is apart from the engine, so that reading it does not
/// touch memory to which the engine's own threads write.
///
/// Relaxed: a thread that leaves an engine with work wakes blocked threads under the lock of the
/// bells (`blocked::wake_others`). A thread that is about to block takes that lock before it reads
/// this number. The progress thread reads it under the engine's lock, which a thread that leaves
/// takes after it has lowered it.
pub(super) type Waiters = Arc<AtomicU32>;

/// Adds the engine of a context's rank.
pub(super) fn add(engine: &Arc<HostEngine>, place: (u64, Rank), first_caller: FirstCallerView) {
    let mut all = ENGINES.get().lock();
    all.retain(|entry| entry.engine.strong_count() > 0);
    all.push(EngineEntry {
        engine: Arc::downgrade(engine),
        waiters: Arc::clone(&engine.waiters),
        place,
        first_caller,
    });
}

/// Pushes every engine that no thread waits on.
pub(crate) fn push_all() {
    unattended_engines(|engine| {
        if let Some(mut core) = engine.try_lock() {
            core.progress();
        }
    });
}

/// Calls `work` for each engine of this process on which no thread waits.
pub(in crate::host) fn unattended_engines(mut work: impl FnMut(&HostEngine)) {
    let all = ENGINES.get().lock();
    let engines: Vec<Arc<HostEngine>> = all
        .iter()
        .filter(|entry| entry.waiters.load(Ordering::Relaxed) == 0)
        .filter_map(|entry| entry.engine.upgrade())
        .collect();
    drop(all);
    for engine in engines {
        work(&engine);
        if let Some(last) = Arc::into_inner(engine) {
            // The owner has dropped it meanwhile, so this is the last reference. Dropping the
            // engine takes a while, and may wait for this very thread, so another thread does it.
            // If none can be started, it is dropped here.
            let _ = spark_ccl_log::spawn("spark-drop", move || drop(last));
        }
    }
}

/// Whether this process has an engine of the rank, and no thread but this one has called on it.
pub(in crate::host) fn is_without_thread(context: u64, rank: Rank) -> bool {
    let all = ENGINES.get().lock();
    let mut others = all
        .iter()
        .filter(|entry| entry.place == (context, rank) && entry.engine.strong_count() > 0);
    others.any(|entry| entry.first_caller.is_none_but_this())
}
