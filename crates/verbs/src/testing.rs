//! A fake libibverbs in this process, for tests and measurements on machines without a device. It
//! does at once what a device would do, and sends nothing.
//!
//! Its only device, `null0`, accepts every post. Signalled requests complete at once, with success
//! or as set by [`end_as`].

mod calls;
mod network;
mod posts;

use std::cell::Cell;

pub use network::{cut, network, refuse_dmabufs, settle};
use nix::errno::Errno;

use crate::library::Api;
use crate::{Library, Piece, QueuePair, Remote, Status, raw};

/// The fake library.
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

/// The fake library as the oldest supported version.
pub fn old_library() -> Library {
    Library { api: &OLD }
}

thread_local! {
    static FAILURE: Cell<Option<(usize, i32)>> = const { Cell::new(None) };
    static KEEPS: Cell<i32> = const { Cell::new(0) };
    static HOLDS: Cell<bool> = const { Cell::new(false) };
    static ENDS_AS: Cell<Option<Status>> = const { Cell::new(None) };
    static REGISTRATION: Cell<Option<Registration>> = const { Cell::new(None) };
    static EXISTING: Cell<i32> = const { Cell::new(0) };
}

/// Makes the next registration, state transition or post of this thread fail with `errno`. A post
/// fails at its request number `place`, counted from 0.
pub fn fail_next(place: usize, errno: i32) {
    FAILURE.set(Some((place, errno)));
}

/// Whether the next call is to fail, and at which request.
fn failure() -> Option<(usize, i32)> {
    FAILURE.take().inspect(|&(_, errno)| Errno::set_raw(errno))
}

/// Makes the device refuse to destroy queue pairs of this thread, with this error number; 0
/// switches this off.
pub fn keep_pairs(errno: i32) {
    KEEPS.set(errno);
}

/// Keeps requests that this thread sends from completing.
pub fn hold(holds: bool) {
    HOLDS.set(holds);
}

/// Makes all requests of this thread complete with this status; `None` is success.
pub fn end_as(status: Option<Status>) {
    ENDS_AS.set(status);
}

/// How many completion queues and queue pairs this thread has created and not destroyed.
pub fn existing() -> i32 {
    EXISTING.get()
}

/// The arguments of a registration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Registration {
    /// The address of host memory, or the offset in a dma-buf.
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

/// This thread's last registration.
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
    /// Its immediate value.
    pub imm: u32,
    /// Its first four pieces.
    pub pieces: [Option<Piece>; 4],
    /// The peer's memory.
    pub remote: Remote,
}

/// The requests of the last post on a queue pair of the fake; empty for a queue pair of another
/// library.
pub fn last_posted<S>(pair: &QueuePair<S>) -> Vec<Posted> {
    let api = pair.domain().context().api();
    if !std::ptr::eq(api, &raw const CURRENT) && !std::ptr::eq(api, &raw const OLD) {
        return Vec::new();
    }
    // SAFETY: the functions are the fake's, so `create_qp` made the queue pair as the first field
    // of a `NullPair`. It is alive, because it is borrowed, and posting borrows it exclusively.
    unsafe { (*pair.pair.raw().cast::<posts::NullPair>()).posted.clone() }
}
