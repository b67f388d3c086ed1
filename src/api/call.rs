//! Calls: operations as values that run, start, or start within a scope.
//!
//! This is the last place that knows types of elements and buffers. It only converts: `task`
//! decides what is right or wrong in a call.

#[cfg(feature = "future")]
mod future;
mod held;
mod operands;
mod pending;
mod scope;

use std::marker::PhantomData;
use std::time::Duration;

#[cfg(feature = "future")]
pub use future::PendingFuture;
pub(crate) use operands::sealed;
pub use operands::{InPlace, Nothing, Operands, OutOfPlace, OwnedOperands, Receiving, Sending};
pub use pending::{Failed, Pending};
pub use scope::{Scope, ScopedPending};
use spark_ccl_types::Element;

use super::communicator::Communicator;
use crate::error::Error;
use crate::host::{HostEngine, Ids, or_abort};
use crate::memory::buffer::Region;
use crate::task::Spec;
use crate::task::names;

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

    /// Lets the call take any path that its buffers allow, even if all calls must take the
    /// zero-copy path (`SPARK_CCL_PATH=zero-copy`). Use it for small calls beside the important
    /// ones, on all ranks.
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

    /// How long this call may take, instead of the communicator's timeout. When it passes, the
    /// communicator fails on all ranks, as with its own timeout. If ranks set different times, the
    /// shortest counts. A time of 0 is invalid; so is any time for a call that a graph captures.
    ///
    /// ```
    /// # let comm = spark_ccl::Communicator::local(1)?.remove(0);
    /// use std::time::Duration;
    ///
    /// let short = Duration::from_secs(5);
    /// comm.barrier().timeout(short).run()?;
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.spec.limit = Some(limit);
        self
    }

    /// Marks it as a call of the library's own.
    pub(crate) fn internal(mut self) -> Self {
        self.spec = self.spec.internal();
        self
    }

    /// Gives the call a name, which ranks compare and errors show. All ranks must give a collective
    /// the same name. Ranks that reduce tensors of one shape in different orders get an error, not
    /// averages of different tensors. That happens with parameters from a hash map, whose order
    /// differs between processes.
    ///
    /// Messages between two ranks of device memory are not compared by name.
    ///
    /// ```
    /// # let comm = spark_ccl::Communicator::local(1)?.remove(0);
    /// let mut gradient = [0.5_f32; 16];
    /// comm.all_reduce_in_place(&mut gradient, spark_ccl::RedOp::Avg)
    ///     .named("layer1.weight")
    ///     .run()?;
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    pub fn named(mut self, name: &str) -> Self {
        self.spec.name = names::remember(name);
        self
    }

    /// Runs the operation. Buffers that were passed by value come back: two in a tuple, or the only
    /// one; borrowed ones do not. With device memory, it runs in the memory's own stream and waits
    /// for it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for arguments that cannot be right, before anything was sent;
    /// [`Error::Failed`] when the communicator has failed or fails meanwhile.
    pub fn run(self) -> Result<O::Back, Error> {
        let mut operands = self.operands;
        let mut task = self.spec.task(operands.regions());
        self.comm.run(&self.spec, &mut task)?;
        Ok(operands.back())
    }

    /// Starts the operation with buffers that it owns, and that [`Pending::wait`] gives back.
    ///
    /// # Errors
    /// As [`run`](Self::run); the buffers come back in [`Failed`].
    pub fn start(self) -> Result<Pending<O::Back>, Failed<O::Back>>
    where
        O: OwnedOperands,
    {
        Pending::start(self.comm.membership(), &self.spec, self.operands)
    }

    /// Starts the operation within a scope, which waits for it at its end.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn start_in<'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
    ) -> Result<ScopedPending<'scope, O::Back>, Error>
    where
        O: Send + 'scope,
    {
        scope.start(self.comm.membership(), &self.spec, self.operands)
    }
}

/// Checks a call and has the engine of host memory begin it.
fn begin(host: &HostEngine, spec: &Spec, regions: (Region, Region)) -> Result<Ids, Error> {
    let task = spec.checked(regions, host.planner().ranks())?;
    if task.is_on_device() {
        return Err(Error::Invalid {
            operation: spec.operation.name(),
            problem: "device memory is not started, but enqueued in a stream (`on`), or run"
                .to_owned(),
        });
    }
    or_abort(|| host.submit(task))
}
