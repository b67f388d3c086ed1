//! The devices of the network.
//!
//! # Safety
//!
//! Every function here requires the arguments that the function of the same name in libibverbs
//! requires, with objects that were made by the functions of this network.

use std::ffi::{c_char, c_int};
use std::net::Ipv4Addr;
use std::ptr::{from_ref, null_mut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Cable, Network};
use crate::{Gid, raw};

/// The index of each device; a pointer to it serves as the device.
static DEVICES: [u64; 2] = [0, 1];
const NAMES: [&std::ffi::CStr; 2] = [c"loop0", c"loop1"];

type List = [*mut raw::ibv_device; DEVICES.len() + 1];

pub(super) unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut raw::ibv_device {
    // SAFETY: `ibv_get_device_list` demands of its caller that `count` points to a number that may
    // be written.
    unsafe { *count = DEVICES.len() as c_int };
    let mut list: List = [null_mut(); _];
    for (place, device) in list.iter_mut().zip(&DEVICES) {
        *place = from_ref(device).cast_mut().cast();
    }
    Box::into_raw(Box::new(list)).cast()
}

pub(super) unsafe extern "C" fn free_device_list(list: *mut *mut raw::ibv_device) {
    // SAFETY: the list is from `get_device_list`, which boxed a `List`, and is freed once.
    drop(unsafe { Box::from_raw(list.cast::<List>()) });
}

/// # Safety
///
/// The device is from [`get_device_list`].
unsafe fn index(device: *mut raw::ibv_device) -> usize {
    // SAFETY: the device is one of `DEVICES`, as this function requires, and these never change.
    unsafe { *device.cast::<u64>() as usize }
}

pub(super) unsafe extern "C" fn get_device_name(device: *mut raw::ibv_device) -> *const c_char {
    // SAFETY: `ibv_get_device_name` demands of its caller that the device is from
    // `get_device_list`.
    NAMES[unsafe { index(device) }].as_ptr()
}

pub(super) unsafe extern "C" fn get_device_guid(device: *mut raw::ibv_device) -> u64 {
    // SAFETY: `ibv_get_device_guid` demands of its caller that the device is from
    // `get_device_list`.
    let index = unsafe { index(device) };
    (0x0102_0304_0506_0700 + index as u64).to_be()
}

/// # Safety
///
/// The context is from `open_device`, and has not been closed.
pub(super) unsafe fn cable_of(context: *mut raw::ibv_context) -> Cable {
    // SAFETY: the context is open, as this function requires, and its device is from
    // `get_device_list`.
    let (network, index) = unsafe { ((*context).num_comp_vectors, index((*context).device)) };
    Arc::clone(&Network::of(network).cables[index])
}

/// The seed of the next queue pair's device.
///
/// # Safety
///
/// The context is from `open_device`, and has not been closed.
pub(super) unsafe fn next_seed(context: *mut raw::ibv_context) -> u64 {
    // SAFETY: the context is open, as this function requires.
    let network = Network::of(unsafe { (*context).num_comp_vectors });
    // Relaxed: only the number is shared.
    super::seed() ^ network.pairs.fetch_add(1, Ordering::Relaxed)
}

/// The address of a device, in a subnet of its own.
///
/// # Safety
///
/// The context is from `open_device`, and has not been closed.
pub(super) unsafe fn gid_of(context: *mut raw::ibv_context) -> Gid {
    // SAFETY: the context is open, as this function requires, and its device is from
    // `get_device_list`.
    let index = unsafe { index((*context).device) };
    Gid::from(Ipv4Addr::new(10, 0, index as u8, 1))
}

pub(super) unsafe extern "C" fn query_gid_table(
    context: *mut raw::ibv_context,
    entries: *mut raw::ibv_gid_entry,
    most: usize,
    _flags: u32,
    _entry_bytes: usize,
) -> isize {
    if most == 0 {
        return 0;
    }
    // SAFETY: `ibv_query_gid_table` demands of its caller that the context is open.
    let gid = unsafe { gid_of(context) };
    // SAFETY: `ibv_query_gid_table` demands of its caller that `entries` has room for one: `most`
    // is not 0.
    unsafe {
        *entries = raw::ibv_gid_entry {
            gid: raw::ibv_gid { raw: gid.0 },
            gid_index: 0,
            port_num: 1,
            gid_type: raw::IBV_GID_TYPE_ROCE_V2,
            ndev_ifindex: 0,
        };
    }
    1
}
