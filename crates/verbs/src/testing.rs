//! A stand-in for libibverbs, in this process, for tests and measurements on machines without a
//! device: what a device would do at once is done, and nothing is sent.
//!
//! Its only device, `null0`, takes all that is posted; what is signalled completes at once, well,
//! or as [`end_as`] says.

mod calls;
mod posts;

use std::cell::Cell;

use nix::errno::Errno;

use crate::library::Api;
use crate::{Library, Piece, QueuePair, Remote, Status, raw};

/// The stand-in.
pub fn library() -> Library {
    Library { api: &CURRENT }
}

const API: Api = Api {
    ibv_get_device_list: calls::get_device_list,
    ibv_free_device_list: calls::free_device_list,
    ibv_get_device_name: calls::get_device_name,
    ibv_get_device_guid: calls::get_device_guid,
    ibv_open_device: calls::open_device,
    ibv_close_device: calls::close_device,
    ibv_query_device: calls::query_device,
    ibv_query_port: calls::query_port,
    ibv_get_async_event: calls::get_async_event,
    ibv_ack_async_event: calls::ack_async_event,
    ibv_alloc_pd: calls::alloc_pd,
    ibv_dealloc_pd: calls::dealloc_pd,
    ibv_reg_mr: calls::reg_mr,
    ibv_dereg_mr: calls::dereg_mr,
    ibv_create_comp_channel: calls::create_comp_channel,
    ibv_destroy_comp_channel: calls::destroy_comp_channel,
    ibv_get_cq_event: calls::get_cq_event,
    ibv_ack_cq_events: calls::ack_cq_events,
    ibv_create_cq: calls::create_cq,
    ibv_destroy_cq: calls::destroy_cq,
    ibv_create_qp: calls::create_qp,
    ibv_modify_qp: calls::modify_qp,
    ibv_query_qp: calls::query_qp,
    ibv_destroy_qp: calls::destroy_qp,
    ibv_reg_mr_iova2: Some(calls::reg_mr_iova2),
    _ibv_query_gid_table: Some(calls::query_gid_table),
    ibv_reg_dmabuf_mr: Some(calls::reg_dmabuf_mr),
};

static CURRENT: Api = API;
static OLD: Api = Api {
    ibv_reg_mr_iova2: None,
    _ibv_query_gid_table: None,
    ibv_reg_dmabuf_mr: None,
    ..API
};

/// The same, as old as the oldest that works.
pub fn old_library() -> Library {
    Library { api: &OLD }
}

thread_local! {
    static FAILURE: Cell<Option<(usize, i32)>> = const { Cell::new(None) };
    static KEEPS: Cell<i32> = const { Cell::new(0) };
    static HOLDS: Cell<bool> = const { Cell::new(false) };
    static ENDS_AS: Cell<Option<Status>> = const { Cell::new(None) };
    static REGISTRATION: Cell<Option<Registration>> = const { Cell::new(None) };
}

/// Makes the next registration, change of state or post of this thread fail with an error number;
/// a post at its `place`th request, from 0 on.
pub fn fail_next(place: usize, errno: i32) {
    FAILURE.set(Some((place, errno)));
}

/// Whether the next call is to fail, and at which request.
fn failure() -> Option<(usize, i32)> {
    FAILURE.take().inspect(|&(_, errno)| Errno::set_raw(errno))
}

/// Makes the device keep the queue pairs that this thread wants destroyed, with that error number; 0 is for not at all.
pub fn keep_pairs(errno: i32) {
    KEEPS.set(errno);
}

/// Makes what this thread sends never end.
pub fn hold(holds: bool) {
    HOLDS.set(holds);
}

/// Makes all that this thread posts end so; `None` is well.
pub fn end_as(status: Option<Status>) {
    ENDS_AS.set(status);
}

/// What a region was registered with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Registration {
    /// The address of memory of the host, or the offset in a dma-buf.
    pub start: u64,
    /// The length.
    pub bytes: usize,
    /// The address for work requests.
    pub iova: u64,
    /// The dma-buf's descriptor.
    pub fd: Option<i32>,
    /// The access flags, as libibverbs has them.
    pub access: u32,
}

/// What this thread registered last.
pub fn last_registration() -> Option<Registration> {
    REGISTRATION.get()
}

/// A work request that was posted.
#[derive(Clone, Debug)]
pub struct Posted {
    /// Its number.
    pub wr_id: u64,
    /// Its opcode, as libibverbs has it; none for a receive.
    pub opcode: Option<raw::ibv_wr_opcode>,
    /// Its flags, as libibverbs has them.
    pub flags: u32,
    /// Its number for the peer.
    pub imm: u32,
    /// Its first pieces.
    pub pieces: [Option<Piece>; 4],
    /// The peer's memory.
    pub remote: Remote,
}

/// What the last post on a queue pair of the stand-in handed over; nothing, if it is of another.
pub fn last_posted<S>(pair: &QueuePair<S>) -> Vec<Posted> {
    let api = pair.domain().context().api();
    if !std::ptr::eq(api, &raw const CURRENT) && !std::ptr::eq(api, &raw const OLD) {
        return Vec::new();
    }
    // SAFETY: the queue pair is of the stand-in, which has this behind it, and is borrowed.
    unsafe { (*pair.pair.raw().cast::<posts::NullPair>()).posted.clone() }
}
