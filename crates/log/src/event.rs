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
    /// The events that wait for their release.
    static WAITING: RefCell<Vec<Job>> = const { RefCell::new(Vec::new()) };
}

/// Whether a subscriber wants events of this level, as far as that is known without asking it. The
/// `log` crate's logger gets what no subscriber takes, where the program has `tracing` pass it on.
pub fn wants(level: tracing::Level) -> bool {
    level <= LevelFilter::current()
        || (log::max_level() != log::LevelFilter::Off && !tracing::dispatcher::has_been_set())
}

/// Has an event emitted as soon as that can hold up only this thread. For the macros of this crate.
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

/// Ends the process after an error that it must not survive, once that is written, as far as
/// [`flush`](crate::flush) waits for it.
pub fn abort() -> ! {
    take_waiting().into_iter().for_each(queue::push);
    queue::flush();
    std::process::abort()
}

/// While it exists, the events of its thread wait, as under a lock. For code on which other threads
/// wait as they wait for a lock, such as the initialisation of a `OnceLock`.
pub struct Held(PhantomData<*const ()>);

impl Held {
    /// From now on, events of this thread wait.
    #[expect(clippy::new_without_default, reason = "it is a guard, not a value")]
    #[inline]
    pub fn new() -> Self {
        HELD.set(HELD.get() + 1);
        Self(PhantomData)
    }
}

impl Drop for Held {
    /// Emits what has waited, if nothing else is held.
    #[inline]
    fn drop(&mut self) {
        let left = HELD.get() - 1;
        HELD.set(left);
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

/// Leaves an event to the release of this thread's locks.
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
