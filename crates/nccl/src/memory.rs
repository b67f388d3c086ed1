//! Device memory and CUDA streams, by address.

use std::ffi::c_void;

use spark_ccl_types::DType;

use crate::raw::{DataType, cudaStream_t};
use crate::{Error, Library};

/// A range of device memory, by address: a number of elements of one type.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSlice {
    start: *mut c_void,
    len: usize,
    dtype: DType,
    device: i32,
}

// SAFETY: this is an address, which this crate never dereferences. The memory stays valid no matter
// which thread uses the value: `from_raw`, from which all such values come, requires that.
unsafe impl Send for DeviceSlice {}
// SAFETY: a shared reference only gives copies of the address, length, type and device.
unsafe impl Sync for DeviceSlice {}

impl DeviceSlice {
    /// `len` elements of `dtype` at `start`, in memory that `device` (CUDA's ordinal) can read and
    /// write.
    ///
    /// # Safety
    ///
    /// The memory must stay allocated until everything that was enqueued with this value, or with a
    /// part of it, has run. If it was registered, it must also stay allocated until it is
    /// deregistered, or until its communicator has ended on all ranks of this process, whose
    /// resources NCCL frees together. Until then nothing else may write what an operation reads,
    /// and nothing else may access what an operation writes.
    pub const unsafe fn from_raw(
        start: *mut c_void,
        len: usize,
        dtype: DType,
        device: i32,
    ) -> Self {
        Self {
            start,
            len,
            dtype,
            device,
        }
    }

    /// The `len` elements from `offset` on; `None` if the slice is too short.
    pub fn part(self, offset: usize, len: usize) -> Option<Self> {
        let inside = offset.checked_add(len)? <= self.len;
        inside.then(|| Self {
            start: self.start.wrapping_byte_add(offset * self.dtype.size()),
            len,
            ..self
        })
    }

    /// Its address on the device.
    pub const fn start(self) -> *mut c_void {
        self.start
    }

    /// The number of elements.
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The number of bytes.
    pub const fn bytes(self) -> usize {
        self.len * self.dtype.size()
    }

    /// The type of its elements.
    pub const fn dtype(self) -> DType {
        self.dtype
    }

    /// CUDA's ordinal of its device.
    pub const fn device(self) -> i32 {
        self.device
    }

    /// NCCL's number of its type, for calls that only move elements. For 8-bit floats, that of
    /// bytes: older versions do not know these types, and newer ones refuse them on older GPUs.
    pub(crate) fn moved_as(self) -> DataType {
        let dtype = match self.dtype {
            DType::F8E4M3 | DType::F8E5M2 => DType::U8,
            other => other,
        };
        dtype.code().into()
    }

    pub(crate) fn overlaps(self, other: Self) -> bool {
        let (start, other_start) = (self.start.addr(), other.start.addr());
        start < other_start + other.bytes() && other_start < start + self.bytes()
    }
}

/// A CUDA stream, by its handle. Everything enqueued in a stream runs in order.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    raw: *mut c_void,
    device: i32,
}

// SAFETY: CUDA's functions accept a stream's handle on any thread.
unsafe impl Send for Stream {}
// SAFETY: a shared reference only gives copies of the handle, which CUDA's functions accept on
// several threads at once.
unsafe impl Sync for Stream {}

impl Stream {
    /// The stream of `device` with the handle `raw` (a `cudaStream_t` or a `CUstream`).
    ///
    /// # Safety
    ///
    /// `raw` must be a stream of that device, and must not be destroyed while this value is used.
    pub const unsafe fn from_raw(raw: *mut c_void, device: i32) -> Self {
        Self { raw, device }
    }

    /// The null stream of a device. It synchronizes with the device's other streams in both
    /// directions.
    pub const fn null(device: i32) -> Self {
        let raw = std::ptr::null_mut();
        Self { raw, device }
    }

    /// CUDA's ordinal of its device.
    pub const fn device(self) -> i32 {
        self.device
    }

    pub(crate) const fn raw(self) -> cudaStream_t {
        self.raw.cast()
    }
}

/// Device memory allocated by NCCL, which is best suited to registrations and windows.
///
/// Only [`free`](Self::free) frees it: when it is dropped, an operation may still use it.
#[derive(Debug)]
#[must_use = "it is freed by `free` only"]
pub struct Allocation {
    library: Library,
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: it owns the memory, which NCCL can free on any thread.
unsafe impl Send for Allocation {}
// SAFETY: a shared reference only gives the address and the length.
unsafe impl Sync for Allocation {}

impl Library {
    /// Allocates memory of the device that is current on this thread.
    ///
    /// # Errors
    ///
    /// There is no device, or no memory left; NCCL is older than 2.19.1.
    pub fn allocate(self, bytes: usize) -> Result<Allocation, Error> {
        let mut start = std::ptr::null_mut();
        // SAFETY: NCCL writes the address to `start`, which is valid for that.
        let code = unsafe { self.api.ncclMemAlloc()?(&raw mut start, bytes) };
        self.check("ncclMemAlloc", code)?;
        Ok(Allocation {
            library: self,
            start,
            bytes,
        })
    }
}

impl Allocation {
    /// Its address on the device.
    pub const fn start(&self) -> *mut c_void {
        self.start
    }

    /// The number of bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Frees it.
    ///
    /// # Safety
    ///
    /// Nothing may use the memory any more: everything enqueued with it has run, and it is not
    /// registered.
    ///
    /// # Errors
    ///
    /// CUDA fails.
    pub unsafe fn free(self) -> Result<(), Error> {
        // SAFETY: `start` was allocated by this library, and `self` is consumed, so it is freed
        // only once. Nothing uses the memory any more, as this function requires.
        let code = unsafe { self.library.api.ncclMemFree()?(self.start) };
        self.library.check("ncclMemFree", code)
    }
}
