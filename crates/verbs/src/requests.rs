//! Work requests that own their buffers until they complete.

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::batch::{NOWHERE, atomic, rdma};
use crate::buffer::{Buffer, Refused, Registered};
use crate::pair::Rts;
use crate::{Completion, CompletionError, Error, Piece, PollRoom, QueuePair, Remote, Request, raw};

/// Numbers the requests of all queue pairs, so that a stale completion of a destroyed queue pair
/// cannot complete another request. Only the number is shared, so relaxed ordering is enough.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// A queue pair whose requests own their buffers: a request takes its buffer by value, and the
/// completion returns it. Until then nothing can access or free the buffer. The buffer of a request
/// that never completes is returned only by [`Requests::give_up`].
///
/// Its completion queues should serve no other queue pair: completions of others that are polled
/// here are lost, and completions that others poll are lost to this one.
pub struct Requests<B: Buffer> {
    pair: ManuallyDrop<QueuePair<Rts>>,
    in_flight: ManuallyDrop<HashMap<u64, Registered<B>>>,
    room: PollRoom,
    /// The error that stopped the last poll, if that returned earlier completions instead.
    failed: Option<Error>,
}

/// A request in flight.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Ticket(u64);

/// A completed request.
#[derive(Debug)]
pub struct Ended<B: Buffer> {
    /// The request.
    pub ticket: Ticket,
    /// Its buffer.
    pub buffer: Registered<B>,
    /// Its result.
    pub result: Result<Completion, CompletionError>,
}

type Started<B> = Result<Ticket, Refused<Registered<B>>>;

impl<B: Buffer> Requests<B> {
    /// Wraps a queue pair.
    pub fn new(pair: QueuePair<Rts>) -> Self {
        let (pair, in_flight) = (ManuallyDrop::new(pair), ManuallyDrop::default());
        Self {
            pair,
            in_flight,
            room: PollRoom::default(),
            failed: None,
        }
    }

    /// Sends a part of a buffer to a receive of the peer.
    ///
    /// # Errors
    ///
    /// The buffer belongs to another protection domain than the queue pair, the range is not in the
    /// buffer, or the queue is full. The error returns the buffer.
    pub fn send(&mut self, from: Registered<B>, range: Range<usize>) -> Started<B> {
        self.start(from, range, raw::IBV_WR_SEND, NOWHERE)
    }

    /// Writes a part of a buffer to the peer's memory.
    ///
    /// # Errors
    ///
    /// See [`Requests::send`].
    pub fn write(&mut self, from: Registered<B>, range: Range<usize>, to: Remote) -> Started<B> {
        self.start(from, range, raw::IBV_WR_RDMA_WRITE, rdma(to))
    }

    /// Reads the peer's memory into a part of a buffer.
    ///
    /// # Errors
    ///
    /// See [`Requests::send`].
    pub fn read(&mut self, into: Registered<B>, range: Range<usize>, from: Remote) -> Started<B> {
        self.start(into, range, raw::IBV_WR_RDMA_READ, rdma(from))
    }

    /// Adds to the eight bytes of the peer's memory at `at`, a multiple of 8. The old value is
    /// returned in the first eight bytes of the buffer.
    ///
    /// # Errors
    ///
    /// See [`Requests::send`].
    pub fn fetch_add(&mut self, into: Registered<B>, at: Remote, add: u64) -> Started<B> {
        self.start(
            into,
            0..8,
            raw::IBV_WR_ATOMIC_FETCH_AND_ADD,
            atomic(at, add, 0),
        )
    }

    /// Replaces the eight bytes of the peer's memory at `at`, a multiple of 8, by `new` if they
    /// equal `old`. The old value is returned in the first eight bytes of the buffer.
    ///
    /// # Errors
    ///
    /// See [`Requests::send`].
    pub fn compare_swap(
        &mut self,
        into: Registered<B>,
        at: Remote,
        old: u64,
        new: u64,
    ) -> Started<B> {
        self.start(
            into,
            0..8,
            raw::IBV_WR_ATOMIC_CMP_AND_SWP,
            atomic(at, old, new),
        )
    }

    /// Posts a buffer to receive one message of the peer.
    ///
    /// # Errors
    ///
    /// See [`Requests::send`].
    pub fn receive(&mut self, into: Registered<B>) -> Started<B> {
        let range = 0..into.len();
        self.post(into, range, |pair, number, piece| {
            let mut receives = pair.receives();
            receives.push(Request::own(number).id(), &[piece])?;
            receives.post().map_err(|error| error.error)
        })
    }

