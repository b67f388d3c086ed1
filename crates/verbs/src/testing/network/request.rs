//! Requests posted by a user.

use std::ops::Range;

use super::memory::Span;
use crate::raw;

/// A request that a user has posted.
pub(super) struct Request {
    pub(super) id: u64,
    opcode: raw::ibv_wr_opcode,
    flags: raw::ibv_send_flags,
    pub(super) imm: u32,
    /// How many pieces the request has; more than one is refused.
    pieces: i32,
    data: Data,
    remote: u64,
    key: u32,
}

/// The data that it sends, or the place of the data that it reads.
pub(super) enum Data {
    /// Copied when it was posted.
    Inline(Vec<u8>),
    At(Span),
    None,
}

impl Request {
    /// # Safety
    ///
    /// The request is valid, and of a kind that names a peer's memory or carries nothing.
    pub(super) unsafe fn of(request: &raw::ibv_send_wr) -> Self {
        // SAFETY: the union holds integers, and requests that name a peer's memory name it there;
        // for others, it is not used.
        let target = unsafe { request.wr.rdma };
        // SAFETY: `sg_list` has `num_sge` pieces in every valid request.
        let piece = (request.num_sge == 1).then(|| unsafe { *request.sg_list });
        let is_inline = request.send_flags & raw::IBV_SEND_INLINE != 0;
        Self {
            id: request.wr_id,
            opcode: request.opcode,
            flags: request.send_flags,
            // SAFETY: both fields of the union are 32-bit integers.
            imm: unsafe { request.__bindgen_anon_1.imm_data },
            pieces: request.num_sge,
            data: match piece {
                None => Data::None,
                // SAFETY: during the call that posts an inline request, the user keeps its memory
                // readable.
                Some(piece) if is_inline => Data::Inline(unsafe { inline(piece) }),
                Some(piece) => Data::At(Span {
                    key: piece.lkey,
                    addr: piece.addr,
                    bytes: piece.length as usize,
                }),
            },
            remote: target.remote_addr,
            key: target.rkey,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match &self.data {
            Data::Inline(bytes) => bytes.len(),
            Data::At(span) => span.bytes,
            Data::None => 0,
        }
    }

    pub(super) fn is_signalled(&self) -> bool {
        self.flags & raw::IBV_SEND_SIGNALED != 0
    }

    pub(super) fn is_read(&self) -> bool {
        self.opcode == raw::IBV_WR_RDMA_READ
    }

    /// Whether it may begin only after earlier reads have ended.
    pub(super) fn is_behind_reads(&self) -> bool {
        self.is_read() || self.flags & raw::IBV_SEND_FENCE != 0
    }

    /// The access that the peer must allow.
    pub(super) fn needs(&self) -> Result<u32, raw::ibv_wc_status> {
        match self.opcode {
            _ if self.pieces > 1 => Err(raw::IBV_WC_LOC_QP_OP_ERR),
            raw::IBV_WR_RDMA_READ => Ok(raw::IBV_ACCESS_REMOTE_READ),
            raw::IBV_WR_RDMA_WRITE | raw::IBV_WR_RDMA_WRITE_WITH_IMM => {
                Ok(raw::IBV_ACCESS_REMOTE_WRITE)
            }
            raw::IBV_WR_SEND_WITH_IMM if self.bytes() == 0 => Ok(0),
            _ => Err(raw::IBV_WC_LOC_QP_OP_ERR),
        }
    }

    /// A part of the data sent, or of the place for the data read.
    pub(super) fn here(&self, part: Range<usize>) -> Data {
        match &self.data {
            Data::Inline(bytes) => Data::Inline(bytes[part].to_vec()),
            Data::At(span) => Data::At(span.part(part)),
            Data::None => Data::None,
        }
    }

    /// A part of the peer's memory.
    pub(super) fn there(&self, part: Range<usize>) -> Span {
        let all = Span {
            key: self.key,
            addr: self.remote,
            bytes: self.bytes(),
        };
        all.part(part)
    }

    /// The opcode of its arrival at the peer, if it has one.
    pub(super) fn arrives_as(&self) -> Option<raw::ibv_wc_opcode> {
        match self.opcode {
            raw::IBV_WR_RDMA_WRITE_WITH_IMM => Some(raw::IBV_WC_RECV_RDMA_WITH_IMM),
            raw::IBV_WR_SEND_WITH_IMM => Some(raw::IBV_WC_RECV),
            _ => None,
        }
    }

    pub(super) fn ends_as(&self) -> raw::ibv_wc_opcode {
        match self.opcode {
            raw::IBV_WR_RDMA_READ => raw::IBV_WC_RDMA_READ,
            raw::IBV_WR_RDMA_WRITE | raw::IBV_WR_RDMA_WRITE_WITH_IMM => raw::IBV_WC_RDMA_WRITE,
            _ => raw::IBV_WC_SEND,
        }
    }
}

/// # Safety
///
/// The piece's memory may be read.
unsafe fn inline(piece: raw::ibv_sge) -> Vec<u8> {
    let start = std::ptr::with_exposed_provenance::<u8>(piece.addr as usize);
    // SAFETY: the memory may be read during this call, as this function requires.
    unsafe { std::slice::from_raw_parts(start, piece.length as usize) }.to_vec()
}
