//! Queue pairs: their states and the transitions between them.

mod address;
mod options;
mod transition;

use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

pub use address::{AddressError, AddressVector, Peer};
pub use options::{PairOptions, ReceiveOptions, SendOptions};

use crate::error::{failed, failed_as};
use crate::post::List;
use crate::{CompletionError, CompletionQueue, Error, Failure, ProtectionDomain, hints, raw};

/// A reliable connected queue pair in the state `S`. It keeps its domain and its completion queues
/// alive. Dropping it destroys it.
///
/// It starts in [`Reset`]. In [`Init`] and later, receives may be posted. [`Rtr`] (ready to
/// receive) takes the peer's address, and [`Rts`] (ready to send) comes last. From each of these
/// states it may go to [`Failed`], in which nothing is sent or received and all posted requests
/// end.
///
/// The device itself moves a queue pair to the error state when a request fails. The type does not
/// change then: requests may still be posted, and end as [`crate::Status::Flushed`].
pub struct QueuePair<S> {
    pub(crate) pair: Box<Pair>,
    state: PhantomData<S>,
}

/// Newly created, or reset.
#[derive(Debug)]
pub enum Reset {}
/// Receives may be posted.
#[derive(Debug)]
pub enum Init {}
/// Ready to receive from its peer.
#[derive(Debug)]
pub enum Rtr {}
/// Ready to send and receive.
#[derive(Debug)]
pub enum Rts {}
/// In the error state: nothing is sent or received, and all posted requests end.
#[derive(Debug)]
pub enum Failed {}

/// A state in which receives may be posted.
pub trait CanReceive: sealed::Sealed {}
impl CanReceive for Init {}
impl CanReceive for Rtr {}
impl CanReceive for Rts {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Init {}
    impl Sealed for super::Rtr {}
    impl Sealed for super::Rts {}
}

/// The state of a queue pair as the device reports it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PairState {
    /// [`Reset`].
    Reset,
    /// [`Init`].
    Init,
    /// [`Rtr`].
    Rtr,
    /// [`Rts`].
    Rts,
    /// [`Failed`].
    Error,
    /// Another state, with libibverbs' number.
    Other(u32),
}

impl ProtectionDomain {
    /// Creates a reliable connected queue pair, not connected yet.
    ///
    /// # Errors
    ///
    /// The options are beyond the device's limits.
    pub fn queue_pair(&self, options: &PairOptions) -> Result<QueuePair<Reset>, Error> {
        Pair::create(self, options).map(QueuePair::new)
    }
}

impl<S> QueuePair<S> {
    pub(crate) fn new(pair: Box<Pair>) -> Self {
        Self {
            pair,
            state: PhantomData,
        }
    }

    /// Its number, by which its peer addresses it.
    pub fn number(&self) -> u32 {
        self.pair.number()
    }

    /// The domain that it belongs to.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.pair.domain
    }

    /// The completion queue of its sends, writes, reads and atomics.
    pub fn send_queue(&self) -> &CompletionQueue {
        &self.pair.send_queue
    }

    /// The completion queue of its receives.
    pub fn receive_queue(&self) -> &CompletionQueue {
        &self.pair.receive_queue
    }

    /// How many bytes a work request may carry inline.
    pub fn most_inline(&self) -> usize {
        self.pair.capacity.max_inline_data as usize
    }

    /// How many sends, writes, reads and atomics it holds. A request counts from its post until its
    /// completion, or that of a later request, has been polled.
    pub fn send_depth(&self) -> u32 {
        self.pair.capacity.max_send_wr
    }

    /// How many receives it holds.
    pub fn receive_depth(&self) -> u32 {
        self.pair.capacity.max_recv_wr
    }

    /// Its peer, once it is connected.
    pub fn peer(&self) -> Option<Peer> {
        self.pair.peer
    }

    /// Adds the device and the peer to the failure of a request of this queue pair.
    pub fn failure(&self, error: CompletionError) -> Failure {
        let device = self.domain().context().name().to_owned();
        Failure {
            error,
            device,
            peer: self.peer(),
        }
    }

    /// Asks the device for its state.
    ///
    /// # Errors
    ///
    /// The device is gone.
    pub fn query_state(&self) -> Result<PairState, Error> {
        self.pair.query_state()
    }

    /// Destroys it. Afterwards no request posted on it accesses memory. Completions left in its
    /// completion queues may or may not be polled.
    ///
    /// # Errors
    ///
    /// The device may still use it: memory that was posted must never be reused or freed.
    pub fn destroy(mut self) -> Result<(), Error> {
        match self.pair.destroy() {
            0 => Ok(()),
            errno => Err(failed_as("ibv_destroy_qp", errno, &self.pair, hints::gone)),
        }
    }
}

impl<S> fmt::Debug for QueuePair<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("device", &self.pair.domain.context().name())
            .field("number", &self.number())
            .field("state", &std::any::type_name::<S>().rsplit(':').next())
            .finish_non_exhaustive()
    }
}

