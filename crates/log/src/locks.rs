//! `parking_lot`'s locks, under which the events of the thread wait. They are used alike.
//!
//! The guards' fields are dropped in their order: the lock is released first, then what has waited
//! is emitted.

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

pub use parking_lot::WaitTimeoutResult;

use crate::event::Held;

/// A mutex: see the [crate](crate).
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(parking_lot::Mutex<T>);

/// Releases its [`Mutex`] when it is dropped.
pub struct MutexGuard<'a, T: ?Sized> {
    lock: parking_lot::MutexGuard<'a, T>,
    _held: Held,
}

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        guard(self.0.lock())
    }

    /// The lock, if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().map(guard)
    }

    /// Waits for the lock for a while.
    pub fn try_lock_for(&self, limit: Duration) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock_for(limit).map(guard)
    }

    /// Waits for the lock until then.
    pub fn try_lock_until(&self, deadline: Instant) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock_until(deadline).map(guard)
    }

    /// The value, which nobody else reaches.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

#[inline]
fn guard<T: ?Sized>(lock: parking_lot::MutexGuard<'_, T>) -> MutexGuard<'_, T> {
    MutexGuard {
        lock,
        _held: Held::new(),
    }
}

impl<T: ?Sized> MutexGuard<'_, T> {
    /// Releases the lock to a thread that waits for it, if there is one.
    #[inline]
    pub fn unlock_fair(guard: Self) {
        let Self { lock, _held } = guard;
        parking_lot::MutexGuard::unlock_fair(lock);
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.lock
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.lock
    }
}

/// A condition variable for a [`Mutex`]. Events of a thread that waits on it wait, too.
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// One on which no thread waits.
    pub const fn new() -> Self {
        Self(parking_lot::Condvar::new())
    }

    /// Wakes up one thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes up all threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits for a while.
    pub fn wait_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        limit: Duration,
    ) -> WaitTimeoutResult {
        self.0.wait_for(&mut guard.lock, limit)
    }

    /// Waits until then.
    pub fn wait_until<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        deadline: Instant,
    ) -> WaitTimeoutResult {
        self.0.wait_until(&mut guard.lock, deadline)
    }

    /// Waits while that is so.
    pub fn wait_while<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        is_so: impl FnMut(&mut T) -> bool,
    ) {
        self.0.wait_while(&mut guard.lock, is_so);
    }

    /// Waits while that is so, and no longer than that.
    pub fn wait_while_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        is_so: impl FnMut(&mut T) -> bool,
        limit: Duration,
    ) -> WaitTimeoutResult {
        self.0.wait_while_for(&mut guard.lock, is_so, limit)
    }

    /// Waits while that is so, at most until then.
    pub fn wait_while_until<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        is_so: impl FnMut(&mut T) -> bool,
        deadline: Instant,
    ) -> WaitTimeoutResult {
        self.0.wait_while_until(&mut guard.lock, is_so, deadline)
    }
}

/// A lock for many readers or one writer: see the [crate](crate).
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(parking_lot::RwLock<T>);

/// Releases its [`RwLock`] when it is dropped.
pub struct RwLockReadGuard<'a, T: ?Sized> {
    lock: parking_lot::RwLockReadGuard<'a, T>,
    _held: Held,
}

/// Releases its [`RwLock`] when it is dropped.
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    lock: parking_lot::RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<T: ?Sized> RwLock<T> {
    /// Waits for the lock, to read.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        reading(self.0.read())
    }

    /// Waits for the lock for a while, to read.
    #[inline]
    pub fn try_read_for(&self, limit: Duration) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read_for(limit).map(reading)
    }

    /// Waits for the lock, to write.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        writing(self.0.write())
    }

    /// The lock, to write, if nobody has it.
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.0.try_write().map(writing)
    }
}

#[inline]
fn reading<T: ?Sized>(lock: parking_lot::RwLockReadGuard<'_, T>) -> RwLockReadGuard<'_, T> {
    RwLockReadGuard {
        lock,
        _held: Held::new(),
    }
}

#[inline]
fn writing<T: ?Sized>(lock: parking_lot::RwLockWriteGuard<'_, T>) -> RwLockWriteGuard<'_, T> {
    RwLockWriteGuard {
        lock,
        _held: Held::new(),
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.lock
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.lock
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.lock
    }
}
