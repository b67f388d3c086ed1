//! The limits of a device.

use std::ffi::CStr;

use crate::raw;

/// The limits of a device.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Limits {
    /// The version of its firmware.
    pub firmware: String,
    /// The number of ports.
    pub ports: u8,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Work requests that a queue of a queue pair may hold.
    pub work_requests: u32,
    /// Pieces of memory per work request.
    pub pieces: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Completions that a completion queue may hold.
    pub completions: u32,
    /// Memory regions.
    pub regions: u32,
    /// Bytes of a memory region.
    pub region_bytes: u64,
    /// Incoming reads and atomics in flight per queue pair.
    pub reads_answered: u8,
    /// Outgoing reads and atomics in flight per queue pair.
    pub reads_started: u8,
    /// The support for atomics.
    pub atomics: Atomics,
}

/// The scope within which a device's atomics are atomic.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Atomics {
    /// The device has no atomics.
    None,
    /// Other atomics of the same device.
    Device,
    /// Also atomics of the processors.
    Everyone,
}

impl Limits {
    pub(crate) fn from_raw(device: &raw::ibv_device_attr) -> Limits {
        let count = |number: i32| number.max(0) as u32;
        let byte = |number: i32| number.clamp(0, 255) as u8;
        Limits {
            firmware: firmware(&device.fw_ver),
            ports: device.phys_port_cnt,
            queue_pairs: count(device.max_qp),
            work_requests: count(device.max_qp_wr),
            pieces: count(device.max_sge),
            completion_queues: count(device.max_cq),
            completions: count(device.max_cqe),
            regions: count(device.max_mr),
            region_bytes: device.max_mr_size,
            reads_answered: byte(device.max_qp_rd_atom),
            reads_started: byte(device.max_qp_init_rd_atom),
            atomics: match device.atomic_cap {
                raw::IBV_ATOMIC_HCA => Atomics::Device,
                raw::IBV_ATOMIC_GLOB => Atomics::Everyone,
                _ => Atomics::None,
            },
        }
    }
}

fn firmware(text: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = text.iter().map(|&byte| byte as u8).collect();
    let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
    text.to_string_lossy().into_owned()
}
