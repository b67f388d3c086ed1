//! The fake's versions of libibverbs' functions. Its objects are plain memory.
//!
//! # Safety
//!
//! Every function here requires the arguments that the function of the same name in libibverbs
//! requires, with objects that were made by the functions here.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::zeroed;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use nix::errno::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::posts::{NullPair, NullQueue, poll_cq, post_recv, post_send};
use super::{EXISTING, KEEPS, REGISTRATION, Registration, failure};
use crate::{Gid, raw};

/// Numbers queue pairs and regions. Only the number is shared, so relaxed ordering is enough.
static NUMBERS: AtomicU32 = AtomicU32::new(0x100);

pub(super) fn number() -> u32 {
    NUMBERS.fetch_add(1, Ordering::Relaxed) & 0xff_ffff
}

#[repr(C)]
struct NullContext {
    context: raw::ibv_context,
    /// Keeps the pipe of events open. Nothing is written to it.
    _events: OwnedFd,
}

#[repr(C)]
pub(super) struct NullChannel {
    channel: raw::ibv_comp_channel,
    /// The pipe of notifications. This device writes nothing to it.
    pub(super) events: Arc<OwnedFd>,
}

pub(super) fn boxed<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// # Safety
///
/// `pointer` is from [`boxed`] and has not been freed.
pub(super) unsafe fn free<T>(pointer: *mut T) -> c_int {
    // SAFETY: `pointer` came from `Box::into_raw` in `boxed`, and this is the only call that frees
    // it: this function requires that.
    drop(unsafe { Box::from_raw(pointer) });
    0
}

pub(super) unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut raw::ibv_device {
    // SAFETY: `ibv_get_device_list` demands of its caller that `count` points to a number that may
    // be written.
    unsafe { *count = 1 };
    boxed(boxed(0_u64).cast::<raw::ibv_device>())
}

pub(super) unsafe extern "C" fn free_device_list(list: *mut *mut raw::ibv_device) {
    // SAFETY: the list is from `get_device_list` and is freed once: it boxed the list, and the only
    // device in it as a `u64`.
    unsafe {
        free((*list).cast::<u64>());
        free(list);
    }
}

pub(super) unsafe extern "C" fn get_device_name(_: *mut raw::ibv_device) -> *const c_char {
    c"null0".as_ptr()
}

pub(super) unsafe extern "C" fn get_device_guid(_: *mut raw::ibv_device) -> u64 {
    0x0102_0304_0506_0708_u64.to_be()
}

pub(super) unsafe extern "C" fn open_device(device: *mut raw::ibv_device) -> *mut raw::ibv_context {
    let Ok((reader, writer)) = pipe_with(PipeFlags::CLOEXEC) else {
        return null_mut();
    };
    // SAFETY: `ibv_context` holds integers, pointers and optional function pointers, for which
    // zeros are valid, and a mutex that is not used.
    let mut context: raw::ibv_context = unsafe { zeroed() };
    context.device = device;
    context.async_fd = reader.into_raw_fd();
    context.ops.poll_cq = Some(poll_cq);
    context.ops.req_notify_cq = Some(req_notify_cq);
    context.ops.post_send = Some(post_send);
    context.ops.post_recv = Some(post_recv);
    boxed(NullContext {
        context,
        _events: writer,
    })
    .cast()
}

pub(super) unsafe extern "C" fn close_device(context: *mut raw::ibv_context) -> c_int {
    // SAFETY: the context is open and is closed once. `open_device` boxed it as the first field of
    // a `NullContext`, which is `repr(C)`, and gave it the descriptor, which nothing else closes.
    unsafe {
        libc::close((*context).async_fd);
        free(context.cast::<NullContext>())
    }
}

