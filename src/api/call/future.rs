//! Operations in flight as futures. Knows handles; how a task is woken is below, in the engine.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};

use super::{Failed, Pending};

/// A [`Pending`] that is awaited: what [`wait`](Pending::wait) returns, without blocking the
/// thread. A rank's progress thread
/// ([`Builder::progress_thread`](crate::Builder::progress_thread)) wakes the task. Without one, a
/// poll makes progress and asks for the next, which takes all of a thread of the executor.
///
/// `.await` makes it of a handle; [`into_future`](IntoFuture::into_future) does where it is named,
/// as for `select!` in a loop, which polls `&mut future`. After the outcome it stays pending.
/// Dropping it lets the operation go on, as any handle, and may block as that does.
///
/// ```
/// # fn block_on<F: std::future::IntoFuture>(future: F) -> F::Output {
/// #     struct Thread(std::thread::Thread);
/// #     impl std::task::Wake for Thread {
/// #         fn wake(self: std::sync::Arc<Self>) { self.0.unpark(); }
/// #     }
/// #     let waker = std::sync::Arc::new(Thread(std::thread::current())).into();
/// #     let mut context = std::task::Context::from_waker(&waker);
/// #     let mut future = std::pin::pin!(future.into_future());
/// #     loop {
/// #         match future.as_mut().poll(&mut context) {
/// #             std::task::Poll::Ready(output) => return output,
/// #             std::task::Poll::Pending => std::thread::park(),
/// #         }
/// #     }
/// # }
/// use spark_ccl::{Communicator, Error, RedOp};
///
/// async fn mean(comm: &Communicator, values: Vec<f32>) -> Result<Vec<f32>, Error> {
///     Ok(comm.all_reduce_in_place(values, RedOp::Avg).start()?.await?)
/// }
///
/// let comm = Communicator::builder().progress_thread(true).local(1)?.remove(0);
/// assert_eq!(block_on(mean(&comm, vec![1.0; 3]))?, [1.0; 3]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the buffers come back from `await`"]
pub struct PendingFuture<B: 'static>(Option<Pending<B>>);

impl<B> IntoFuture for Pending<B> {
    type Output = Result<B, Failed<B>>;
    type IntoFuture = PendingFuture<B>;

    fn into_future(self) -> PendingFuture<B> {
        PendingFuture(Some(self))
    }
}

impl<B> Future for PendingFuture<B> {
    type Output = Result<B, Failed<B>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let is_done = |it: &mut Pending<B>| it.ids.poll(&it.membership, context).is_ready();
        match self.0.take_if(is_done) {
            Some(done) => Poll::Ready(done.wait()),
            None => Poll::Pending,
        }
    }
}
