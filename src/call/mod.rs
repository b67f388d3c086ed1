//! Calls: operations as values that run, start, or start within a scope.

pub(crate) mod check;
mod operands;
mod pending;
mod scope;
mod spec;

pub use operands::{InPlace, Nothing, Operands, OutOfPlace, Receiving, Sending};
pub use pending::{Failed, Pending};
pub use scope::{Scope, ScopedPending};
pub(crate) use spec::{Spec, Tables};

use crate::communicator::Communicator;
use crate::engine::{OpId, Shared, Task};
use crate::error::Error;
use spark_ccl_fork::Forked;
use spark_ccl_types::Element;
use std::marker::PhantomData;

/// An operation with its buffers. It does nothing until it is run or started.
#[must_use = "a call does nothing until `run`, `start`, `start_in`, or `on` a stream"]
#[derive(Debug)]
pub struct Call<'c, T, O> {
    pub(crate) comm: &'c Communicator,
    pub(crate) spec: Spec,
    pub(crate) operands: O,
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

    /// Lets it take whichever path its buffers allow, also where the zero-copy path is demanded of all
    /// (`SPARK_CCL_PATH=zero-copy`): for small things beside the calls that matter. All ranks must
    /// do alike.
    ///
    /// ```
    /// # let comm = spark_ccl::Communicator::local(1)?.remove(0);
    /// let mut slowest = [0.25_f64];
    /// comm.all_reduce_in_place(&mut slowest, spark_ccl::RedOp::Max)
    ///     .by_any_path()
    ///     .run()?;
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    pub fn by_any_path(mut self) -> Self {
        self.spec.by_any_path = true;
        self
    }

    /// Runs the operation and gives its buffers back. With device memory, it runs in the stream that the
    /// memory comes with, and is waited for.
    ///
    /// # Errors
    /// [`Error::Invalid`] for arguments that cannot be right, before anything was sent;
    /// [`Error::Failed`] when the communicator has failed or fails meanwhile.
    pub fn run(self) -> Result<O::Back, Error> {
        let mut operands = self.operands;
        let (comm, spec) = (self.comm, &self.spec);
        let mut task = spec.task(T::DTYPE, operands.regions());
        #[cfg(feature = "cuda")]
        if task.is_on_device() {
            comm.engine(spec.operation.name())?.run::<T>(
                comm,
                spec,
                [&task.input, &task.output],
            )?;
            return Ok(operands.back());
        }
        or_abort(|| {
            if spec.operation.has_schedule() {
                run(comm, spec, &mut task)
            } else {
                issue(comm, spec, task)?.wait(comm.shared())
            }
        })?;
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
        let task = self.spec.task(T::DTYPE, operands.regions());
        match or_abort(|| issue(self.comm, &self.spec, task)) {
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
        let task = self.spec.task(T::DTYPE, operands.regions());
        let ids = or_abort(|| issue(self.comm, &self.spec, task))?;
        Ok(scope.adopt(self.comm.shared(), ids, operands))
    }
}

/// The engine's names of one call: two for an exchange, else one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ids(OpId, Option<OpId>);

impl Ids {
    /// Waits for all of the call.
    fn wait(self, shared: &Shared) -> Result<(), Error> {
        let first = shared.wait(self.0);
        let second = self.1.map_or(Ok(()), |id| shared.wait(id));
        first.and(second)
    }

    /// Waits for all of the call and leaves its results to [`wait`](Self::wait).
    fn settle(self, shared: &Shared) -> Result<(), Forked> {
        shared.settle(self.0)?;
        self.1.map_or(Ok(()), |id| shared.settle(id))
    }
}

/// Checks a collective that has a schedule, and runs it to its end.
fn run(comm: &Communicator, spec: &Spec, task: &mut Task) -> Result<(), Error> {
    let place = check::collective(comm, spec, task)?;
    comm.shared().run(task, |programs| {
        check::program(comm, spec, task, &place, programs)
    })
}

/// Checks a call and queues it.
fn issue(comm: &Communicator, spec: &Spec, task: Task) -> Result<Ids, Error> {
    if task.is_on_device() {
        return Err(Error::Invalid {
            operation: spec.operation.name(),
            problem: "device memory is not started, but enqueued in a stream (`on`), or run"
                .to_owned(),
        });
    }
    let make = |programs: &mut _| check::requests(comm, spec, task, programs);
    comm.shared().issue(make).map(|(a, b)| Ids(a, b))
}

/// Runs `work`; a panic in it ends the process. Should progress panic, operations in flight would
/// outlive the borrow of their buffers.
pub(crate) fn or_abort<R>(work: impl FnOnce() -> R) -> R {
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
