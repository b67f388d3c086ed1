//! Posting: work requests are gathered and handed to the device at once.

use std::marker::PhantomData;
use std::ptr::null_mut;

use crate::error::failed_as;
use crate::pair::{CanReceive, Pair, Rts};
use crate::{Error, Piece, QueuePair, Remote, hints, raw};

/// The most work requests of one batch.
const MOST: u32 = 64;

/// Work request numbers from here on are the crate's own: who gives buffers back upon a completion
/// must know that nobody else had it posted.
pub(crate) const OWN_IDS: u64 = 1 << 63;

/// What a work request is called and how it is carried out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    id: u64,
    flags: raw::ibv_send_flags,
}

impl Request {
    /// A request that completes silently, unless it fails. `id` comes back with its completion; it
    /// is less than 2^63.
    pub const fn new(id: u64) -> Request {
        Request { id, flags: 0 }
    }

    /// Whose completion is told. The queue has room again only when one was told and polled, so
    /// every so many requests one must be.
    #[must_use]
    pub const fn signalled(self) -> Request {
        self.with(raw::IBV_SEND_SIGNALED)
    }

    /// Whose data are copied when it is posted: its memory is free again afterwards, and needs no
    /// key.
    #[must_use]
    pub const fn inline(self) -> Request {
        self.with(raw::IBV_SEND_INLINE)
    }

    /// Which starts when all reads and atomics before it have ended.
    #[must_use]
    pub const fn fenced(self) -> Request {
        self.with(raw::IBV_SEND_FENCE)
    }

    /// Which wakes a peer that waits for solicited requests only.
    #[must_use]
    pub const fn solicited(self) -> Request {
        self.with(raw::IBV_SEND_SOLICITED)
    }

    const fn with(self, flag: raw::ibv_send_flags) -> Request {
        Request {
            id: self.id,
            flags: self.flags | flag,
        }
    }

    /// A told request of the crate's own.
    pub(crate) const fn own(number: u64) -> Request {
        Request::new(OWN_IDS | number).signalled()
    }

    pub(crate) const fn id(self) -> u64 {
        self.id
    }
}

/// Room for a batch, kept by its queue pair, so that posting allocates nothing.
pub(crate) struct Storage {
    sends: Vec<raw::ibv_send_wr>,
    receives: Vec<raw::ibv_recv_wr>,
    pieces: Vec<raw::ibv_sge>,
}

impl Storage {
    pub(crate) fn new(capacity: &raw::ibv_qp_cap) -> Storage {
        let sends = capacity.max_send_wr.clamp(1, MOST) as usize;
        let receives = capacity.max_recv_wr.clamp(1, MOST) as usize;
        let pieces = (sends * capacity.max_send_sge.max(1) as usize)
            .max(receives * capacity.max_recv_sge as usize);
        Storage {
            sends: Vec::with_capacity(sends),
            receives: Vec::with_capacity(receives),
            pieces: Vec::with_capacity(pieces),
        }
    }

    /// Forgets what a batch left that was not posted.
    fn clear(&mut self) {
        self.sends.clear();
        self.receives.clear();
        self.pieces.clear();
    }
}

impl QueuePair<Rts> {
    /// Starts a batch of sends, writes, reads and atomics.
    pub fn batch(&mut self) -> Batch<'_> {
        self.pair.batch.clear();
        Batch {
            pair: &mut self.pair,
            data: PhantomData,
        }
    }
}

impl<S: CanReceive> QueuePair<S> {
    /// Starts a batch of receives.
    pub fn receives(&mut self) -> ReceiveBatch<'_> {
        self.pair.batch.clear();
        ReceiveBatch {
            pair: &mut self.pair,
        }
    }
}

/// Work requests that are posted together, in their order, by [`Batch::post`]. Dropping it posts
/// none of them.
///
/// # Safety of its functions
///
/// The memory that `from` or `into` names stays as it is from the post on, and is not touched where
/// the request writes it, until one of:
///
/// - the request's completion, or that of a later one of the same queue pair, was polled;
/// - the queue pair was destroyed or reset;
/// - the memory's region was deregistered.
///
/// For [inline](Request::inline) requests it only has to be there until the post. A queue pair in
/// the error state may still touch memory until one of the above.
#[must_use = "nothing is posted but by `post`"]
pub struct Batch<'b> {
    pair: &'b mut Pair,
    data: PhantomData<&'b [u8]>,
}

