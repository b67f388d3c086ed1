//! Cancels, from another thread, a rank's attempt to join the others. Knows only the actions to
//! call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use spark_ccl_log::Mutex;

use crate::Error;

/// An action that is called on cancellation.
type Action = dyn Fn() + Send + Sync;

/// Cancels, from any thread, everything that was or will be begun with it or a clone of it.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// Relaxed: the lock of the actions decides who sees what; see [`Cancel::cancel`].
    is_cancelled: AtomicBool,
    actions: Mutex<Vec<Weak<Action>>>,
}

/// An action that is called on cancellation, as long as this exists.
#[must_use]
pub struct OnCancel {
    _action: Arc<Action>,
}

impl Cancel {
    /// Nothing is cancelled yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels everything that was begun with it, which fails within 1 s. Anything complete by then
    /// stays.
    ///
    /// A look-up of the rendezvous' name is left behind in its thread. A wait in the key-value
    /// space of a launcher is not cut short: it ends by its own deadline, the time for making a
    /// communicator.
    pub fn cancel(&self) {
        // Relaxed, as the loads. The lock is taken here after this store, and in `on_cancel` before
        // its load. So either `on_cancel` sees the flag, or this sees the action.
        self.0.is_cancelled.store(true, Ordering::Relaxed);
        let actions = std::mem::take(&mut *self.0.actions.lock());
        for action in actions.iter().filter_map(Weak::upgrade) {
            action();
        }
    }

    /// Whether it is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::Relaxed)
    }

    /// Fails once it is cancelled.
    ///
    /// # Errors
    /// [`Error::Cancelled`].
    pub fn check(&self) -> Result<(), Error> {
        if self.is_cancelled() {
            return Err(Error::Cancelled);
        }
        Ok(())
    }

    /// Calls `action` on cancellation, at once if it is cancelled already. The action must return
    /// soon, and may be called twice.
    pub fn on_cancel(&self, action: impl Fn() + Send + Sync + 'static) -> OnCancel {
        let action: Arc<Action> = Arc::new(action);
        let mut actions = self.0.actions.lock();
        actions.retain(|one| one.strong_count() > 0);
        actions.push(Arc::downgrade(&action));
        drop(actions);
        if self.is_cancelled() {
            action();
        }
        OnCancel { _action: action }
    }
}

impl std::fmt::Debug for Cancel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cancel")
            .field("is_cancelled", &self.is_cancelled())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for OnCancel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OnCancel").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn an_action_is_done_before_and_after_cancellation_and_not_once_it_is_dropped() {
        let (cancel, done) = (Cancel::new(), Arc::new(AtomicU32::new(0)));
        let count = || {
            let done = Arc::clone(&done);
            // Read by this thread.
            move || {
                done.fetch_add(1, Ordering::Relaxed);
            }
        };
        drop(cancel.on_cancel(count()));
        let _early = cancel.on_cancel(count());
        cancel.clone().cancel();
        assert_eq!(done.load(Ordering::Relaxed), 1);
        let _late = cancel.on_cancel(count());
        assert_eq!(done.load(Ordering::Relaxed), 2);
        assert_eq!(cancel.check(), Err(Error::Cancelled));
    }
}
