//! Operations in flight that own their buffers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use spark_ccl_log::Mutex;
use spark_ccl_types::Element;

use super::held::{Held, Mapped, Typed};
use super::{Operands, begin};
use crate::error::Error;
use crate::host::{Ids, first_done, or_abort};
use crate::members::membership::Membership;
use crate::task::Spec;

/// An operation in flight, whose buffers come back as `B`. Dropping it lets the operation go on;
/// its buffers are freed when it is done. If the [communicator](crate::Communicator) was dropped
/// before, dropping the last handle waits for the operations in flight. Where drops must not block,
/// as in async code, keep the communicator until then. Forgetting a handle leaks its buffers, and
/// no drop waits then: end the communicator by [`finalize`](crate::Communicator::finalize).
///
/// Handles of buffers of several types, which do not go into one `Vec`, become one type by
/// [`map`](Self::map).
#[must_use = "the buffers come back from `wait`"]
pub struct Pending<B: 'static> {
    pub(super) membership: Arc<Membership>,
    pub(super) ids: Ids,
    /// `None` once they went back to the caller. The lock makes this `Sync`; only the handle's
    /// owner opens it.
    held: Mutex<Option<Box<dyn Held<B> + Send>>>,
}

impl<B> Pending<B> {
    /// Starts a call of host memory with these buffers.
    pub(crate) fn start<T, O>(
        membership: &Arc<Membership>,
        spec: &Spec,
        operands: O,
    ) -> Result<Self, Failed<B>>
    where
        T: Element,
        O: Operands<T, Back = B> + Send + 'static,
    {
        let mut held = Box::new(Typed::new(operands));
        match begin(membership, spec, held.operands().regions()) {
            Ok(ids) => Ok(Self {
                membership: Arc::clone(membership),
                ids,
                held: Mutex::new(Some(held)),
            }),
            Err(error) => Err(Failed {
                error,
                buffers: held.back(),
            }),
        }
    }

    /// Whether the operation is done. Makes progress.
    pub fn test(&self) -> bool {
        self.ids.are_done(&self.membership)
    }

    /// Waits for the operation, for at most `limit`. Returns whether it is done; then
    /// [`wait`](Self::wait) does not wait any more. Otherwise the operation goes on unchanged, and
    /// only its own timeout ends it.
    ///
    /// ```
    /// # let comm = spark_ccl::Communicator::local(1)?.remove(0);
    /// use std::time::Duration;
    ///
    /// let received = comm.recv(vec![0_u8; 2], 0).start()?;
    /// assert!(!received.wait_for(Duration::from_millis(1))); // Nothing was sent yet.
    /// comm.send(&[1_u8, 2], 0).run()?;
    /// assert!(received.wait_for(Duration::from_secs(60)));
    /// assert_eq!(received.wait()?, [1, 2]);
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    pub fn wait_for(&self, limit: Duration) -> bool {
        self.ids.settle_within(&self.membership, limit)
    }

    /// The outcome of an operation that is done, as [`wait`](Self::wait) returns it; otherwise the
    /// handle. Makes progress.
    ///
    /// ```
    /// # let comm = spark_ccl::Communicator::local(1)?.remove(0);
    /// let mut barrier = comm.barrier().start()?;
    /// loop {
    ///     match barrier.try_wait() {
    ///         Ok(outcome) => break outcome?,
    ///         Err(pending) => barrier = pending, // Do something else meanwhile.
    ///     }
    /// }
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// The handle, while the operation is under way.
    pub fn try_wait(self) -> Result<Result<B, Failed<B>>, Self> {
        if self.test() {
            Ok(self.wait())
        } else {
            Err(self)
        }
    }

    /// Waits for the operation and gives its buffers back.
    ///
    /// # Errors
    /// [`Failed`] with [`Error::Failed`] and the buffers, whose contents are then undefined (but
    /// nobody writes them any more).
    pub fn wait(self) -> Result<B, Failed<B>> {
        let outcome = self.ids.wait(&self.membership);
        let Some(held) = self.take() else {
            unreachable!("only `wait` and `map` take the buffers, and they take the handle");
        };
        let buffers = held.back();
        match outcome {
            Ok(()) => Ok(buffers),
            Err(error) => Err(Failed { error, buffers }),
        }
    }

