//! Batches of sends, writes, reads and atomics, which take memory by address.

use std::marker::PhantomData;

use crate::pair::{Pair, Rts};
use crate::post::{OWN_IDS, PostError, check_id};
use crate::{Error, Piece, QueuePair, Remote, raw};

/// The id and the flags of a work request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    id: u64,
    flags: raw::ibv_send_flags,
}

impl Request {
    /// A request without a completion, unless it fails. The completion returns `id`, which must be
    /// less than 2^63.
    pub const fn new(id: u64) -> Request {
        Request { id, flags: 0 }
    }

    /// Asks for a completion. Requests leave the queue only when a later completion is polled, so a
    /// request must be signalled at least once per queue depth.
    #[must_use]
    pub const fn signalled(self) -> Request {
        self.with(raw::IBV_SEND_SIGNALED)
    }

    /// Copies the data when the request is posted: its memory may be reused afterwards, and needs
    /// no key.
    #[must_use]
    pub const fn inline(self) -> Request {
        self.with(raw::IBV_SEND_INLINE)
    }

    /// Delays the request until all earlier reads and atomics have ended.
    #[must_use]
    pub const fn fenced(self) -> Request {
        self.with(raw::IBV_SEND_FENCE)
    }

    /// Also wakes a peer that waits for solicited requests only.
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

    /// A signalled request with an id that is reserved for the crate.
    pub(crate) const fn own(number: u64) -> Request {
        Request::new(OWN_IDS | number).signalled()
    }

    pub(crate) const fn id(self) -> u64 {
        self.id
    }
}

impl QueuePair<Rts> {
    /// Starts a batch of sends, writes, reads and atomics.
    pub fn batch(&mut self) -> Batch<'_> {
        self.pair.sends.clear();
        Batch {
            pair: &mut self.pair,
            data: PhantomData,
        }
    }
}

/// Work requests that [`Batch::post`] posts together, in order. Dropping the batch posts none of
/// them.
///
/// # The device and memory
///
/// From the post on, a device may access the memory that a request names. It has *released* the
/// memory after one of:
///
/// - the completion of the request, or of a later one of the same queue pair, has been polled;
/// - the queue pair has been destroyed or reset;
/// - the memory's region has been deregistered.
///
/// The memory of [inline](Request::inline) requests is released by the post itself. The error
/// state of a queue pair releases nothing.
#[must_use = "nothing is posted but by `post`"]
pub struct Batch<'b> {
    pair: &'b mut Pair,
    data: PhantomData<&'b [u8]>,
}

impl<'b> Batch<'b> {
    /// Writes to the peer's memory.
    ///
    /// # Safety
    ///
    /// Until the device has [released](Batch) it, the memory of `from` stays mapped, and nothing
    /// changes it.
    ///
    /// # Errors
    ///
    /// The batch is full, or the request has too many pieces or inline bytes. It is not added.
    pub unsafe fn write(
        &mut self,
        request: Request,
        from: &[Piece],
        to: Remote,
    ) -> Result<(), Error> {
        self.push(request, raw::IBV_WR_RDMA_WRITE, from, 0, rdma(to))
    }

    /// Writes to the peer's memory, and completes a receive there with the immediate value `imm`.
    ///
    /// # Safety
    ///
    /// Until the device has [released](Batch) it, the memory of `from` stays mapped, and nothing
    /// changes it.
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

    /// Sends a message to a receive of the peer.
    ///
    /// # Safety
    ///
    /// Until the device has [released](Batch) it, the memory of `from` stays mapped, and nothing
    /// changes it.
    ///
    /// # Errors
    ///
    /// See [`Batch::write`].
    pub unsafe fn send(&mut self, request: Request, from: &[Piece]) -> Result<(), Error> {
        self.push(request, raw::IBV_WR_SEND, from, 0, NOWHERE)
    }

    /// Sends a message to a receive of the peer, with the immediate value `imm`.
    ///
    /// # Safety
    ///
    /// Until the device has [released](Batch) it, the memory of `from` stays mapped, and nothing
    /// changes it.
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

    /// Reads the peer's memory.
    ///
    /// # Safety
    ///
    /// Until the device has [released](Batch) it, the memory of `into` stays mapped, and nothing
    /// else accesses it.
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

    /// Adds to the eight bytes at `at`, a multiple of 8, and stores the old value in `into`, in
    /// this machine's byte order.
    ///
    /// # Safety
    ///
    /// Until the device has [released](Batch) it, the memory of `into` stays mapped, and nothing
    /// else accesses it.
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

    /// Replaces the eight bytes at `at`, a multiple of 8, by `new` if they equal `old`, and stores
    /// the old value in `into`, in this machine's byte order.
    ///
    /// # Safety
    ///
    /// Until the device has [released](Batch) it, the memory of `into` stays mapped, and nothing
    /// else accesses it.
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

    /// Writes a few bytes to the peer's memory. They need not be registered.
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

    /// Writes a few bytes, or none, to the peer's memory, and completes a receive there with the
    /// immediate value `imm`. The bytes need not be registered.
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

    /// Sends a message of a few bytes to a receive of the peer. They need not be registered.
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

    /// The number of requests.
    pub fn len(&self) -> usize {
        self.pair.sends.len()
    }

    /// Whether it has no requests.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is full: post it and start another.
    pub fn is_full(&self) -> bool {
        self.pair.sends.is_full()
    }

    /// Posts all of them in one call.
    ///
    /// # Errors
    ///
    /// The queue is full, or a request is not valid. Those before it were posted.
    pub fn post(self) -> Result<(), PostError> {
        let (post, pair) = (self.pair.post_send, self.pair.raw());
        // SAFETY: the batch borrows the queue pair, so it lives, and `post` is its function.
        // Callers of the unsafe functions have promised that the memory stays valid, inline data
        // are borrowed by the batch, and `Requests` owns the buffers that it adds by `push_any`.
        let posted = unsafe { self.pair.sends.post(post, pair) };
        posted.map_err(|error| PostError::new("ibv_post_send", error, &*self.pair))
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

    /// Adds a request; the id may be one of those reserved for the crate.
    #[inline]
    pub(crate) fn push_any(
        &mut self,
        request: Request,
        opcode: raw::ibv_wr_opcode,
        pieces: &[Piece],
        imm: u32,
        target: raw::ibv_send_wr__bindgen_ty_2,
    ) -> Result<(), Error> {
        if request.flags & raw::IBV_SEND_INLINE != 0 {
            check_inline(pieces, self.pair.capacity.max_inline_data)?;
        }
        // SAFETY: `ibv_send_wr` holds only integers, raw pointers and unions of these, for which
        // zeros are valid.
        let mut entry: raw::ibv_send_wr = unsafe { std::mem::zeroed() };
        entry.wr_id = request.id;
        entry.num_sge = pieces.len() as i32;
        entry.opcode = opcode;
        entry.send_flags = request.flags;
        entry.__bindgen_anon_1.imm_data = imm.to_be();
        entry.wr = target;
        self.pair.sends.push(entry, pieces)
    }
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

/// Memory of an inline request, which needs no key. A length beyond `u32` is clamped, and
/// `check_inline` then refuses it.
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
