use std::ffi::c_void;

use spark_ccl_types::DType;

use crate::raw::cudaStream_t;
use crate::{Error, Library};

/// Memory of a device, by its address: so many elements of a type.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSlice {
    start: *mut c_void,
    len: usize,
    dtype: DType,
    device: i32,
}

// SAFETY: it is a number; whoever made it answers for what it points to, on any thread.
unsafe impl Send for DeviceSlice {}
// SAFETY: as above.
unsafe impl Sync for DeviceSlice {}

impl DeviceSlice {
    /// `len` elements of `dtype` at `start`, in memory that `device` (CUDA's number) reads and writes.
    ///
    /// # Safety
    ///
    /// The memory stays allocated until all that was enqueued with this value, or with a part of it,
    /// has run, and until it is not registered any more, or its communicator has ended on all ranks of
    /// this process, which NCCL frees together. Meanwhile nothing else writes what operations read, and
    /// nothing else touches what they write.
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

    /// `len` elements of it, from `offset` on; `None` where it ends before.
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

    /// How many elements it has.
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// How many bytes it has.
    pub const fn bytes(self) -> usize {
        self.len * self.dtype.size()
    }

    /// The type of its elements.
    pub const fn dtype(self) -> DType {
        self.dtype
    }

    /// CUDA's number of its device.
    pub const fn device(self) -> i32 {
        self.device
    }

    pub(crate) fn overlaps(self, other: Self) -> bool {
        let (start, other_start) = (self.start.addr(), other.start.addr());
        start < other_start + other.bytes() && other_start < start + self.bytes()
    }
}

/// A CUDA stream, by its handle: what is enqueued in it runs in order.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    raw: *mut c_void,
    device: i32,
}

// SAFETY: CUDA's functions take a stream on any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// The stream with the handle `raw` (a `cudaStream_t`, or a `CUstream`), of `device`.
    ///
    /// # Safety
    ///
    /// It is a stream of that device, and is not destroyed while this value is used.
    pub const unsafe fn from_raw(raw: *mut c_void, device: i32) -> Self {
        Self { raw, device }
    }

    /// The null stream of a device, which waits for its other streams, and they for it.
    pub const fn null(device: i32) -> Self {
        let raw = std::ptr::null_mut();
        Self { raw, device }
    }

    /// CUDA's number of its device.
    pub const fn device(self) -> i32 {
        self.device
    }

    pub(crate) const fn raw(self) -> cudaStream_t {
        self.raw.cast()
    }
}

/// Device memory from NCCL, which suits its registrations and windows best.
///
/// It is freed by [`free`](Self::free) only: when it is dropped, something may still be at work in it.
#[derive(Debug)]
#[must_use = "it is freed by `free` only"]
pub struct Allocation {
    library: Library,
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: it is owned, and is freed on any thread.
unsafe impl Send for Allocation {}
// SAFETY: nothing is done through a shared reference.
unsafe impl Sync for Allocation {}

impl Library {
    /// Allocates memory of the device that is current on this thread.
    ///
    /// # Errors
    ///
    /// There is no device, or no memory left; NCCL is older than 2.19.1.
    pub fn allocate(self, bytes: usize) -> Result<Allocation, Error> {
        let mut start = std::ptr::null_mut();
        // SAFETY: it fills in the address.
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

    /// How many bytes it has.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Frees it.
    ///
    /// # Safety
    ///
    /// Nothing uses the memory any more: all that was enqueued has run, and it is registered nowhere.
    ///
    /// # Errors
    ///
    /// CUDA fails.
    pub unsafe fn free(self) -> Result<(), Error> {
        // SAFETY: it was allocated by the same library, and only once is it freed.
        let code = unsafe { self.library.api.ncclMemFree()?(self.start) };
        self.library.check("ncclMemFree", code)
    }
}
