//! Memory from `cuMemCreate` (CUDA's virtual memory management): other GPUs of this process reach
//! it, and other processes can map it by a descriptor. Knows single mappings; does not know who
//! passes descriptors.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use cudarc::driver::{CudaContext, sys};

use crate::device::attribute;
use crate::location::{access, device_location, reaches};
use crate::{Error, Feature, checked, count, require};

/// How the driver names memory to other processes.
const HANDLE: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Memory of a device, and the addresses at which it is mapped. Dropping it unmaps it; the memory
/// itself remains as long as another process maps it.
#[derive(Debug)]
pub(crate) struct Mapping {
    addresses: Addresses,
    memory: Memory,
}

impl Mapping {
    /// Whether the context's device and its driver support this kind of memory.
    pub(crate) fn is_possible(context: &CudaContext) -> bool {
        use sys::CUdevice_attribute as Attribute;
        let needed = [
            Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED,
            Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        ];
        let mut needed = needed.into_iter();
        needed.all(|attribute| has(context, attribute)) && require(Feature::Mapping).is_ok()
    }

    /// Maps at least this many bytes of the context's device, for it and all devices that reach it.
    /// Their contents are undefined. The context must be current.
    pub(crate) fn new(context: &CudaContext, bytes: usize) -> Result<Self, Error> {
        let device = context.ordinal();
        let bytes = rounded(context, bytes)?;
        let memory = Memory::new(context, bytes)?;
        let reaching = (0..count()?).filter(|&other| other == device || reaches(other, device));
        Self::map(memory, bytes, device, reaching)
    }

    /// Maps memory of another process, or of this one, for the context's device only.
    pub(crate) fn import(
        context: &CudaContext,
        exported: BorrowedFd<'_>,
        bytes: usize,
    ) -> Result<Self, Error> {
        let device = context.ordinal();
        let bytes = rounded(context, bytes)?;
        let memory = Memory::import(exported, device)?;
        Self::map(memory, bytes, device, std::iter::once(device))
    }

    fn map(
        memory: Memory,
        bytes: usize,
        device: usize,
        reaching: impl Iterator<Item = usize>,
    ) -> Result<Self, Error> {
        let addresses = Addresses::reserve(bytes, device)?;
        // SAFETY: the range has just been reserved for this many bytes, and nothing is mapped
        // there.
        let status = unsafe { sys::cuMemMap(addresses.start, bytes, 0, memory.0, 0) };
        checked("cuMemMap", device, status.result())?;
        let mapping = Self { addresses, memory };
        let who: Vec<_> = reaching.map(access).collect();
        // SAFETY: the range is mapped, and the driver reads the `who.len()` descriptions in `who`.
        let status =
            unsafe { sys::cuMemSetAccess(mapping.address(), bytes, who.as_ptr(), who.len()) };
        checked("cuMemSetAccess", device, status.result())?;
        Ok(mapping)
    }

    /// The address of the mapping.
    pub(crate) fn address(&self) -> u64 {
        self.addresses.start
    }

    /// A descriptor by which other processes can map it.
    pub(crate) fn export(&self, device: usize) -> Result<OwnedFd, Error> {
        let mut descriptor = -1_i32;
        // SAFETY: the driver writes a descriptor, which is an `int`, to `descriptor`.
        let status = unsafe {
            let place = (&raw mut descriptor).cast();
            sys::cuMemExportToShareableHandle(place, self.memory.0, HANDLE, 0)
        };
        checked("cuMemExportToShareableHandle", device, status.result())?;
        // SAFETY: the driver has just opened the descriptor, for this call.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let Addresses { start, bytes } = self.addresses;
        // SAFETY: `map` has mapped the whole range, and only this drop unmaps it. The call fails
        // only if the context has failed, which ends all use of the memory.
        let _ = unsafe { sys::cuMemUnmap(start, bytes) };
    }
}

/// A reserved range of addresses.
#[derive(Debug)]
struct Addresses {
    start: u64,
    bytes: usize,
}

impl Addresses {
    fn reserve(bytes: usize, device: usize) -> Result<Self, Error> {
        let mut start = 0;
        // SAFETY: the driver writes one address to `start`.
        let status = unsafe { sys::cuMemAddressReserve(&raw mut start, bytes, 0, 0, 0) };
        checked("cuMemAddressReserve", device, status.result())?;
        Ok(Self { start, bytes })
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: `reserve` has reserved the range, and a mapping there was unmapped before this
        // drop.
        let _ = unsafe { sys::cuMemAddressFree(self.start, self.bytes) };
    }
}

/// A reference to memory of a device, which may not be mapped.
#[derive(Debug)]
struct Memory(sys::CUmemGenericAllocationHandle);

impl Memory {
    fn new(context: &CudaContext, bytes: usize) -> Result<Self, Error> {
        let mut memory = 0;
        let kind = properties(context);
        // SAFETY: the driver reads `kind`, and writes one handle to `memory`.
        let status = unsafe { sys::cuMemCreate(&raw mut memory, bytes, &raw const kind, 0) };
        checked("cuMemCreate", context.ordinal(), status.result())?;
        Ok(Self(memory))
    }

    fn import(exported: BorrowedFd<'_>, device: usize) -> Result<Self, Error> {
        let mut memory = 0;
        let descriptor = std::ptr::without_provenance_mut(exported.as_raw_fd() as usize);
        // SAFETY: the driver writes one handle to `memory`; the descriptor itself is passed in
        // place of an address, and is open during the call.
        let status =
            unsafe { sys::cuMemImportFromShareableHandle(&raw mut memory, descriptor, HANDLE) };
        checked("cuMemImportFromShareableHandle", device, status.result())?;
        Ok(Self(memory))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the handle is this value's own reference, and is released only here.
        let _ = unsafe { sys::cuMemRelease(self.0) };
    }
}

/// A number of bytes, rounded up to the driver's granularity.
fn rounded(context: &CudaContext, bytes: usize) -> Result<usize, Error> {
    let mut step = 0;
    let kind = properties(context);
    let which = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    // SAFETY: the driver reads `kind`, and writes one number to `step`.
    let status =
        unsafe { sys::cuMemGetAllocationGranularity(&raw mut step, &raw const kind, which) };
    let device = context.ordinal();
    checked("cuMemGetAllocationGranularity", device, status.result())?;
    // An overflow becomes the largest size, which the driver refuses.
    let all = usize::MAX / step.max(1) * step.max(1);
    Ok(bytes
        .max(1)
        .checked_next_multiple_of(step.max(1))
        .unwrap_or(all))
}

/// Memory of the context's device that can be exported; RDMA devices reach it, where they can.
fn properties(context: &CudaContext) -> sys::CUmemAllocationProp {
    let rdma = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: HANDLE,
        location: device_location(context.ordinal()),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: u8::from(has(context, rdma)),
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// Whether an attribute of the context's device is set.
fn has(context: &CudaContext, what: sys::CUdevice_attribute) -> bool {
    attribute(context, what).is_ok_and(|value| value != 0)
}
