//! Events, and where each is emitted: at once, when the thread's locks are released, or by the
//! queue's thread.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::thread::panicking;

use tracing::level_filters::LevelFilter;

use crate::job::{Job, Out};
use crate::{queue, thread};

/// Set in [`HELD`] while events wait.
const SOME_WAIT: u32 = 1 << 31;

thread_local! {
    /// How many locks this thread holds. It needs no destructor, so it can be used until the
    /// thread's end.
    static HELD: Cell<u32> = const { Cell::new(0) };
    /// Events that wait until this thread holds no lock.
    static WAITING: RefCell<Vec<Job>> = const { RefCell::new(Vec::new()) };
}

/// Whether a subscriber may want events of this level, judged without asking it. Events that no
/// subscriber takes go to the `log` crate's logger, if the program has `tracing` pass them on.
pub fn wants(level: tracing::Level) -> bool {
    level <= LevelFilter::current()
        || (log::max_level() != log::LevelFilter::Off && !tracing::dispatcher::has_been_set())
}

/// Emits an event as soon as that can hold up only this thread. For the macros of this crate.
pub fn say(text: String, emit: fn(&str)) {
    let out = Out::Subscriber(emit);
    let event = Job { text, out };
    // A subscriber that panics while another panic unwinds would end the process.
    if thread::is_own() || panicking() {
        queue::push(event);
    } else if HELD.get() & !SOME_WAIT == 0 {
        event.run();
    } else {
        wait(event);
    }
}

/// Aborts the process after a fatal error, once that is written, as far as [`flush`](crate::flush)
/// waits for it.
pub fn abort() -> ! {
    take_waiting().into_iter().for_each(queue::push);
    queue::flush();
    std::process::abort()
}

/// Defers its thread's events while it exists, as a held lock does. For code on which other threads
/// wait as on a lock, for instance the initialisation of a `OnceLock`.
pub struct Held(PhantomData<*const ()>);

impl Held {
    /// From now on, events of this thread wait.
    #[expect(clippy::new_without_default, reason = "it is a guard, not a value")]
    #[inline]
    pub fn new() -> Self {
        HELD.with(|held| held.set(held.get() + 1));
        Self(PhantomData)
    }
}

impl Drop for Held {
    /// Emits the deferred events, if nothing else is held.
    #[inline]
    fn drop(&mut self) {
        let left = HELD.with(|held| {
            held.set(held.get() - 1);
            held.get()
        });
        if left == SOME_WAIT {
            emit_waiting();
        }
    }
}

#[cold]
fn emit_waiting() {
    for event in take_waiting() {
        if panicking() {
            queue::push(event);
        } else {
            event.run();
        }
    }
}

/// Defers an event until this thread has released its locks.
fn wait(event: Job) {
    let mut event = Some(event);
    // Fails as the thread ends, when its thread-local values are gone.
    let _ = WAITING.try_with(|waiting| waiting.borrow_mut().extend(event.take()));
    match event {
        Some(event) => queue::push(event),
        None => HELD.set(HELD.get() | SOME_WAIT),
    }
}

fn take_waiting() -> Vec<Job> {
    HELD.set(HELD.get() & !SOME_WAIT);
    WAITING.try_with(RefCell::take).unwrap_or_default()
}
