//! Calls: operations as values that run, start, or start within a scope.

mod check;
mod operands;
mod pending;
mod scope;

pub(crate) use check::{Spec, Tables};
pub use operands::{InPlace, Nothing, Operands, OutOfPlace, Receiving, Sending};
pub use pending::{Failed, Pending};
pub use scope::{Scope, ScopedPending};

use crate::communicator::Communicator;
use crate::engine::{OpId, Request, Shared};
use crate::error::Error;
use crate::signature::Operation;
use spark_ccl_compute::Element;
use std::marker::PhantomData;

/// An operation with its buffers. It does nothing until it is run or started.
#[must_use = "a call does nothing until `run`, `start` or `start_in`"]
#[derive(Debug)]
pub struct Call<'c, T, O> {
    comm: &'c Communicator,
    spec: Spec,
    operands: O,
    element: PhantomData<T>,
}

impl<'c, T: Element, O: Operands<T>> Call<'c, T, O> {
    pub(crate) fn new(comm: &'c Communicator, spec: Spec, operands: O) -> Self {
        Self {
            comm,
            spec,
            operands,
            element: PhantomData,
        }
    }

    /// Runs the operation and gives its buffers back.
    ///
    /// # Errors
    /// [`Error::Invalid`] for arguments that cannot be right, before anything was sent;
    /// [`Error::Failed`] when the communicator has failed or fails meanwhile.
    pub fn run(self) -> Result<O::Back, Error> {
        let mut operands = self.operands;
        let (input, output) = operands.regions();
        let (comm, spec, shared) = (self.comm, &self.spec, self.comm.shared());
        if spec.operation == Operation::SendRecv {
            let (first, second) = check::requests::<T>(comm, spec, &input, &output)?;
            or_abort(|| Ids::issue(shared, first, second)?.wait(shared))?;
        } else {
            let request = check::request::<T>(comm, spec, &input, &output)?;
            or_abort(|| shared.run(request))?;
        }
        Ok(operands.back())
    }

    /// Starts the operation with buffers that it owns, and that [`Pending::wait`] gives back.
    ///
    /// # Errors
    /// As [`run`](Self::run); the buffers come back in [`Failed`].
    pub fn start(self) -> Result<Pending<T, O>, Failed<O::Back>>
    where
        O: Send + 'static,
    {
        let mut operands = Box::new(self.operands);
        match issue(self.comm, &self.spec, operands.as_mut()) {
            Ok(ids) => Ok(Pending::new(
                std::sync::Arc::clone(self.comm.shared()),
                ids,
                operands,
            )),
            Err(error) => Err(Failed::new(error, operands.back())),
        }
    }

    /// Starts the operation within a scope, which waits for it at its end.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn start_in<'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
    ) -> Result<ScopedPending<'scope, T, O>, Error>
    where
        O: 'scope,
    {
        let mut operands = Box::new(self.operands);
        let ids = issue(self.comm, &self.spec, operands.as_mut())?;
        Ok(scope.adopt(self.comm.shared(), ids, operands))
    }
}

/// The engine's names of one call: two for an exchange, else one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ids(OpId, Option<OpId>);

impl Ids {
    fn issue(shared: &Shared, first: Request, second: Option<Request>) -> Result<Self, Error> {
        shared.issue(first, second).map(|(a, b)| Self(a, b))
    }

    /// Waits for all of the call.
    fn wait(self, shared: &Shared) -> Result<(), Error> {
        let first = shared.wait(self.0);
        let second = self.1.map_or(Ok(()), |id| shared.wait(id));
        first.and(second)
    }

    /// Waits for all of the call and leaves its results to [`wait`](Self::wait).
    fn settle(self, shared: &Shared) {
        shared.settle(self.0);
        if let Some(id) = self.1 {
            shared.settle(id);
        }
    }
}

/// Checks a call and queues it.
fn issue<T: Element, O: Operands<T>>(
    comm: &Communicator,
    spec: &Spec,
    operands: &mut O,
) -> Result<Ids, Error> {
    let (input, output) = operands.regions();
    let (first, second) = check::requests::<T>(comm, spec, &input, &output)?;
    or_abort(|| Ids::issue(comm.shared(), first, second))
}

/// Runs `work`; a panic in it ends the process. Should progress panic, operations in flight would
/// outlive the borrow of their buffers.
fn or_abort<R>(work: impl FnOnce() -> R) -> R {
    let abort = AbortOnUnwind;
    let result = work();
    std::mem::forget(abort);
    result
}

struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}
