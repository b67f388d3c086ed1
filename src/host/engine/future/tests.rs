//! Tasks that wait for an engine, whose executor is the test.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Wake, Waker};

use super::*;
use crate::api::communicator::Communicator;

/// Counts its wakes, and whether it was dropped while the engine was not locked.
struct Watcher {
    engine: Arc<HostEngine>,
    wakes: Arc<AtomicUsize>,
    drops_unlocked: Arc<AtomicUsize>,
}

impl Wake for Watcher {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let is_unlocked = self.engine.core.try_lock().is_some();
        self.drops_unlocked
            .fetch_add(usize::from(is_unlocked), Ordering::Relaxed);
    }
}

/// Polls something that is under way, and keeps no waker. Returns the count of its wakes.
fn poll_once(
    engine: &Arc<HostEngine>,
    pending: Pin<&mut impl Future>,
    drops_unlocked: &Arc<AtomicUsize>,
) -> Arc<AtomicUsize> {
    // Otherwise the poll asks for the next at once.
    engine.expect_thread();
    let wakes = Arc::default();
    let waker = Waker::from(Arc::new(Watcher {
        engine: Arc::clone(engine),
        wakes: Arc::clone(&wakes),
        drops_unlocked: Arc::clone(drops_unlocked),
    }));
    let polled = pending.poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    wakes
}

#[test]
fn tasks_learn_of_a_fault_whichever_call_finds_it() {
    let finds: [fn(&Communicator); 3] = [
        |comm| drop(comm.check()),
        |comm| drop(comm.barrier().start()),
        |comm| drop(comm.probe(1)),
    ];
    for find in finds {
        let comms = Communicator::local(2).unwrap();
        let engine = comms[0].membership().engine();
        let pending = comms[0].recv(vec![0_u8], 1).start().unwrap();
        let mut pending = pin!(pending.into_future());
        let wakes = poll_once(engine, pending.as_mut(), &Arc::default());
        comms[0].abort("on purpose");
        find(&comms[0]);
        assert_eq!(wakes.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn wakers_are_dropped_where_the_engine_is_not_locked() {
    let comms = Communicator::local(2).unwrap();
    let engine = comms[0].membership().engine();
    let drops = Arc::default();
    {
        let pending = comms[0].recv(vec![0_u8], 1).start().unwrap();
        let mut pending = pin!(pending.into_future());
        for replaced in 0..3 {
            poll_once(engine, pending.as_mut(), &drops);
            assert_eq!(drops.load(Ordering::Relaxed), replaced);
        }
    }
    // The receipt is under way, but no task awaits it any more.
    assert_eq!(drops.load(Ordering::Relaxed), 3);
    comms[1].send(&[7_u8], 0).run().unwrap();
}
