//! The fake's posting and polling functions.
//!
//! # Safety
//!
//! Every function here requires the arguments that the function of the same name in libibverbs
//! requires, with objects that were made by the functions of `calls`.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem::zeroed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{ENDS_AS, HOLDS, Posted, failure};
use crate::{Piece, Remote, Status, raw};

#[repr(C)]
pub(super) struct NullQueue {
    pub(super) queue: raw::ibv_cq,
    pub(super) ended: Mutex<VecDeque<raw::ibv_wc>>,
}

#[repr(C)]
pub(super) struct NullPair {
    pub(super) pair: raw::ibv_qp,
    pub(super) capacity: raw::ibv_qp_cap,
    pub(super) posted: Vec<Posted>,
}

pub(super) unsafe extern "C" fn poll_cq(
    queue: *mut raw::ibv_cq,
    most: c_int,
    into: *mut raw::ibv_wc,
) -> c_int {
    // SAFETY: `ibv_poll_cq` demands of its caller that the queue exists: `create_cq` boxed it as
    // the first field of a `NullQueue`, which is `repr(C)`. Only shared references to it are made.
    let queue = unsafe { &*queue.cast::<NullQueue>() };
    let mut ended = lock(&queue.ended);
    let count = ended.len().min(most as usize);
    for (place, completion) in ended.drain(..count).enumerate() {
        // SAFETY: `ibv_poll_cq` demands of its caller that `into` has room for `most` completions.
        // `place` is less than that.
        unsafe { *into.add(place) = completion };
    }
    count as c_int
}

pub(super) unsafe extern "C" fn post_send(
    pair: *mut raw::ibv_qp,
    request: *mut raw::ibv_send_wr,
    bad: *mut *mut raw::ibv_send_wr,
) -> c_int {
    let failure = failure();
    // SAFETY: the queue pair exists: `create_qp` boxed it as the first field of a `NullPair`, which
    // is `repr(C)`. Nothing else uses it meanwhile: `QueuePair` borrows it exclusively in order to
    // post.
    let pair = unsafe { &mut *pair.cast::<NullPair>() };
    pair.posted.clear();
    let take = |entry: &raw::ibv_send_wr| {
        fails_at(failure, pair.posted.len())?;
        pair.posted.push(sent(entry));
        if entry.send_flags & raw::IBV_SEND_SIGNALED != 0 && !HOLDS.get() {
            end(
                pair.pair.send_cq,
                &pair.pair,
                entry.wr_id,
                completes_as(entry.opcode),
            );
        }
        Ok(())
    };
    // SAFETY: `ibv_post_send` demands of its caller that the requests are initialised, stay
    // unchanged during the call and end with null, and `bad` may be written.
    unsafe { each(request, |request| request.next, bad, take) }
}

pub(super) unsafe extern "C" fn post_recv(
    pair: *mut raw::ibv_qp,
    receive: *mut raw::ibv_recv_wr,
    bad: *mut *mut raw::ibv_recv_wr,
) -> c_int {
    let failure = failure();
    // SAFETY: the queue pair exists: `create_qp` boxed it as the first field of a `NullPair`, which
    // is `repr(C)`. Nothing else uses it meanwhile: `QueuePair` borrows it exclusively in order to
    // post.
    let pair = unsafe { &mut *pair.cast::<NullPair>() };
    pair.posted.clear();
    let take = |entry: &raw::ibv_recv_wr| {
        fails_at(failure, pair.posted.len())?;
        pair.posted.push(Posted {
            wr_id: entry.wr_id,
            opcode: None,
            flags: 0,
            imm: 0,
            // SAFETY: `sg_list` has `num_sge` pieces in every valid request.
            pieces: unsafe { pieces(entry.sg_list, entry.num_sge) },
            remote: Remote { addr: 0, rkey: 0 },
        });
        // Receives complete only if a test has set a status for them.
        if ENDS_AS.get().is_some() {
            end(pair.pair.recv_cq, &pair.pair, entry.wr_id, raw::IBV_WC_RECV);
        }
        Ok(())
    };
    // SAFETY: `ibv_post_recv` demands of its caller that the receives are initialised, stay
    // unchanged during the call and end with null, and `bad` may be written.
    unsafe { each(receive, |receive| receive.next, bad, take) }
}