    /// Converts what [`wait`](Self::wait) returns, so that operations on buffers of several types
    /// fit into one list.
    ///
    /// ```
    /// # let comm = spark_ccl::Communicator::local(1)?.remove(0);
    /// use spark_ccl::{Pending, RedOp};
    ///
    /// enum Gradient {
    ///     Single(Vec<f32>),
    ///     Double(Vec<f64>),
    /// }
    ///
    /// let mean = RedOp::Avg; // Of any type.
    /// let single = comm.all_reduce_in_place(vec![1.0_f32; 10], mean).start()?;
    /// let double = comm.all_reduce_in_place(vec![1.0_f64; 10], mean).start()?;
    /// let mut bucket = vec![single.map(Gradient::Single), double.map(Gradient::Double)];
    /// while let Some(first) = Pending::wait_any(&bucket) {
    ///     match bucket.swap_remove(first).wait()? {
    ///         Gradient::Single(values) => assert_eq!(values, [1.0; 10]),
    ///         Gradient::Double(values) => assert_eq!(values, [1.0; 10]),
    ///     }
    /// }
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    pub fn map<C>(self, map: impl FnOnce(B) -> C + Send + 'static) -> Pending<C> {
        let held = self.take();
        let mapped = held.map(|held| -> Box<dyn Held<C> + Send> { Box::new(Mapped { held, map }) });
        Pending {
            membership: Arc::clone(&self.membership),
            ids: self.ids,
            held: Mutex::new(mapped),
        }
    }

    /// Waits until one of several operations is done, and says which: the first in the list, if
    /// several are. `None` for no operations. An operation that has failed is done, and so is one
    /// of a process that this one was forked from.
    ///
    /// ```
    /// # let comm = spark_ccl::Communicator::local(1)?.remove(0);
    /// use std::collections::BTreeMap;
    ///
    /// use spark_ccl::Pending;
    ///
    /// let mut received = BTreeMap::new();
    /// received.insert("from myself", comm.recv(vec![0_u8], 0).start()?);
    /// comm.send(&[7_u8], 0).run()?;
    /// assert_eq!(Pending::wait_any(received.values()), Some(0));
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    pub fn wait_any<'a>(pending: impl IntoIterator<Item = &'a Self>) -> Option<usize> {
        let all = pending.into_iter();
        first_done(all.map(|pending| (pending.membership.engine().as_ref(), pending.ids)))
    }

    fn take(&self) -> Option<Box<dyn Held<B> + Send>> {
        self.held.lock().take()
    }
}

impl<B> Drop for Pending<B> {
    fn drop(&mut self) {
        if let Some(held) = self.held.get_mut().take() {
            // A closure of the user's is dropped here, with the operation still in flight.
            or_abort(|| self.ids.detach(&self.membership, held.keep()));
        }
    }
}

impl<B> fmt::Debug for Pending<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}

/// An error together with the buffers of the call.
///
/// The error is its [source](std::error::Error::source), so that programs which keep errors of all
/// kinds find it by [`Error::find`]. Converted into an [`Error`], it drops the buffers.
///
/// ```
/// # let comm = spark_ccl::Communicator::local(1)?.remove(0);
/// use spark_ccl::Error;
///
/// let failed = comm.send(vec![1.5_f32; 10], 1).start().unwrap_err(); // There is no rank 1.
/// assert_eq!(failed.buffers, [1.5; 10]);
/// let any: Box<dyn std::error::Error> = Box::new(failed);
/// assert!(matches!(Error::find(&*any), Some(Error::Invalid { .. })));
/// # Ok::<(), spark_ccl::Error>(())
/// ```
pub struct Failed<B> {
    /// The error.
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
        // Without the text of the error: reports of a whole chain show that as the source.
        f.write_str("the call failed, and its buffers came back")
    }
}

impl<B> std::error::Error for Failed<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
