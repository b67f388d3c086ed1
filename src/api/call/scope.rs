//! Operations in flight on borrowed buffers.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use spark_ccl_log::Mutex;
use spark_ccl_types::Element;

use super::held::{Held, Typed};
use super::{Operands, begin};
use crate::api::communicator::Communicator;
use crate::error::Error;
use crate::host::{Ids, first_done, or_abort};
use crate::members::membership::Membership;
use crate::task::Spec;

/// Operations on borrowed buffers. They all end before the scope does.
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
    membership: Arc<Membership>,
    ids: Ids,
}

impl Communicator {
    /// Runs `work`, in which calls on borrowed buffers can be started, and waits for all of them.
    ///
    /// ```
    /// # use spark_ccl::RedOp;
    /// # let ranks = spark_ccl::Communicator::local(2)?.into_iter().map(|comm| std::thread::spawn(move || {
    /// let (mut weights, mut biases) = ([1.0_f32; 8], [1.0_f64; 2]);
    /// comm.scope(|scope| {
    ///     comm.all_reduce_in_place(&mut weights, RedOp::Avg).start_in(scope)?;
    ///     comm.all_reduce_in_place(&mut biases, RedOp::Avg).start_in(scope)?;
    ///     Ok(()) // Compute here, while both go on.
    /// })?;
    /// assert_eq!((weights, biases), ([1.0; 8], [1.0; 2]));
    /// # comm.finalize()
    /// # }));
    /// # for rank in ranks.collect::<Vec<_>>() { rank.join().unwrap()?; }
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of `work`, or else of the first operation that failed and was not waited for.
    pub fn scope<'env, R, F>(&self, work: F) -> Result<R, Error>
    where
        F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R, Error>,
    {
        self.try_scope(work)
    }

    /// Like [`scope`](Self::scope), where `work` has errors of the user's own. Where the
    /// compiler asks for their type, a function as `work`, or `Ok::<_, MyError>(())`, names it.
    ///
    /// ```
    /// use std::error::Error;
    ///
    /// # let ranks = spark_ccl::Communicator::local(2)?.into_iter();
    /// # let ranks = ranks.map(|comm| std::thread::spawn(move || {
    /// let (mut values, mut step) = ([1_i32], 0_u32);
    /// comm.try_scope(|scope| {
    ///     let sum = comm.all_reduce_in_place(&mut values, spark_ccl::RedOp::Sum).start_in(scope)?;
    ///     step = "7".parse()?;
    ///     sum.wait()?;
    ///     Ok::<_, Box<dyn Error + Send + Sync>>(())
    /// })?;
    /// assert_eq!((values, step), ([2], 7));
    /// # comm.finalize()?;
    /// # Ok::<_, Box<dyn Error + Send + Sync>>(())
    /// # }));
    /// # for rank in ranks.collect::<Vec<_>>() { rank.join().unwrap()?; }
    /// # Ok::<(), Box<dyn Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    /// The error of `work`, or else of the first operation that failed and was not waited for.
    pub fn try_scope<'env, R, E, F>(&self, work: F) -> Result<R, E>
    where
        E: From<Error>,
        F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R, E>,
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
            Ok(Ok(value)) => Ok(finished.map(|()| value)?),
            Ok(Err(error)) => Err(error),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a call of host memory with these buffers.
    pub(super) fn start<T: Element, O: Operands<T> + Send + 'scope>(
        &'scope self,
        membership: &Arc<Membership>,
        spec: &Spec,
        operands: O,
    ) -> Result<ScopedPending<'scope, O::Back>, Error> {
        let mut held = Box::new(Typed::new(operands));
        let ids = begin(membership, spec, held.operands().regions())?;
        self.started.lock().push(Started {
            membership: Arc::clone(membership),
            ids,
        });
        Ok(ScopedPending {
            membership: Arc::clone(membership),
            ids,
            held: Mutex::new(Some(held)),
            owns: std::mem::needs_drop::<O>(),
        })
    }

    /// Waits for everything; operations that were waited for already are passed over.
    fn finish(&self) -> Result<(), Error> {
        let started = std::mem::take(&mut *self.started.lock());
        let mut outcome = Ok(());
        for operation in &started {
            outcome = outcome.and(operation.ids.wait(&operation.membership));
        }
        outcome
    }
}

/// An operation in flight within a [`Scope`]. Dropping it waits only if it owns its buffers; the
/// scope waits in any case.
pub struct ScopedPending<'scope, B> {
    membership: Arc<Membership>,
    ids: Ids,
    /// `None` once they went back to the caller. The lock makes this `Sync`; only the handle's
    /// owner opens it.
    held: Mutex<Option<Box<dyn Held<B> + Send + 'scope>>>,
    /// Whether dropping them frees memory that the operation uses.
    owns: bool,
}

impl<B> ScopedPending<'_, B> {
    /// Whether the operation is done. Makes progress.
    pub fn test(&self) -> bool {
        self.ids.are_done(&self.membership)
    }

    /// Waits for the operation, for at most `limit`. Returns whether it is done.
    pub fn wait_for(&self, limit: Duration) -> bool {
        self.ids.settle_within(&self.membership, limit)
    }

    /// The outcome of an operation that is done, as [`wait`](Self::wait) returns it; otherwise the
    /// handle. Makes progress.
    ///
    /// # Errors
    /// The handle, while the operation is under way.
    pub fn try_wait(self) -> Result<Result<B, Error>, Self> {
        if self.test() {
            Ok(self.wait())
        } else {
            Err(self)
        }
    }

    /// Waits until one of several operations is done, and says which: see
    /// [`Pending::wait_any`](crate::Pending::wait_any).
    pub fn wait_any<'a>(pending: impl IntoIterator<Item = &'a Self>) -> Option<usize>
    where
        Self: 'a,
    {
        let all = pending.into_iter();
        first_done(all.map(|pending| (pending.membership.engine().as_ref(), pending.ids)))
    }

    /// Waits for the operation and gives its buffers back.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn wait(mut self) -> Result<B, Error> {
        let result = self.ids.wait(&self.membership);
        let Some(held) = self.held.get_mut().take() else {
            unreachable!("only wait takes the buffers, and it takes the handle");
        };
        result.map(|()| held.back())
    }
}

impl<B> Drop for ScopedPending<'_, B> {
    fn drop(&mut self) {
        // Owned buffers would be freed here while the operation uses them. Borrowed ones live until
        // the scope's end.
        if self.held.get_mut().is_some() && self.owns {
            // In a forked child nothing works on the buffers.
            let _ = or_abort(|| self.ids.settle(&self.membership));
        }
    }
}

impl<B> fmt::Debug for ScopedPending<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopedPending").finish_non_exhaustive()
    }
}