impl<'b> Batch<'b> {
    /// Writes memory of the peer.
    ///
    /// # Safety
    ///
    /// See [`Batch`].
    ///
    /// # Errors
    ///
    /// The batch is full, or the request has too many pieces or inline bytes; it is left out then.
    pub unsafe fn write(
        &mut self,
        request: Request,
        from: &[Piece],
        to: Remote,
    ) -> Result<(), Error> {
        self.push(request, raw::IBV_WR_RDMA_WRITE, from, 0, rdma(to))
    }

    /// Writes memory of the peer, and ends a receive there with the number `imm`.
    ///
    /// # Safety
    ///
    /// See [`Batch`].
    ///
    /// # Errors
    ///
    /// See [`Batch::write`].
    pub unsafe fn write_with_imm(
        &mut self,
        request: Request,
        from: &[Piece],
        to: Remote,
        imm: u32,
    ) -> Result<(), Error> {
        self.push(
            request,
            raw::IBV_WR_RDMA_WRITE_WITH_IMM,
            from,
            imm,
            rdma(to),
        )
    }

    /// Sends a message into a receive of the peer.
    ///
    /// # Safety
    ///
    /// See [`Batch`].
    ///
    /// # Errors
    ///
    /// See [`Batch::write`].
    pub unsafe fn send(&mut self, request: Request, from: &[Piece]) -> Result<(), Error> {
        self.push(request, raw::IBV_WR_SEND, from, 0, NOWHERE)
    }

    /// Sends a message into a receive of the peer, with the number `imm`.
    ///
    /// # Safety
    ///
    /// See [`Batch`].
    ///
    /// # Errors
    ///
    /// See [`Batch::write`].
    pub unsafe fn send_with_imm(
        &mut self,
        request: Request,
        from: &[Piece],
        imm: u32,
    ) -> Result<(), Error> {
        self.push(request, raw::IBV_WR_SEND_WITH_IMM, from, imm, NOWHERE)
    }

    /// Reads memory of the peer.
    ///
    /// # Safety
    ///
    /// See [`Batch`].
    ///
    /// # Errors
    ///
    /// See [`Batch::write`].
    pub unsafe fn read(
        &mut self,
        request: Request,
        into: &[Piece],
        from: Remote,
    ) -> Result<(), Error> {
        self.push(request, raw::IBV_WR_RDMA_READ, into, 0, rdma(from))
    }

    /// Adds to the eight bytes at `at`, which is a multiple of 8, and puts what was there into
    /// `into`, in this machine's order of bytes.
    ///
    /// # Safety
    ///
    /// See [`Batch`].
    ///
    /// # Errors
    ///
    /// See [`Batch::write`].
    pub unsafe fn fetch_add(
        &mut self,
        request: Request,
        into: Piece,
        at: Remote,
        add: u64,
    ) -> Result<(), Error> {
        let target = atomic(at, add, 0);
        self.push(
            request,
            raw::IBV_WR_ATOMIC_FETCH_AND_ADD,
            &[into],
            0,
            target,
        )
    }

    /// Replaces the eight bytes at `at`, which is a multiple of 8, by `new` if they are `old`, and
    /// puts what was there into `into`, in this machine's order of bytes.
    ///
    /// # Safety
    ///
    /// See [`Batch`].
    ///
    /// # Errors
    ///
    /// See [`Batch::write`].
    pub unsafe fn compare_swap(
        &mut self,
        request: Request,
        into: Piece,
        at: Remote,
        old: u64,
        new: u64,
    ) -> Result<(), Error> {
        let target = atomic(at, old, new);
        self.push(request, raw::IBV_WR_ATOMIC_CMP_AND_SWP, &[into], 0, target)
    }

    /// Writes a few bytes, which need not be registered, into memory of the peer.
    ///
    /// # Errors
    ///
    /// See [`Batch::write`].
    pub fn write_inline(
        &mut self,
        request: Request,
        data: &'b [u8],
        to: Remote,
    ) -> Result<(), Error> {
        self.push(
            request.inline(),
            raw::IBV_WR_RDMA_WRITE,
            &[unregistered(data)],
            0,
            rdma(to),
        )
    }

    /// Writes a few bytes, or none, which need not be registered, into memory of the peer, and ends
    /// a receive there with the number `imm`.
    ///
    /// # Errors
    ///
    /// See [`Batch::write`].
    pub fn write_inline_with_imm(
        &mut self,
        request: Request,
        data: &'b [u8],
        to: Remote,
        imm: u32,
    ) -> Result<(), Error> {
        let opcode = raw::IBV_WR_RDMA_WRITE_WITH_IMM;
        self.push(
            request.inline(),
            opcode,
            &[unregistered(data)],
            imm,
            rdma(to),
        )
    }

