//! Registers memory, and tells the devices of it.
//!
//! # Safety
//!
//! Every function here requires the arguments that the function of the same name in libibverbs
//! requires, with objects that were made by the functions of this network.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;

use super::super::calls;
use super::end::PairEnd;
use super::mapped::Mapped;
use super::memory::Region;
use crate::raw;

/// The registered memory of this process. Devices have copies: a shared lock would order memory
/// that no device orders.
static REGISTERED: Mutex<Vec<Registered>> = Mutex::new(Vec::new());

struct Registered {
    domain: usize,
    /// The keys for requests of this end, and for those of its peers.
    keys: [u32; 2],
    region: Region,
    /// The dma-buf that the region is in.
    _mapped: Option<Mapped>,
}

/// Adds an end: other devices find it, and regions registered in its domain are admitted.
pub(super) fn join(end: &Arc<PairEnd>) {
    let registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    for one in registered.iter().filter(|one| one.domain == end.domain) {
        end.admit(one.keys, one.region);
    }
    end.add();
}

pub(super) unsafe extern "C" fn reg_mr(
    domain: *mut raw::ibv_pd,
    start: *mut c_void,
    bytes: usize,
    access: c_int,
) -> *mut raw::ibv_mr {
    // SAFETY: `ibv_reg_mr` demands of its caller that `domain` is from `alloc_pd` and has not been
    // freed, and the memory stays mapped while it is registered.
    unsafe { reg_mr_iova2(domain, start, bytes, start as u64, access as u32) }
}

pub(super) unsafe extern "C" fn reg_mr_iova2(
    domain: *mut raw::ibv_pd,
    start: *mut c_void,
    bytes: usize,
    iova: u64,
    access: c_uint,
) -> *mut raw::ibv_mr {
    // If peers may write, this end must be allowed to write.
    let writes = raw::IBV_ACCESS_REMOTE_WRITE | raw::IBV_ACCESS_REMOTE_ATOMIC;
    if access & writes != 0 && access & raw::IBV_ACCESS_LOCAL_WRITE == 0 {
        Errno::EINVAL.set();
        return null_mut();
    }
    // SAFETY: `ibv_reg_mr_iova2` demands of its caller that `domain` is from `alloc_pd` and has not
    // been freed. The memory is not accessed.
    let made = unsafe { calls::reg_mr_iova2(domain, start, bytes, iova, access) };
    if made.is_null() {
        return null_mut();
    }
    let region = Region {
        start: start.cast(),
        bytes,
        iova,
        access,
    };
    // SAFETY: the region was just made, and nothing else uses it yet.
    let keys = unsafe { [(*made).lkey, (*made).rkey] };
    add(domain.addr(), keys, region, None);
    made
}

/// Tells the devices of a region.
fn add(domain: usize, keys: [u32; 2], region: Region, mapped: Option<Mapped>) {
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    for end in PairEnd::all_in(domain) {
        end.admit(keys, region);
    }
    registered.push(Registered {
        domain,
        keys,
        region,
        _mapped: mapped,
    });
}

/// Maps a file of memory, in place of a dma-buf. As a device does, it keeps the memory without the
/// descriptor.
pub(super) unsafe extern "C" fn reg_dmabuf_mr(
    domain: *mut raw::ibv_pd,
    offset: u64,
    bytes: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut raw::ibv_mr {
    let mapped = match Mapped::new(fd, offset, bytes, iova) {
        Ok(mapped) => mapped,
        Err(errno) => {
            errno.set();
            return null_mut();
        }
    };
    // SAFETY: `ibv_reg_dmabuf_mr` demands of its caller that `domain` is from `alloc_pd` and has
    // not been freed.
    let made = unsafe { calls::reg_dmabuf_mr(domain, offset, bytes, iova, fd, access) };
    if made.is_null() {
        return null_mut();
    }
    let region = Region {
        start: mapped.start.wrapping_add(mapped.offset),
        bytes,
        iova,
        access: access as u32,
    };
    // SAFETY: the region was just made, and nothing else uses it yet.
    let keys = unsafe { [(*made).lkey, (*made).rkey] };
    add(domain.addr(), keys, region, Some(mapped));
    made
}

/// Returns when no device accesses the region any more.
pub(super) unsafe extern "C" fn dereg_mr(region: *mut raw::ibv_mr) -> c_int {
    // SAFETY: the region is registered, and is deregistered once.
    let (keys, domain) = unsafe { ([(*region).lkey, (*region).rkey], (*region).pd.addr()) };
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    let found = registered.iter().position(|one| one.keys == keys);
    let ended = found.map(|at| registered.swap_remove(at));
    for end in PairEnd::all_in(domain) {
        end.dismiss(keys);
    }
    // A dma-buf is unmapped only now.
    drop((registered, ended));
    // SAFETY: the region is from `calls::reg_mr_iova2` or `calls::reg_dmabuf_mr`, which box it
    // alike, and is deregistered once.
    unsafe { calls::dereg_mr(region) }
}
