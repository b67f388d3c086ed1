//! Descriptions of memory locations and access rights, in the driver's structures.

use cudarc::driver::sys;

/// Whether a device can access the memory of another.
pub(crate) fn reaches(from: usize, to: usize) -> bool {
    let mut can = 0;
    // SAFETY: the devices are numbers, which the driver checks. The driver writes one number, to
    // `can`.
    let status = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, from as i32, to as i32) };
    status == sys::CUresult::CUDA_SUCCESS && can != 0
}

/// The right of a device to read and write memory.
pub(crate) fn access(device: usize) -> sys::CUmemAccessDesc {
    sys::CUmemAccessDesc {
        location: device_location(device),
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

/// The memory of a device.
pub(crate) fn device_location(device: usize) -> sys::CUmemLocation {
    let location = Location {
        kind: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        device: device as i32,
    };
    // SAFETY: both are the same C structure of a 32-bit enumeration and a 32-bit number; the
    // compiler checks that the sizes are equal.
    unsafe { std::mem::transmute::<Location, sys::CUmemLocation>(location) }
}

/// `CUmemLocation`. The name of its second field in cudarc depends on the version of CUDA.
#[repr(C)]
struct Location {
    kind: sys::CUmemLocationType,
    device: i32,
}