    /// Returns the requests that have completed since the last poll.
    ///
    /// # Errors
    ///
    /// A queue has overflowed, or the device is gone: call [`Requests::give_up`]. Requests that
    /// have completed before are returned first, and the error by the next poll.
    pub fn poll(&mut self) -> Result<Vec<Ended<B>>, Error> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let mut ended = Vec::new();
        let Self {
            pair,
            in_flight,
            room,
            failed,
        } = self;
        let queues = [pair.send_queue(), pair.receive_queue()];
        let distinct = if queues[0].id() == queues[1].id() {
            1
        } else {
            2
        };
        for queue in &queues[..distinct] {
            let polled = match queue.poll(room) {
                Ok(polled) => polled,
                Err(error) if ended.is_empty() => return Err(error),
                Err(error) => {
                    *failed = Some(error);
                    break;
                }
            };
            for result in polled {
                let (id, qp_num) = match &result {
                    Ok(done) => (done.wr_id, done.qp_num),
                    Err(error) => (error.wr_id, error.qp_num),
                };
                if qp_num == pair.number()
                    && let Some(buffer) = in_flight.remove(&id)
                {
                    ended.push(Ended {
                        ticket: Ticket(id),
                        buffer,
                        result,
                    });
                }
            }
        }
        Ok(ended)
    }

    /// The queue pair.
    pub fn pair(&self) -> &QueuePair<Rts> {
        &self.pair
    }

    /// How many requests have not completed.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Abandons all requests in flight, for example after a timeout, without waiting for
    /// completions. Moves the queue pair to the error state and destroys it, and deregisters each
    /// buffer, so that neither the peer nor the device can access it any more. Buffers that cannot
    /// be deregistered are leaked and not returned.
    ///
    /// # Errors
    ///
    /// The queue pair cannot be stopped. No buffer is returned, and all are leaked.
    pub fn give_up(self) -> Result<Vec<(Ticket, B)>, Error> {
        // SAFETY: `self` is consumed, and `ManuallyDrop` keeps it from being dropped, so it is not
        // used afterwards.
        let buffers = unsafe { ManuallyDrop::new(self).stop() }?.into_iter();
        Ok(buffers
            .filter_map(|(id, buffer)| Some((Ticket(id), buffer.into_inner().ok()?)))
            .collect())
    }

    /// Destroys the queue pair. If that fails, the buffers in flight are leaked.
    ///
    /// # Safety
    ///
    /// `self` is not used or dropped afterwards.
    unsafe fn stop(&mut self) -> Result<HashMap<u64, Registered<B>>, Error> {
        // SAFETY: `self` is not used or dropped afterwards, as this function requires, so each
        // field is taken only once.
        let (pair, in_flight) = unsafe {
            (
                ManuallyDrop::take(&mut self.pair),
                ManuallyDrop::take(&mut self.in_flight),
            )
        };
        match pair.into_failed().and_then(QueuePair::destroy) {
            Ok(()) => Ok(in_flight),
            Err(error) => {
                std::mem::forget(in_flight);
                Err(error)
            }
        }
    }

    fn start(
        &mut self,
        buffer: Registered<B>,
        range: Range<usize>,
        opcode: raw::ibv_wr_opcode,
        target: raw::ibv_send_wr__bindgen_ty_2,
    ) -> Started<B> {
        let copied = matches!(opcode, raw::IBV_WR_SEND | raw::IBV_WR_RDMA_WRITE);
        self.post(buffer, range, |pair, number, piece| {
            let request = Request::own(number);
            let fits = copied && piece.bytes() as usize <= pair.most_inline();
            let request = if fits { request.inline() } else { request };
            let mut batch = pair.batch();
            batch.push_any(request, opcode, &[piece], 0, target)?;
            batch.post().map_err(|error| error.error)
        })
    }

    /// Refuses a buffer of another protection domain. The device would fail the request with a
    /// protection error, which moves the queue pair to the error state.
    fn check_domain(&self, buffer: &Registered<B>) -> Result<(), Error> {
        let [wanted, seen] = [self.pair.domain(), buffer.region().domain()];
        if wanted == seen {
            return Ok(());
        }
        Err(Error::OtherDomain {
            wanted: wanted.context().name().into(),
            seen: seen.context().name().into(),
        })
    }

    /// Posts one request, and keeps its buffer until it completes.
    fn post(
        &mut self,
        buffer: Registered<B>,
        range: Range<usize>,
        post: impl FnOnce(&mut QueuePair<Rts>, u64, Piece) -> Result<(), Error>,
    ) -> Started<B> {
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let piece = self
            .check_domain(&buffer)
            .and_then(|()| buffer.region().piece(range));
        let posted = piece.and_then(|piece| post(&mut self.pair, number, piece));
        match posted {
            Ok(()) => {
                let id = Request::own(number).id();
                self.in_flight.insert(id, buffer);
                Ok(Ticket(id))
            }
            Err(error) => Err(Refused {
                value: buffer,
                error,
            }),
        }
    }
}

impl<B: Buffer> std::fmt::Debug for Requests<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Requests")
            .field("pair", &self.pair)
            .field("in_flight", &self.in_flight.len())
            .finish_non_exhaustive()
    }
}

impl<B: Buffer> Drop for Requests<B> {
    fn drop(&mut self) {
        // SAFETY: `self` is being dropped, and the two fields taken are `ManuallyDrop`, so nothing
        // uses them afterwards.
        if let Err(error) = unsafe { self.stop() } {
            spark_ccl_log::warn!("buffers in flight are never freed: {error}");
        }
    }
}