pub(super) unsafe extern "C" fn query_device(
    _: *mut raw::ibv_context,
    device: *mut raw::ibv_device_attr,
) -> c_int {
    // SAFETY: `ibv_query_device` demands of its caller that `device` points to initialised
    // attributes that nothing else uses during the call.
    let device = unsafe { &mut *device };
    device.phys_port_cnt = 1;
    device.max_qp = 1 << 10;
    device.max_qp_wr = 1 << 14;
    device.max_sge = 4;
    device.max_cq = 1 << 10;
    device.max_cqe = 1 << 20;
    device.max_mr = 1 << 10;
    device.max_mr_size = 1 << 40;
    device.max_qp_rd_atom = 16;
    device.max_qp_init_rd_atom = 16;
    device.atomic_cap = raw::IBV_ATOMIC_HCA;
    0
}

pub(super) unsafe extern "C" fn query_port(
    _: *mut raw::ibv_context,
    number: u8,
    port: *mut raw::_compat_ibv_port_attr,
) -> c_int {
    if number != 1 {
        return libc::EINVAL;
    }
    // SAFETY: `ibv_query_port` demands of its caller that `port` points to an initialised
    // `ibv_port_attr` under the name of its leading part, which nothing else uses during the call.
    let port = unsafe { &mut *port.cast::<raw::ibv_port_attr>() };
    port.state = raw::IBV_PORT_ACTIVE;
    port.max_mtu = raw::IBV_MTU_4096;
    port.active_mtu = raw::IBV_MTU_4096;
    port.gid_tbl_len = 4;
    port.max_msg_sz = 1 << 31;
    port.active_width = 2;
    port.active_speed = 64;
    port.link_layer = 2;
    0
}

pub(super) unsafe extern "C" fn query_gid_table(
    _: *mut raw::ibv_context,
    entries: *mut raw::ibv_gid_entry,
    most: usize,
    _flags: u32,
    _entry_bytes: usize,
) -> isize {
    let gids = [
        Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
        Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 1)),
    ];
    for (index, gid) in gids.iter().enumerate().take(most) {
        // SAFETY: `ibv_query_gid_table` demands of its caller that `entries` has room for `most`.
        // `index` is less than that.
        unsafe {
            *entries.add(index) = raw::ibv_gid_entry {
                gid: raw::ibv_gid { raw: gid.0 },
                gid_index: index as u32,
                port_num: 1,
                gid_type: raw::IBV_GID_TYPE_ROCE_V2,
                ndev_ifindex: 0,
            };
        }
    }
    gids.len().min(most) as isize
}

pub(super) unsafe extern "C" fn get_async_event(
    _: *mut raw::ibv_context,
    _: *mut raw::ibv_async_event,
) -> c_int {
    Errno::EAGAIN.set();
    -1
}

pub(super) unsafe extern "C" fn ack_async_event(_: *mut raw::ibv_async_event) {}

pub(super) unsafe extern "C" fn alloc_pd(context: *mut raw::ibv_context) -> *mut raw::ibv_pd {
    boxed(raw::ibv_pd { context, handle: 0 })
}

pub(super) unsafe extern "C" fn dealloc_pd(domain: *mut raw::ibv_pd) -> c_int {
    // SAFETY: the domain is from `alloc_pd`, which boxed it, and is freed once.
    unsafe { free(domain) }
}

/// # Safety
///
/// `domain` is from [`alloc_pd`] and has not been freed.
unsafe fn register(domain: *mut raw::ibv_pd, registration: Registration) -> *mut raw::ibv_mr {
    if failure().is_some() {
        return null_mut();
    }
    REGISTRATION.set(Some(registration));
    boxed(raw::ibv_mr {
        // SAFETY: `domain` is from `alloc_pd`, which boxes it, and is freed only once nothing is
        // registered there.
        context: unsafe { (*domain).context },
        pd: domain,
        addr: without_provenance_mut(registration.start as usize),
        length: registration.bytes,
        handle: 0,
        lkey: number(),
        rkey: number(),
    })
}

