//! How a waiter passes the time between two looks at a stream or an event: it spins, yields, then
//! sleeps.

use std::time::{Duration, Instant};

/// How long a waiter spins before it yields, and how long it waits before it sleeps.
const LOOK_FOR: Duration = Duration::from_micros(50);
pub(crate) const YIELD_FOR: Duration = Duration::from_millis(1);
const SHORTEST_SLEEP: Duration = Duration::from_micros(50);
const LONGEST_SLEEP: Duration = Duration::from_millis(1);
/// A sleep takes the elapsed wait divided by this, so that it adds only that part to the wait.
const SLEEP_PART: u32 = 16;

/// Passes the time until the next look. Each look takes a lock of the driver's, which others need
/// to enqueue.
pub(crate) fn pause(waited: Duration) {
    if waited < LOOK_FOR {
        std::hint::spin_loop();
    } else if waited < YIELD_FOR {
        std::thread::yield_now();
    } else {
        std::thread::sleep((waited / SLEEP_PART).clamp(SHORTEST_SLEEP, LONGEST_SLEEP));
    }
}

/// Waits until something is over, however long that takes.
pub(crate) fn until<E>(mut is_over: impl FnMut() -> Result<bool, E>) -> Result<(), E> {
    let start = Instant::now();
    while !is_over()? {
        pause(start.elapsed());
    }
    Ok(())
}