/// The error of the request at this place of a post that is to fail there.
fn fails_at(failure: Option<(usize, c_int)>, place: usize) -> Result<(), c_int> {
    match failure {
        Some((at, errno)) if at == place => Err(errno),
        _ => Ok(()),
    }
}

/// Gives `take` the entries of a posted list, until it refuses one with an error number: sets `bad`
/// to that one, and returns the number, or else 0.
///
/// # Safety
///
/// `first` and all that `next` gives are null, or initialised and unchanged during the call. `bad`
/// may be written.
pub(super) unsafe fn each<T>(
    first: *mut T,
    next: impl Fn(&T) -> *mut T,
    bad: *mut *mut T,
    mut take: impl FnMut(&T) -> Result<(), c_int>,
) -> c_int {
    let mut place = first;
    // SAFETY: the place is null, or that of an initialised entry, as this function requires.
    while let Some(entry) = unsafe { place.as_ref() } {
        if let Err(errno) = take(entry) {
            // SAFETY: `bad` may be written, as this function requires.
            unsafe { *bad = place };
            return errno;
        }
        place = next(entry);
    }
    0
}

fn sent(request: &raw::ibv_send_wr) -> Posted {
    // SAFETY: both forms of the target hold only integers and are fully initialised; the opcode
    // says which one is in use.
    let (remote_addr, rkey) = unsafe {
        match request.opcode {
            raw::IBV_WR_ATOMIC_CMP_AND_SWP | raw::IBV_WR_ATOMIC_FETCH_AND_ADD => {
                (request.wr.atomic.remote_addr, request.wr.atomic.rkey)
            }
            _ => (request.wr.rdma.remote_addr, request.wr.rdma.rkey),
        }
    };
    Posted {
        wr_id: request.wr_id,
        opcode: Some(request.opcode),
        flags: request.send_flags,
        // SAFETY: both fields of the union are 32-bit integers.
        imm: u32::from_be(unsafe { request.__bindgen_anon_1.imm_data }),
        // SAFETY: `sg_list` has `num_sge` pieces in every valid request.
        pieces: unsafe { pieces(request.sg_list, request.num_sge) },
        remote: Remote {
            addr: remote_addr,
            rkey,
        },
    }
}

/// # Safety
///
/// `count` pieces start at `first`.
unsafe fn pieces(first: *const raw::ibv_sge, count: c_int) -> [Option<Piece>; 4] {
    let mut pieces = [None; 4];
    for (place, piece) in pieces.iter_mut().enumerate().take(count as usize) {
        // SAFETY: `place` is less than `count`, and this function requires that `count` pieces
        // start at `first`.
        *piece = Some(Piece(unsafe { *first.add(place) }));
    }
    pieces
}

fn completes_as(opcode: raw::ibv_wr_opcode) -> raw::ibv_wc_opcode {
    match opcode {
        raw::IBV_WR_RDMA_WRITE | raw::IBV_WR_RDMA_WRITE_WITH_IMM => raw::IBV_WC_RDMA_WRITE,
        raw::IBV_WR_RDMA_READ => raw::IBV_WC_RDMA_READ,
        raw::IBV_WR_ATOMIC_CMP_AND_SWP => raw::IBV_WC_COMP_SWAP,
        raw::IBV_WR_ATOMIC_FETCH_AND_ADD => raw::IBV_WC_FETCH_ADD,
        _ => raw::IBV_WC_SEND,
    }
}

fn end(queue: *mut raw::ibv_cq, pair: &raw::ibv_qp, wr_id: u64, opcode: raw::ibv_wc_opcode) {
    let status = ENDS_AS.get().map_or(raw::IBV_WC_SUCCESS, Status::number);
    // SAFETY: a queue pair's queues exist as long as the queue pair. `create_cq` boxed them as the
    // first field of a `NullQueue`, which is `repr(C)`.
    let queue = unsafe { &*queue.cast::<NullQueue>() };
    lock(&queue.ended).push_back(completion(wr_id, pair.qp_num, opcode, status));
}

pub(super) fn completion(
    id: u64,
    pair: u32,
    opcode: raw::ibv_wc_opcode,
    status: raw::ibv_wc_status,
) -> raw::ibv_wc {
    // SAFETY: `ibv_wc` holds only integers and unions of integers, for which zeros are valid.
    let mut completion: raw::ibv_wc = unsafe { zeroed() };
    completion.wr_id = id;
    completion.qp_num = pair;
    completion.opcode = opcode;
    completion.status = status;
    completion
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