pub(super) unsafe extern "C" fn reg_mr(
    domain: *mut raw::ibv_pd,
    start: *mut c_void,
    bytes: usize,
    access: c_int,
) -> *mut raw::ibv_mr {
    // SAFETY: `ibv_reg_mr` demands of its caller that `domain` is from `alloc_pd` and has not been
    // freed. `reg_mr_iova2` needs no more: it does not access the memory.
    unsafe { reg_mr_iova2(domain, start, bytes, start as u64, access as u32) }
}

pub(super) unsafe extern "C" fn reg_mr_iova2(
    domain: *mut raw::ibv_pd,
    start: *mut c_void,
    bytes: usize,
    iova: u64,
    access: c_uint,
) -> *mut raw::ibv_mr {
    let start = start as u64;
    // SAFETY: `domain` is from `alloc_pd`, which boxes it, and is freed only once nothing is
    // registered there.
    unsafe {
        register(
            domain,
            Registration {
                start,
                bytes,
                iova,
                fd: None,
                access,
            },
        )
    }
}

pub(super) unsafe extern "C" fn reg_dmabuf_mr(
    domain: *mut raw::ibv_pd,
    offset: u64,
    bytes: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut raw::ibv_mr {
    if fd < 0 {
        Errno::EBADF.set();
        return null_mut();
    }
    let access = access as u32;
    let registration = Registration {
        start: offset,
        bytes,
        iova,
        fd: Some(fd),
        access,
    };
    // SAFETY: `domain` is from `alloc_pd`, which boxes it, and is freed only once nothing is
    // registered there.
    unsafe { register(domain, registration) }
}

pub(super) unsafe extern "C" fn dereg_mr(region: *mut raw::ibv_mr) -> c_int {
    if let Some((_, errno)) = failure() {
        return errno;
    }
    // SAFETY: the region is from `register`, which boxed it, and is freed once.
    unsafe { free(region) }
}

pub(super) unsafe extern "C" fn create_comp_channel(
    context: *mut raw::ibv_context,
) -> *mut raw::ibv_comp_channel {
    // Writers never wait for readers.
    let Ok((reader, writer)) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK) else {
        return null_mut();
    };
    let channel = raw::ibv_comp_channel {
        context,
        fd: reader.into_raw_fd(),
        refcnt: 0,
    };
    boxed(NullChannel {
        channel,
        events: Arc::new(writer),
    })
    .cast()
}

pub(super) unsafe extern "C" fn destroy_comp_channel(channel: *mut raw::ibv_comp_channel) -> c_int {
    // SAFETY: the channel exists and is freed once. `create_comp_channel` boxed it as the first
    // field of a `NullChannel`, which is `repr(C)`, and gave it the descriptor, which nothing else
    // closes.
    unsafe {
        libc::close((*channel).fd);
        free(channel.cast::<NullChannel>())
    }
}

pub(super) unsafe extern "C" fn get_cq_event(
    _: *mut raw::ibv_comp_channel,
    _: *mut *mut raw::ibv_cq,
    _: *mut *mut c_void,
) -> c_int {
    Errno::EAGAIN.set();
    -1
}

pub(super) unsafe extern "C" fn ack_cq_events(_: *mut raw::ibv_cq, _: c_uint) {}

pub(super) unsafe extern "C" fn create_cq(
    context: *mut raw::ibv_context,
    depth: c_int,
    cq_context: *mut c_void,
    channel: *mut raw::ibv_comp_channel,
    _vector: c_int,
) -> *mut raw::ibv_cq {
    EXISTING.set(EXISTING.get() + 1);
    boxed(NullQueue {
        queue: raw_queue(context, depth, cq_context, channel),
        ended: Mutex::default(),
    })
    .cast()
}

/// The part of a completion queue that libibverbs shows.
pub(super) fn raw_queue(
    context: *mut raw::ibv_context,
    depth: c_int,
    cq_context: *mut c_void,
    channel: *mut raw::ibv_comp_channel,
) -> raw::ibv_cq {
    // SAFETY: `ibv_cq` holds integers and pointers, for which zeros are valid, and a mutex and a
    // condition variable that are not used.
    let mut queue: raw::ibv_cq = unsafe { zeroed() };
    queue.context = context;
    queue.channel = channel;
    queue.cq_context = cq_context;
    queue.cqe = depth;
    queue
}