    /// Sends a message of a few bytes, which need not be registered, into a receive of the peer.
    ///
    /// # Errors
    ///
    /// See [`Batch::write`].
    pub fn send_inline(&mut self, request: Request, data: &'b [u8]) -> Result<(), Error> {
        self.push(
            request.inline(),
            raw::IBV_WR_SEND,
            &[unregistered(data)],
            0,
            NOWHERE,
        )
    }

    /// How many requests it has.
    pub fn len(&self) -> usize {
        self.pair.batch.sends.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it takes no more: post it, and start another.
    pub fn is_full(&self) -> bool {
        self.len() == self.pair.batch.sends.capacity()
    }

    /// Posts them all, in one call.
    ///
    /// # Errors
    ///
    /// The queue is full, or a request is not valid. Those before it were posted.
    pub fn post(self) -> Result<(), PostError> {
        let pair = self.pair;
        let requests = &mut pair.batch.sends;
        let count = requests.len();
        if count == 0 {
            return Ok(());
        }
        let first = requests.as_mut_ptr();
        let mut pieces = pair.batch.pieces.as_mut_ptr();
        for place in 0..count {
            // SAFETY: requests and their pieces lie one after the other; the last one's `next` is
            // null already.
            unsafe {
                let request = first.add(place);
                (*request).sg_list = pieces;
                pieces = pieces.add((*request).num_sge as usize);
                if place + 1 < count {
                    (*request).next = first.add(place + 1);
                }
            }
        }
        let mut bad = null_mut();
        // SAFETY: the queue pair lives; the requests are a list that ends, and whoever added one
        // promised that its memory is there.
        let errno = unsafe { (pair.post_send)(pair.raw(), first, &raw mut bad) };
        posted(pair, errno, "ibv_post_send", || {
            (0..count).position(|place| first.wrapping_add(place) == bad)
        })
    }

    #[inline]
    fn push(
        &mut self,
        request: Request,
        opcode: raw::ibv_wr_opcode,
        pieces: &[Piece],
        imm: u32,
        target: raw::ibv_send_wr__bindgen_ty_2,
    ) -> Result<(), Error> {
        check_id(request.id)?;
        self.push_any(request, opcode, pieces, imm, target)
    }

    /// As `push`, with numbers of the crate, too.
    #[inline]
    pub(crate) fn push_any(
        &mut self,
        request: Request,
        opcode: raw::ibv_wr_opcode,
        pieces: &[Piece],
        imm: u32,
        target: raw::ibv_send_wr__bindgen_ty_2,
    ) -> Result<(), Error> {
        let Pair {
            batch, capacity, ..
        } = &mut *self.pair;
        let full = batch.sends.len() == batch.sends.capacity();
        if full || pieces.len() > capacity.max_send_sge as usize {
            return Err(too_many(
                full,
                batch.sends.len(),
                pieces.len(),
                capacity.max_send_sge,
            ));
        }
        if request.flags & raw::IBV_SEND_INLINE != 0 {
            check_inline(pieces, capacity.max_inline_data)?;
        }
        batch.pieces.extend(pieces.iter().map(|piece| piece.0));
        // SAFETY: numbers and pointers, which may be zeros.
        let mut entry: raw::ibv_send_wr = unsafe { std::mem::zeroed() };
        entry.wr_id = request.id;
        entry.num_sge = pieces.len() as i32;
        entry.opcode = opcode;
        entry.send_flags = request.flags;
        entry.__bindgen_anon_1.imm_data = imm.to_be();
        entry.wr = target;
        batch.sends.push(entry);
        Ok(())
    }
}

/// Receives that are posted together, in their order, by [`ReceiveBatch::post`]. Dropping it posts
/// none of them.
#[must_use = "nothing is posted but by `post`"]
pub struct ReceiveBatch<'b> {
    pair: &'b mut Pair,
}

