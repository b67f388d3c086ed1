//! The standard library's locks. While a thread holds one, its log events wait. A panic does not
//! poison them.
//!
//! A forked child may use new locks, and locks that were free, whatever its parent's threads did:
//! each is a futex of its own. `parking_lot` keeps all waiting threads in one table. A child
//! inherits it with threads that do not exist there; its own threads reuse their memory, and it
//! loops in the table for ever.
//!
//! The guards' fields are dropped in their order: the lock is released first, then the waiting
//! events are emitted.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{self, TryLockError, TryLockResult};
use std::time::{Duration, Instant};

use crate::event::Held;
use crate::queue::unpoisoned;

/// How long a thread sleeps between two attempts at a lock, at first and at most.
const PAUSES: [Duration; 2] = [Duration::from_micros(10), Duration::from_millis(1)];

/// How long a thread gives way at most, and how long it yields before it sleeps.
const LONGEST_TURN: Duration = Duration::from_secs(1);
const YIELDS: Duration = Duration::from_micros(100);

/// A mutex: see the [crate](crate).
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    /// How many threads have begun to wait for it.
    came: AtomicU32,
    /// How many of them have got it.
    went: AtomicU32,
    lock: sync::Mutex<T>,
}

/// Releases its lock when it is dropped.
pub struct Guard<L> {
    lock: L,
    held: Held,
}

/// The guard of a [`Mutex`].
pub type MutexGuard<'a, T> = Guard<sync::MutexGuard<'a, T>>;

/// The guard of a reader of a [`RwLock`].
pub type RwLockReadGuard<'a, T> = Guard<sync::RwLockReadGuard<'a, T>>;

/// The guard of the writer of a [`RwLock`].
pub type RwLockWriteGuard<'a, T> = Guard<sync::RwLockWriteGuard<'a, T>>;

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self {
            came: AtomicU32::new(0),
            went: AtomicU32::new(0),
            lock: sync::Mutex::new(value),
        }
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.wait())
    }

    #[cold]
    fn wait(&self) -> MutexGuard<'_, T> {
        // Relaxed, here and in `give_way`: the counts order nothing, the lock does.
        self.came.fetch_add(1, Ordering::Relaxed);
        let lock = unpoisoned(self.lock.lock());
        self.went.fetch_add(1, Ordering::Relaxed);
        guard(lock)
    }

    /// If other threads wait for the lock, waits until one of them has it. For a thread that takes
    /// the lock again and again: it would mostly be faster than one that has to wake up.
    #[inline]
    pub fn give_way(&self) {
        let went = self.went.load(Ordering::Relaxed);
        if self.came.load(Ordering::Relaxed) != went {
            self.wait_for_a_turn(went);
        }
    }

    #[cold]
    fn wait_for_a_turn(&self, went: u32) {
        let since = Instant::now();
        while self.went.load(Ordering::Relaxed) == went && since.elapsed() < LONGEST_TURN {
            if since.elapsed() < YIELDS {
                std::thread::yield_now();
            } else {
                // A thread of a lower priority runs while this one sleeps, not while it yields.
                std::thread::sleep(PAUSES[0]);
            }
        }
    }

    /// The lock, if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        free(self.lock.try_lock()).map(guard)
    }

    /// Tries to take the lock, for at most `limit`.
    pub fn try_lock_for(&self, limit: Duration) -> Option<MutexGuard<'_, T>> {
        look(Instant::now().checked_add(limit), || self.try_lock())
    }

    /// Tries to take the lock until `deadline`.
    pub fn try_lock_until(&self, deadline: Instant) -> Option<MutexGuard<'_, T>> {
        look(Some(deadline), || self.try_lock())
    }

    /// The value, without locking: nobody else reaches it.
    pub fn get_mut(&mut self) -> &mut T {
        unpoisoned(self.lock.get_mut())
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

#[inline]
fn guard<L>(lock: L) -> Guard<L> {
    let held = Held::new();
    Guard { lock, held }
}

#[inline]
fn free<T>(result: TryLockResult<T>) -> Option<T> {
    match result {
        Ok(lock) => Some(lock),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Repeats `attempt` until it succeeds, or fails at the deadline.
fn look<T>(deadline: Option<Instant>, attempt: impl Fn() -> Option<T>) -> Option<T> {
    let [mut pause, longest] = PAUSES;
    loop {
        let is_over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let outcome = attempt();
        if outcome.is_some() || is_over {
            return outcome;
        }
        std::thread::sleep(pause);
        pause = (2 * pause).min(longest);
    }
}

impl<L: Deref> Deref for Guard<L> {
    type Target = L::Target;

    #[inline]
    fn deref(&self) -> &L::Target {
        &self.lock
    }
}

impl<L: DerefMut> DerefMut for Guard<L> {
    #[inline]
    fn deref_mut(&mut self) -> &mut L::Target {
        &mut self.lock
    }
}

/// A condition variable for a [`Mutex`]. Events of a thread that waits on it wait, too. Wake-ups
/// may be spurious.
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    /// One on which no thread waits.
    pub const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// Wakes up one thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes up all threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits for at most `limit`.
    pub fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
        let Guard { lock, held } = guard;
        let (lock, _) = unpoisoned(self.0.wait_timeout(lock, limit));
        Guard { lock, held }
    }

    /// Waits while `is_so`.
    pub fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        is_so: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        let Guard { lock, held } = guard;
        let lock = unpoisoned(self.0.wait_while(lock, is_so));
        Guard { lock, held }
    }

    /// Waits while `is_so`, for at most `limit`.
    pub fn wait_while_for<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        is_so: impl FnMut(&mut T) -> bool,
        limit: Duration,
    ) -> MutexGuard<'a, T> {
        let Guard { lock, held } = guard;
        let (lock, _) = unpoisoned(self.0.wait_timeout_while(lock, limit, is_so));
        Guard { lock, held }
    }

    /// Waits while `is_so`, until `deadline` at most.
    pub fn wait_while_until<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        is_so: impl FnMut(&mut T) -> bool,
        deadline: Instant,
    ) -> MutexGuard<'a, T> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.wait_while_for(guard, is_so, left)
    }
}

/// A lock for many readers or one writer: see the [crate](crate).
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(sync::RwLock<T>);

impl<T: ?Sized> RwLock<T> {
    /// Waits for the lock, to read.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        guard(unpoisoned(self.0.read()))
    }

    /// Tries to take the lock, to read, for at most `limit`.
    pub fn try_read_for(&self, limit: Duration) -> Option<RwLockReadGuard<'_, T>> {
        let attempt = || free(self.0.try_read()).map(guard);
        look(Instant::now().checked_add(limit), attempt)
    }

    /// Waits for the lock, to write.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        guard(unpoisoned(self.0.write()))
    }

    /// The lock, to write, if nobody has it.
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        free(self.0.try_write()).map(guard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_has_its_turn_before_one_that_gives_way() {
        let mutex = Mutex::new(0);
        for round in 1..=100 {
            std::thread::scope(|scope| {
                let locked = mutex.lock();
                scope.spawn(|| *mutex.lock() = round);
                let waits = || {
                    let [came, went] = [&mutex.came, &mutex.went];
                    came.load(Ordering::Relaxed) != went.load(Ordering::Relaxed)
                };
                while !waits() {
                    std::thread::yield_now();
                }
                drop(locked);
                mutex.give_way();
                assert_eq!(*mutex.lock(), round);
            });
        }
    }
}