pub(super) unsafe extern "C" fn destroy_cq(queue: *mut raw::ibv_cq) -> c_int {
    EXISTING.set(EXISTING.get() - 1);
    // SAFETY: the queue is freed once. `create_cq` boxed it as the first field of a `NullQueue`,
    // which is `repr(C)`.
    unsafe { free(queue.cast::<NullQueue>()) }
}

unsafe extern "C" fn req_notify_cq(_: *mut raw::ibv_cq, _: c_int) -> c_int {
    0
}

pub(super) unsafe extern "C" fn create_qp(
    domain: *mut raw::ibv_pd,
    options: *mut raw::ibv_qp_init_attr,
) -> *mut raw::ibv_qp {
    EXISTING.set(EXISTING.get() + 1);
    // SAFETY: `ibv_create_qp` demands of its caller that `domain` is from `alloc_pd` and has not
    // been freed, and `options` are initialised.
    let (pair, capacity) = unsafe { (raw_pair(domain, options), (*options).cap) };
    boxed(NullPair {
        pair,
        capacity,
        posted: Vec::new(),
    })
    .cast()
}

/// The part of a queue pair that libibverbs shows.
///
/// # Safety
///
/// `domain` is from [`alloc_pd`] and has not been freed, and `options` may be read.
pub(super) unsafe fn raw_pair(
    domain: *mut raw::ibv_pd,
    options: *const raw::ibv_qp_init_attr,
) -> raw::ibv_qp {
    // SAFETY: `ibv_qp` holds integers and pointers, for which zeros are valid, and a mutex and a
    // condition variable that are not used.
    let mut pair: raw::ibv_qp = unsafe { zeroed() };
    // SAFETY: both may be read, as this function requires: `alloc_pd` boxed the domain.
    let (context, options) = unsafe { ((*domain).context, &*options) };
    pair.context = context;
    pair.pd = domain;
    pair.send_cq = options.send_cq;
    pair.recv_cq = options.recv_cq;
    pair.qp_num = number();
    pair
}

pub(super) unsafe extern "C" fn modify_qp(
    pair: *mut raw::ibv_qp,
    attributes: *mut raw::ibv_qp_attr,
    _mask: c_int,
) -> c_int {
    if let Some((_, errno)) = failure() {
        return errno;
    }
    // SAFETY: `ibv_modify_qp` demands of its caller that `pair` is a live queue pair, the first
    // field of one that `create_qp` has boxed, and `attributes` are initialised.
    unsafe { (*pair).state = (*attributes).qp_state };
    0
}

pub(super) unsafe extern "C" fn query_qp(
    pair: *mut raw::ibv_qp,
    attributes: *mut raw::ibv_qp_attr,
    _mask: c_int,
    options: *mut raw::ibv_qp_init_attr,
) -> c_int {
    // SAFETY: `ibv_query_qp` demands of its caller that both structures may be written, and the
    // queue pair exists: `create_qp` boxed it as the first field of a `NullPair`, which is
    // `repr(C)`.
    unsafe {
        (*attributes).qp_state = (*pair).state;
        (*options).cap = (*pair.cast::<NullPair>()).capacity;
    }
    0
}

pub(super) unsafe extern "C" fn destroy_qp(pair: *mut raw::ibv_qp) -> c_int {
    if let Some((_, errno)) = failure() {
        return errno;
    }
    if KEEPS.get() != 0 {
        return KEEPS.get();
    }
    EXISTING.set(EXISTING.get() - 1);
    // SAFETY: the queue pair is freed once. `create_qp` boxed it as the first field of a
    // `NullPair`, which is `repr(C)`.
    unsafe { free(pair.cast::<NullPair>()) }
}
