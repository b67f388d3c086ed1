//! Ends a rank's way to the others from another thread. Knows only whom to tell.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use spark_ccl_log::Mutex;

use crate::Error;

/// What is called when something is cancelled.
type Action = dyn Fn() + Send + Sync;

/// Ends, from any thread, what was begun with it or a clone of it, and everything that is begun
/// with it later.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Shared>);

#[derive(Default)]
struct Shared {
    is_cancelled: AtomicBool,
    actions: Mutex<Vec<Weak<Action>>>,
}

/// Something that is done on cancellation, as long as this exists.
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

    /// Ends what was begun with it: within 1 s, that fails. What is complete by then stays.
    ///
    /// A look-up of a host's name is not cut short, nor a wait in the key-value space of a
    /// launcher: these end by their own deadline, the time for making a communicator.
    pub fn cancel(&self) {
        // Relaxed, as the loads: the lock, which comes afterwards here and before the load in
        // `on_cancel`, has either that see the flag, or this see the action.
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

    /// Whether to go on.
    ///
    /// # Errors
    /// [`Error::Cancelled`].
    pub fn check(&self) -> Result<(), Error> {
        if self.is_cancelled() {
            return Err(Error::Cancelled);
        }
        Ok(())
    }

    /// Calls `action` on cancellation, at once if that was before. It must soon return, and
    /// bear a second call.
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
