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
    // SAFETY: `domain` is from `alloc_pd` and has not been freed, and the memory stays mapped while
    // it is registered: the caller of this function promises both.
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
    // SAFETY: `domain` is from `alloc_pd` and has not been freed, as the caller promises. The
    // memory is not accessed.
    let made = unsafe { calls::reg_mr_iova2(domain, start, bytes, iova, access) };
    if made.is_null() {
        return null_mut();
    }
    let one = Registered {
        domain: domain.addr(),
        // SAFETY: the region was just made, and nothing else uses it yet.
        keys: unsafe { [(*made).lkey, (*made).rkey] },
        region: Region {
            start: start.cast(),
            bytes,
            iova,
            access,
        },
    };
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    for end in PairEnd::all_in(one.domain) {
        end.admit(one.keys, one.region);
    }
    registered.push(one);
    made
}

/// Returns when no device accesses the region any more.
pub(super) unsafe extern "C" fn dereg_mr(region: *mut raw::ibv_mr) -> c_int {
    // SAFETY: the region is registered, and is deregistered once.
    let (keys, domain) = unsafe { ([(*region).lkey, (*region).rkey], (*region).pd.addr()) };
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    registered.retain(|one| one.keys != keys);
    for end in PairEnd::all_in(domain) {
        end.dismiss(keys);
    }
    drop(registered);
    // SAFETY: the region is from `calls::reg_mr_iova2`, and is deregistered once.
    unsafe { calls::dereg_mr(region) }
}
