use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::batch::{NOWHERE, atomic, rdma};
use crate::buffer::{Buffer, Refused, Registered};
use crate::pair::Rts;
use crate::{Completion, CompletionError, Error, Piece, PollRoom, QueuePair, Remote, Request, raw};

/// Numbers requests of all queue pairs, so that a completion that a queue kept from a queue pair
/// which is gone ends no other request; it carries nothing else.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// A queue pair whose requests own their buffers: they go in by value and come back with the
/// request's completion. Until then nothing can touch or free them; what never completes never
/// frees them, unless it is [given up](Requests::give_up).
///
/// Its completion queues should serve no other queue pair: whatever else is polled from them here is
/// lost, and what others poll from them never comes back here.
pub struct Requests<B: Buffer> {
    pair: ManuallyDrop<QueuePair<Rts>>,
    in_flight: ManuallyDrop<HashMap<u64, Registered<B>>>,
    room: PollRoom,
}

/// A request in flight.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Ticket(u64);

/// A request that has ended.
#[derive(Debug)]
pub struct Ended<B: Buffer> {
    /// Which one.
    pub ticket: Ticket,
    /// Its buffer.
    pub buffer: Registered<B>,
    /// How it ended.
    pub result: Result<Completion, CompletionError>,
}

type Started<B> = Result<Ticket, Refused<Registered<B>>>;

impl<B: Buffer> Requests<B> {
    /// Requests on a queue pair.
    pub fn new(pair: QueuePair<Rts>) -> Self {
        let (pair, in_flight) = (ManuallyDrop::new(pair), ManuallyDrop::default());
        Self {
            pair,
            in_flight,
            room: PollRoom::default(),
        }
    }

    /// Sends a part of a buffer into a receive of the peer.
    ///
    /// # Errors
    ///
    /// The buffer is of another protection domain than the queue pair, the range is not in the buffer, or
    /// the queue is full; the buffer comes back.
    pub fn send(&mut self, from: Registered<B>, range: Range<usize>) -> Started<B> {
        self.start(from, range, raw::IBV_WR_SEND, NOWHERE)
    }

    /// Writes a part of a buffer into memory of the peer.
    ///
    /// # Errors
    ///
    /// See [`Requests::send`].
    pub fn write(&mut self, from: Registered<B>, range: Range<usize>, to: Remote) -> Started<B> {
        self.start(from, range, raw::IBV_WR_RDMA_WRITE, rdma(to))
    }

    /// Reads memory of the peer into a part of a buffer.
    ///
    /// # Errors
    ///
    /// See [`Requests::send`].
    pub fn read(&mut self, into: Registered<B>, range: Range<usize>, from: Remote) -> Started<B> {
        self.start(into, range, raw::IBV_WR_RDMA_READ, rdma(from))
    }

    /// Adds to eight bytes of the peer's memory, at a multiple of 8; what was there comes in the
    /// first eight bytes of the buffer.
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

    /// Replaces eight bytes of the peer's memory, at a multiple of 8, by `new` if they are `old`;
    /// what was there comes in the first eight bytes of the buffer.
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

    /// Takes one message of the peer into a buffer.
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

    /// What has ended since.
    ///
    /// # Errors
    ///
    /// A queue has overflowed, or the device is gone: give the requests up.
    pub fn poll(&mut self) -> Result<Vec<Ended<B>>, Error> {
        let mut ended = Vec::new();
        let Self {
            pair,
            in_flight,
            room,
        } = self;
        let queues = [pair.send_queue(), pair.receive_queue()];
        let distinct = if queues[0].id() == queues[1].id() {
            1
        } else {
            2
        };
        for queue in &queues[..distinct] {
            for result in queue.poll(room)? {
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

    /// How many have not ended.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Ends all that have not ended, as after a timeout, without waiting for completions: the queue
    /// pair is moved to the error state and destroyed, and each buffer deregistered, so that
    /// nothing that the peer or the device still do reaches them. Buffers that could not be
    /// deregistered are missing; they are never freed.
    ///
    /// # Errors
    ///
    /// The queue pair cannot be stopped; no buffer comes back, and none is freed.
    pub fn give_up(self) -> Result<Vec<(Ticket, B)>, Error> {
        // SAFETY: it is not used or dropped afterwards.
        let buffers = unsafe { ManuallyDrop::new(self).stop() }?.into_iter();
        Ok(buffers
            .filter_map(|(id, buffer)| Some((Ticket(id), buffer.into_inner().ok()?)))
            .collect())
    }

    /// Ends the queue pair. If that fails, what is in flight is never freed.
    ///
    /// # Safety
    ///
    /// It is not used or dropped afterwards.
    unsafe fn stop(&mut self) -> Result<HashMap<u64, Registered<B>>, Error> {
        // SAFETY: neither is used or dropped afterwards, as the caller says.
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

    /// A device would end such a request with a wrong key, and the queue pair with it.
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

    /// Posts one request, and keeps its buffer.
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
        // SAFETY: it is being dropped.
        if let Err(error) = unsafe { self.stop() } {
            tracing::warn!(%error, "buffers in flight are never freed");
        }
    }
}
