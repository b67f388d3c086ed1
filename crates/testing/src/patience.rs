//! Tests that wait for a time limit to pass.

use std::time::Duration;

/// Longer than any step of a test takes on any machine.
const ENOUGH: Duration = Duration::from_secs(20);

/// Attempts a test in which a time limit must pass, but only after other steps. On a slow machine
/// these may take too long: then `attempt` returns `Err` with what it saw, and is repeated with
/// four times the limit. Whatever does not depend on the time is asserted by `attempt` itself.
///
/// # Panics
/// If a limit of 20 s or more is too short as well.
pub fn with_enough_time(limit: Duration, attempt: impl Fn(Duration) -> Result<(), String>) {
    let mut limit = limit;
    while let Err(seen) = attempt(limit) {
        assert!(limit < ENOUGH, "not even within {limit:?}: {seen}");
        eprintln!("not within {limit:?}: {seen}");
        limit *= 4;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Returns the limits tried; this many are too short.
    fn limits(too_short: usize) -> Vec<u64> {
        let limits = RefCell::new(Vec::new());
        with_enough_time(Duration::from_secs(1), |limit| {
            limits.borrow_mut().push(limit.as_secs());
            let is_enough = limits.borrow().len() > too_short;
            is_enough.then_some(()).ok_or_else(|| "late".to_owned())
        });
        limits.into_inner()
    }

    #[test]
    fn the_limit_grows_until_it_is_enough() {
        assert_eq!(limits(0), [1]);
        assert_eq!(limits(2), [1, 4, 16]);
    }

    #[test]
    #[should_panic(expected = "not even within 64s: late")]
    fn what_never_comes_is_a_failure() {
        limits(usize::MAX);
    }
}
