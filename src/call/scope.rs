//! Operations in flight on borrowed buffers.

use super::{Operands, or_abort};
use crate::communicator::Communicator;
use crate::error::Error;
use crate::host::Ids;
use crate::membership::Membership;
use parking_lot::Mutex;
use spark_ccl_types::Element;
use std::marker::PhantomData;
use std::sync::Arc;

/// Operations on borrowed buffers, all of which end before the scope does.
///
/// From [`Communicator::scope`]. Point-to-point operations that are started in one scope
/// proceed together, so a scope is also a group.
pub struct Scope<'scope, 'env: 'scope> {
    started: Mutex<Vec<Started>>,
    /// Invariant, like [`std::thread::Scope`]: a longer or shorter scope is another type.
    invariant: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// An operation that the scope has to wait for, whatever becomes of its handle.
struct Started {
    host: Arc<Membership>,
    ids: Ids,
}

impl Communicator {
    /// Runs `work`, in which calls on borrowed buffers can be started, and waits for all of them.
    ///
    /// # Errors
    /// The error of `work`, or else of the first operation that failed and was not waited for.
    pub fn scope<'env, R, E, F>(&self, work: F) -> Result<R, E>
    where
        F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R, E>,
        E: From<Error>,
    {
        let scope = Scope {
            started: Mutex::new(Vec::new()),
            invariant: PhantomData,
            env: PhantomData,
        };
        // Operations in flight borrow buffers of frames above this one: a panic in `work` must not
        // pass before they have ended.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&scope)));
        let finished = or_abort(|| scope.finish());
        match result {
            Ok(Ok(value)) => finished.map(|()| value).map_err(E::from),
            Ok(Err(error)) => Err(error),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl<'scope> Scope<'scope, '_> {
    pub(super) fn adopt<T: Element, O: Operands<T>>(
        &'scope self,
        host: &Arc<Membership>,
        ids: Ids,
        operands: Box<O>,
    ) -> ScopedPending<'scope, T, O> {
        self.started.lock().push(Started {
            host: Arc::clone(host),
            ids,
        });
        ScopedPending {
            host: Arc::clone(host),
            ids,
            operands: Some(operands),
            element: PhantomData,
            lifetime: PhantomData,
        }
    }

    /// Waits for everything; operations that were waited for already are passed over.
    fn finish(&self) -> Result<(), Error> {
        let started = std::mem::take(&mut *self.started.lock());
        let mut outcome = Ok(());
        for operation in &started {
            outcome = outcome.and(operation.ids.wait(&operation.host));
        }
        outcome
    }
}

/// An operation in flight within a [`Scope`]. Dropping it waits for it only where it owns its
/// buffers; the scope waits in any case.
pub struct ScopedPending<'scope, T: Element, O: Operands<T>> {
    host: Arc<Membership>,
    ids: Ids,
    /// `None` once the buffers went back to the caller.
    operands: Option<Box<O>>,
    element: PhantomData<fn(T)>,
    lifetime: PhantomData<&'scope ()>,
}

impl<T: Element, O: Operands<T>> ScopedPending<'_, T, O> {
    /// Whether the operation is done. Makes progress.
    pub fn test(&self) -> bool {
        self.ids.are_done(&self.host)
    }

    /// Waits for the operation and gives its buffers back.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn wait(mut self) -> Result<O::Back, Error> {
        let result = self.ids.wait(&self.host);
        let Some(operands) = self.operands.take() else {
            unreachable!("only wait takes the buffers, and it takes the handle");
        };
        result.map(|()| operands.back())
    }
}

impl<T: Element, O: Operands<T>> Drop for ScopedPending<'_, T, O> {
    fn drop(&mut self) {
        // Owned buffers would be freed here under the operation's hands. Borrowed ones have no
        // drop glue, and the scope's end is time enough.
        if self.operands.is_some() && std::mem::needs_drop::<O>() {
            // In a forked child nothing works on the buffers.
            let _ = or_abort(|| self.ids.settle(&self.host));
        }
    }
}