/// A queue pair without its state as a type.
pub(crate) struct Pair {
    raw: NonNull<raw::ibv_qp>,
    number: u32,
    /// Whether it has yet to be destroyed.
    exists: bool,
    pub(crate) post_send: PostSend,
    pub(crate) post_recv: PostRecv,
    pub(crate) capacity: raw::ibv_qp_cap,
    pub(crate) sends: List<raw::ibv_send_wr>,
    pub(crate) receives: List<raw::ibv_recv_wr>,
    peer: Option<Peer>,
    // Dropped after the queue pair has been destroyed, in this order.
    pub(crate) send_queue: CompletionQueue,
    pub(crate) receive_queue: CompletionQueue,
    pub(crate) domain: ProtectionDomain,
}

type PostSend = unsafe extern "C" fn(
    *mut raw::ibv_qp,
    *mut raw::ibv_send_wr,
    *mut *mut raw::ibv_send_wr,
) -> i32;
type PostRecv = unsafe extern "C" fn(
    *mut raw::ibv_qp,
    *mut raw::ibv_recv_wr,
    *mut *mut raw::ibv_recv_wr,
) -> i32;

// SAFETY: libibverbs' functions may be called on a queue pair by any thread, and its lists hold
// pointers only during a post.
unsafe impl Send for Pair {}
// SAFETY: whatever changes the queue pair or its lists borrows it exclusively; shared references
// only query it.
unsafe impl Sync for Pair {}

impl Pair {
    fn create(domain: &ProtectionDomain, options: &PairOptions) -> Result<Box<Pair>, Error> {
        let context = domain.context();
        options.check(context)?;
        // SAFETY: `domain` keeps the context open, and its operations do not change.
        let ops = unsafe { &(*context.raw()).ops };
        let missing = |call| Error::TooOld { call, needs: "17" };
        // Looked up first: otherwise a created queue pair would have to be destroyed again.
        let post_send = ops.post_send.ok_or(missing("ibv_post_send"))?;
        let post_recv = ops.post_recv.ok_or(missing("ibv_post_recv"))?;
        let mut asked = options.to_raw();
        // SAFETY: `domain` and `options` keep the domain and the queues alive, and `check` has made
        // sure that they are of one device. The function also writes the granted capacities, to a
        // local.
        let raw = unsafe { (context.api().ibv_create_qp)(domain.raw(), &raw mut asked) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            failed("ibv_create_qp", context.name(), |errno| {
                hints::create_pair(errno, context.limits().ok())
            })
        })?;
        Ok(Box::new(Pair {
            // SAFETY: the queue pair was just created, and nothing has destroyed it.
            number: unsafe { raw.as_ref() }.qp_num,
            raw,
            exists: true,
            post_send,
            post_recv,
            capacity: asked.cap,
            sends: List::new(asked.cap.max_send_wr, asked.cap.max_send_sge),
            receives: List::new(asked.cap.max_recv_wr, asked.cap.max_recv_sge),
            peer: None,
            send_queue: options.send_queue.clone(),
            receive_queue: options.receive_queue.clone(),
            domain: domain.clone(),
        }))
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn raw(&self) -> *mut raw::ibv_qp {
        self.raw.as_ptr()
    }

    fn query_state(&self) -> Result<PairState, Error> {
        let mut attributes = MaybeUninit::<raw::ibv_qp_attr>::zeroed();
        let mut options = MaybeUninit::<raw::ibv_qp_init_attr>::zeroed();
        let api = self.domain.context().api();
        // SAFETY: `self` keeps the queue pair alive, and the function writes the two structures,
        // which are locals.
        let errno = unsafe {
            let (attributes, options) = (attributes.as_mut_ptr(), options.as_mut_ptr());
            (api.ibv_query_qp)(self.raw(), attributes, raw::IBV_QP_STATE as i32, options)
        };
        if errno != 0 {
            return Err(failed_as("ibv_query_qp", errno, self, hints::gone));
        }
        // SAFETY: the structure holds only integers and bytes, for which zeros are valid, and was
        // zeroed.
        Ok(match unsafe { attributes.assume_init_ref() }.qp_state {
            raw::IBV_QPS_RESET => PairState::Reset,
            raw::IBV_QPS_INIT => PairState::Init,
            raw::IBV_QPS_RTR => PairState::Rtr,
            raw::IBV_QPS_RTS => PairState::Rts,
            raw::IBV_QPS_ERR => PairState::Error,
            other => PairState::Other(other),
        })
    }

    /// Destroys it and returns the error number. It is not tried again after a failure.
    fn destroy(&mut self) -> i32 {
        self.exists = false;
        // SAFETY: `QueuePair::destroy` and `drop` call this at most once between them, as `exists`
        // shows, and do not use the queue pair afterwards.
        unsafe { (self.domain.context().api().ibv_destroy_qp)(self.raw()) }
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "queue pair {} of {}",
            self.number(),
            self.domain.context().name()
        )
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if self.exists {
            let errno = self.destroy();
            if errno != 0 {
                let device = self.domain.context().name();
                spark_ccl_log::warn!(
                    "{device}: ibv_destroy_qp failed: errno {errno}; the queue pair stays"
                );
            }
        }
    }
}
