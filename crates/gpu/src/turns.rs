//! Turns of threads. None keeps the others waiting for long.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Threads that take turns.
pub(crate) struct Turns {
    state: Mutex<State>,
    has_ended: Condvar,
}

struct State {
    /// How many turns there were, the last one included.
    count: u64,
    /// When the last one began, if it has not ended.
    since: Option<Instant>,
}

/// A turn, which ends when this is dropped.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    number: u64,
}

impl Turns {
    pub(crate) const fn new() -> Self {
        Self {
            state: Mutex::new(State {
                count: 0,
                since: None,
            }),
            has_ended: Condvar::new(),
        }
    }

    /// Waits until the last turn has ended, or has lasted for `longest`, and takes the next one.
    pub(crate) fn take(&self, longest: Duration) -> Turn<'_> {
        let mut state = self.state.lock();
        while let Some(since) = state.since {
            let left = longest.saturating_sub(since.elapsed());
            if left.is_zero() {
                break;
            }
            self.has_ended.wait_for(&mut state, left);
        }
        state.count += 1;
        state.since = Some(Instant::now());
        Turn {
            turns: self,
            number: state.count,
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state.lock();
        // Another thread may have taken the next one.
        if state.count == self.number {
            state.since = None;
            self.turns.has_ended.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const FOREVER: Duration = Duration::from_secs(1000);

    #[test]
    fn turns_do_not_overlap() {
        let (turns, inside) = (Turns::new(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let _turn = turns.take(FOREVER);
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        inside.fetch_sub(1, Ordering::Relaxed);
                    }
                });
            }
        });
    }

    #[test]
    fn a_turn_without_end_keeps_nobody() {
        let turns = Turns::new();
        let longest = Duration::from_millis(10);
        let endless = turns.take(FOREVER);
        let next = turns.take(longest);
        // It is not ended by one that lasts for longer.
        drop(endless);
        assert!(turns.state.lock().since.is_some());
        let after = turns.take(longest);
        drop(next);
        drop(after);
        drop(turns.take(FOREVER));
    }
}