impl ReceiveBatch<'_> {
    /// Takes one message of the peer into memory here, or the number of a write with one, for which
    /// `into` may be empty. `id` comes back with its completion; it is less than 2^63.
    ///
    /// # Safety
    ///
    /// As for [`Batch`], with regard to the completion of this very receive.
    ///
    /// # Errors
    ///
    /// The batch is full, or the receive has too many pieces; it is left out then.
    #[inline]
    pub unsafe fn receive(&mut self, id: u64, into: &[Piece]) -> Result<(), Error> {
        check_id(id)?;
        self.push_any(id, into)
    }

    /// As `receive`, with numbers of the crate, too.
    #[inline]
    pub(crate) fn push_any(&mut self, id: u64, into: &[Piece]) -> Result<(), Error> {
        let Pair {
            batch, capacity, ..
        } = &mut *self.pair;
        let full = batch.receives.len() == batch.receives.capacity();
        if full || into.len() > capacity.max_recv_sge as usize {
            return Err(too_many(
                full,
                batch.receives.len(),
                into.len(),
                capacity.max_recv_sge,
            ));
        }
        batch.pieces.extend(into.iter().map(|piece| piece.0));
        batch.receives.push(raw::ibv_recv_wr {
            wr_id: id,
            next: null_mut(),
            sg_list: null_mut(),
            num_sge: into.len() as i32,
        });
        Ok(())
    }

    /// How many receives it has.
    pub fn len(&self) -> usize {
        self.pair.batch.receives.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it takes no more: post it, and start another.
    pub fn is_full(&self) -> bool {
        self.len() == self.pair.batch.receives.capacity()
    }

    /// Posts them all, in one call.
    ///
    /// # Errors
    ///
    /// The queue is full, or a receive is not valid. Those before it were posted.
    pub fn post(self) -> Result<(), PostError> {
        let pair = self.pair;
        let receives = &mut pair.batch.receives;
        let count = receives.len();
        if count == 0 {
            return Ok(());
        }
        let first = receives.as_mut_ptr();
        let mut pieces = pair.batch.pieces.as_mut_ptr();
        for place in 0..count {
            // SAFETY: as for the requests of a `Batch`.
            unsafe {
                let receive = first.add(place);
                (*receive).sg_list = pieces;
                pieces = pieces.add((*receive).num_sge as usize);
                if place + 1 < count {
                    (*receive).next = first.add(place + 1);
                }
            }
        }
        let mut bad = null_mut();
        // SAFETY: as for the requests of a `Batch`.
        let errno = unsafe { (pair.post_recv)(pair.raw(), first, &raw mut bad) };
        posted(pair, errno, "ibv_post_recv", || {
            (0..count).position(|place| first.wrapping_add(place) == bad)
        })
    }
}

/// A batch of which not all was posted.
#[derive(Debug, thiserror::Error)]
#[error("{error}; {posted} requests before it were posted")]
pub struct PostError {
    /// How many requests were posted, the first ones.
    pub posted: usize,
    /// What was wrong with the next one.
    #[source]
    pub error: Error,
}

fn posted(
    pair: &Pair,
    errno: i32,
    call: &'static str,
    failed: impl FnOnce() -> Option<usize>,
) -> Result<(), PostError> {
    if errno == 0 {
        return Ok(());
    }
    let error = failed_as(call, errno, pair, hints::post);
    Err(PostError {
        posted: failed().unwrap_or(0),
        error,
    })
}

pub(crate) const NOWHERE: raw::ibv_send_wr__bindgen_ty_2 = rdma(Remote { addr: 0, rkey: 0 });

pub(crate) const fn rdma(remote: Remote) -> raw::ibv_send_wr__bindgen_ty_2 {
    raw::ibv_send_wr__bindgen_ty_2 {
        rdma: raw::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
            remote_addr: remote.addr,
            rkey: remote.rkey,
        },
    }
}

pub(crate) const fn atomic(
    remote: Remote,
    compare_add: u64,
    swap: u64,
) -> raw::ibv_send_wr__bindgen_ty_2 {
    raw::ibv_send_wr__bindgen_ty_2 {
        atomic: raw::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
            remote_addr: remote.addr,
            compare_add,
            swap,
            rkey: remote.rkey,
        },
    }
}

/// Memory for an inline request, which needs no key. Longer ones are refused by their length.
fn unregistered(data: &[u8]) -> Piece {
    Piece::new(
        data.as_ptr() as u64,
        u32::try_from(data.len()).unwrap_or(u32::MAX),
        0,
    )
}

fn check_inline(pieces: &[Piece], most: u32) -> Result<(), Error> {
    let asked: u64 = pieces.iter().map(|piece| u64::from(piece.bytes())).sum();
    let most = u64::from(most);
    if asked > most {
        return Err(Error::Beyond {
            what: "the number of inline bytes",
            asked,
            most,
        });
    }
    Ok(())
}

fn check_id(asked: u64) -> Result<(), Error> {
    if asked >= OWN_IDS {
        let most = OWN_IDS - 1;
        return Err(Error::Beyond {
            what: "the number of a work request",
            asked,
            most,
        });
    }
    Ok(())
}

#[cold]
fn too_many(full: bool, requests: usize, pieces: usize, most_pieces: u32) -> Error {
    let (what, asked, most) = if full {
        (
            "the number of requests in a batch",
            requests as u64 + 1,
            requests as u64,
        )
    } else {
        (
            "the number of pieces of a request",
            pieces as u64,
            most_pieces.into(),
        )
    };
    Error::Beyond { what, asked, most }
}
