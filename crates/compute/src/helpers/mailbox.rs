//! The hand-over of work to one helper, and back. Knows no threads.
//!
//! The state of a mailbox says whose turn it is:
//!
//! ```text
//! EMPTY -> OFFERED -> TAKEN -> EMPTY      the helper does the work
//! EMPTY -> OFFERED -> EMPTY               the owner does it, as the helper has not begun
//! EMPTY -> ASLEEP  -> OFFERED             the owner wakes the helper up
//! EMPTY or ASLEEP  -> STOPPED             the helper ends
//! ```
//!
//! Pairings of `state`:
//! - Release in [`Mailbox::offer`], Acquire in [`Mailbox::take`]: a helper that takes an offer sees
//!   its work, and all that the owner has written before.
//! - Release in [`Mailbox::put_back`], Acquire in [`Mailbox::is_back`]: an owner that has its work
//!   back sees what the helper has written.
//! - The Acquire fence in [`Mailbox::put_back`], with the Release fence of another rank that takes
//!   memory back from its readers (`close` in `crates/transport/src/shm/ring.rs`): if a helper has
//!   read a byte that was written after that, the owner sees that the memory was taken back.
//! - [`Mailbox::take_back`] and [`Mailbox::take`] exchange OFFERED, so only one of them gets it.
//! - [`Mailbox::fall_asleep`] and [`Mailbox::offer`] exchange the state, so that a helper is woken
//!   up, or does not fall asleep. It publishes nothing, so relaxed is enough.
//!
//! `work` is ordered by `state`, so relaxed is enough.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicPtr, AtomicU32, fence};

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicPtr, AtomicU32, fence};

const EMPTY: u32 = 0;
const OFFERED: u32 = 1;
const TAKEN: u32 = 2;
const ASLEEP: u32 = 3;
const STOPPED: u32 = 4;

/// Where a helper finds its work: a pointer that is the owner's matter. A pair of lines of its own,
/// as both sides look at it again and again.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Mailbox<T> {
    state: AtomicU32,
    work: AtomicPtr<T>,
}

impl<T> Mailbox<T> {
    pub(super) fn new() -> Self {
        Self {
            state: AtomicU32::new(EMPTY),
            work: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Offers work. Returns whether the helper must be woken up.
    pub(super) fn offer(&self, work: *mut T) -> bool {
        self.work.store(work, Relaxed);
        self.state.swap(OFFERED, Release) == ASLEEP
    }

    /// Takes the work, if there is any.
    pub(super) fn take(&self) -> Option<*mut T> {
        if self.state.load(Relaxed) != OFFERED {
            return None;
        }
        let taken = self
            .state
            .compare_exchange(OFFERED, TAKEN, Acquire, Relaxed);
        taken.ok().map(|_| self.work.load(Relaxed))
    }

    /// Says that the work is done.
    pub(super) fn put_back(&self) {
        fence(Acquire);
        self.state.store(EMPTY, Release);
    }

    /// Takes an offer back; `false` if the helper has begun with it.
    pub(super) fn take_back(&self) -> bool {
        let exchanged = self
            .state
            .compare_exchange(OFFERED, EMPTY, Relaxed, Relaxed);
        exchanged.is_ok()
    }

    /// Whether the helper has nothing of the owner's any more.
    pub(super) fn is_back(&self) -> bool {
        !matches!(self.state.load(Acquire), OFFERED | TAKEN)
    }

    /// Whether the helper has nothing to do: a look that orders nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.state.load(Relaxed) == EMPTY
    }

    /// The helper may sleep if this returns `true`, as long as it [is asleep](Self::is_asleep).
    pub(super) fn fall_asleep(&self) -> bool {
        let exchanged = self.state.compare_exchange(EMPTY, ASLEEP, Relaxed, Relaxed);
        exchanged.is_ok()
    }

    pub(super) fn is_asleep(&self) -> bool {
        self.state.load(Relaxed) == ASLEEP
    }

    /// Ends the helper, which has nothing of the owner's. It must be woken up.
    pub(super) fn stop(&self) {
        self.state.swap(STOPPED, Relaxed);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.state.load(Relaxed) == STOPPED
    }
}

// Run with `tests/models.sh`.
#[cfg(all(test, loom))]
mod model {
    use loom::cell::UnsafeCell;
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::*;

    /// What the helper writes to, and the owner afterwards.
    struct Memory(UnsafeCell<u32>);

    // SAFETY: loom reports accesses to the cell that are not ordered.
    unsafe impl Sync for Memory {}

    impl Memory {
        fn add(&self, value: u32) {
            // SAFETY: loom reports any other access at the same time.
            self.0.with_mut(|cell| unsafe { *cell += value });
        }
    }

    /// What wakes the helper up; loom's own parking loses a wake-up that comes before it.
    #[derive(Default)]
    struct Bell(Mutex<bool>, Condvar);

    impl Bell {
        fn ring(&self) {
            *self.0.lock().unwrap() = true;
            self.1.notify_one();
        }

        fn wait(&self) {
            let mut rung = self.0.lock().unwrap();
            while !std::mem::take(&mut *rung) {
                rung = self.1.wait(rung).unwrap();
            }
        }
    }

    fn help(mailbox: &Mailbox<Memory>, bell: &Bell) {
        loop {
            if let Some(work) = mailbox.take() {
                // SAFETY: `take` returned the owner's pointer, and the owner keeps the memory until
                // `put_back`. Loom reports any other access at the same time.
                unsafe { &*work }.add(1);
                mailbox.put_back();
            } else if mailbox.is_stopped() {
                return;
            } else if mailbox.fall_asleep() {
                while mailbox.is_asleep() {
                    bell.wait();
                }
            } else {
                thread::yield_now();
            }
        }
    }

    #[test]
    fn work_is_done_once_and_a_helper_that_sleeps_wakes_up() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let shared = Arc::new((Mailbox::new(), Bell::default()));
            let helper = loom::thread::spawn({
                let shared = Arc::clone(&shared);
                move || help(&shared.0, &shared.1)
            });
            let (mailbox, bell) = &*shared;
            let memory = Memory(UnsafeCell::new(1));
            for round in 1..=2 {
                if mailbox.offer((&raw const memory).cast_mut()) {
                    bell.ring();
                }
                if mailbox.take_back() {
                    memory.add(1);
                }
                while !mailbox.is_back() {
                    thread::yield_now();
                }
                // SAFETY: loom reports any other access at the same time.
                assert_eq!(memory.0.with(|cell| unsafe { *cell }), 1 + round);
            }
            mailbox.stop();
            bell.ring();
            helper.join().unwrap();
        });
    }
}
