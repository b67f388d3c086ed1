//! Operations in flight that own their buffers.

use super::{Operands, begin};
use crate::error::Error;
use crate::host::Ids;
use crate::membership::Membership;
use crate::task::Spec;
use spark_ccl_types::Element;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// An operation in flight. Dropping it lets the operation go on; its buffers are freed when
/// it is done. Where the [communicator](crate::Communicator) has been dropped, dropping the last handle
/// waits for what is in flight. Forgetting a handle leaks its buffers, and keeps dropping from waiting:
/// then end the communicator by [`finalize`](crate::Communicator::finalize).
#[must_use = "the buffers come back from `wait`"]
pub struct Pending<T, O>
where
    T: Element,
    O: Operands<T> + Send + 'static,
{
    host: Arc<Membership>,
    ids: Ids,
    /// `None` once the buffers went back to the caller.
    operands: Option<Box<O>>,
    element: PhantomData<fn(T)>,
}

impl<T: Element, O: Operands<T> + Send + 'static> Pending<T, O> {
    /// Starts a call of host memory with these buffers.
    pub(crate) fn start(
        host: &Arc<Membership>,
        spec: &Spec,
        operands: O,
    ) -> Result<Self, Failed<O::Back>> {
        let mut operands = Box::new(operands);
        match begin(host, spec, operands.regions()) {
            Ok(ids) => Ok(Self {
                host: Arc::clone(host),
                ids,
                operands: Some(operands),
                element: PhantomData,
            }),
            Err(error) => Err(Failed {
                error,
                buffers: operands.back(),
            }),
        }
    }

    /// Whether the operation is done. Makes progress.
    pub fn test(&self) -> bool {
        self.ids.are_done(&self.host)
    }

    /// Waits for the operation and gives its buffers back.
    ///
    /// # Errors
    /// [`Failed`] with [`Error::Failed`] and the buffers, whose contents are then undefined (but
    /// nobody writes them any more).
    pub fn wait(mut self) -> Result<O::Back, Failed<O::Back>> {
        let outcome = self.ids.wait(&self.host);
        let Some(operands) = self.operands.take() else {
            unreachable!("only wait takes the buffers, and it takes the handle");
        };
        match outcome {
            Ok(()) => Ok(operands.back()),
            Err(error) => Err(Failed {
                error,
                buffers: operands.back(),
            }),
        }
    }
}

impl<T: Element, O: Operands<T> + Send + 'static> Drop for Pending<T, O> {
    fn drop(&mut self) {
        if let Some(operands) = self.operands.take() {
            self.ids.detach(&self.host, operands);
        }
    }
}

/// An error together with the buffers of the call.
pub struct Failed<B> {
    /// What went wrong.
    pub error: Error,
    /// The buffers; nothing writes them any more.
    pub buffers: B,
}

impl<B> From<Failed<B>> for Error {
    fn from(failed: Failed<B>) -> Self {
        failed.error
    }
}

impl<B> fmt::Debug for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Failed").field(&self.error).finish()
    }
}

impl<B> fmt::Display for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> std::error::Error for Failed<B> {}
