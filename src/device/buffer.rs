//! How device memory enters a call.

use crate::buffer::{RecvBuf, Region, SendBuf};
use spark_ccl_compute::Element;
use spark_ccl_cuda::cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice as Sliced,
};
use std::marker::PhantomData;
use std::sync::Arc;

/// Where device memory is.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub(crate) device: usize,
    /// The stream that the memory comes with; `None`: the device's default stream.
    pub(crate) stream: Option<Arc<CudaStream>>,
}

impl Region {
    /// Device memory: `len` elements from an address.
    pub(super) fn on_device(
        address: u64,
        len: usize,
        device: usize,
        stream: Option<&Arc<CudaStream>>,
    ) -> Self {
        Self {
            ptr: std::ptr::without_provenance_mut(address as usize),
            len,
            home: None,
            site: Some(Site {
                device,
                stream: stream.cloned(),
            }),
        }
    }
}

/// Device memory that a call may read.
///
/// # Safety
/// What [`enter`](Self::enter) returns must be device memory that is readable for its whole length, and not
/// written by anyone else, in the stream's order from then on to [`leave`](Self::leave); it stays
/// allocated until the stream has come there, whatever becomes of the value.
pub unsafe trait DeviceSend<T: Element>: SendBuf<T> {
    /// Makes the stream wait for what was done to the memory before; the memory.
    fn enter(&self, stream: &Arc<CudaStream>) -> Region;

    /// Says that the memory is used in the stream up to here.
    fn leave(&self, stream: &Arc<CudaStream>);
}

/// Device memory that a call may write (and read).
///
/// # Safety
/// As for [`DeviceSend`]; besides, nothing else may read or write the memory meanwhile.
pub unsafe trait DeviceRecv<T: Element>: RecvBuf<T> {
    /// Makes the stream wait for what was done to the memory before; the memory.
    fn enter_mut(&mut self, stream: &Arc<CudaStream>) -> Region;

    /// Says that the memory is used in the stream up to here.
    fn leave_mut(&mut self, stream: &Arc<CudaStream>);
}

/// Device memory by its address, whose uses its maker keeps in order.
#[derive(Debug)]
pub struct DeviceSlice<T> {
    address: u64,
    len: usize,
    device: usize,
    element: PhantomData<fn() -> T>,
}

impl<T> Clone for DeviceSlice<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DeviceSlice<T> {}

impl<T: Element> DeviceSlice<T> {
    /// `len` elements at `address`, in memory of the device with CUDA's number `device`.
    ///
    /// # Safety
    /// The memory stays allocated until all calls with this value, or a part of it, have run in their
    /// streams. Meanwhile nothing else writes what they read, and nothing else touches what they write.
    pub const unsafe fn from_raw(address: u64, len: usize, device: usize) -> Self {
        Self {
            address,
            len,
            device,
            element: PhantomData,
        }
    }

    /// `len` elements of it, from `offset` on; `None` where it ends before.
    pub fn part(self, offset: usize, len: usize) -> Option<Self> {
        let inside = offset.checked_add(len)? <= self.len;
        inside.then(|| Self {
            address: self.address + (offset * size_of::<T>()) as u64,
            len,
            ..self
        })
    }

    /// Its address, for CUDA.
    pub const fn address(self) -> u64 {
        self.address
    }

    /// How many elements it has.
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// CUDA's number of its device.
    pub const fn device(self) -> usize {
        self.device
    }

    fn whole(self) -> Region {
        Region::on_device(self.address, self.len, self.device, None)
    }
}

// SAFETY: whoever made it answers for the memory, and for the order of its uses.
unsafe impl<T: Element> SendBuf<T> for DeviceSlice<T> {
    fn region(&self) -> Region {
        self.whole()
    }
}

// SAFETY: as above.
unsafe impl<T: Element> RecvBuf<T> for DeviceSlice<T> {
    fn region_mut(&mut self) -> Region {
        self.whole()
    }
}

// SAFETY: as above.
unsafe impl<T: Element> DeviceSend<T> for DeviceSlice<T> {
    fn enter(&self, _: &Arc<CudaStream>) -> Region {
        self.whole()
    }

    fn leave(&self, _: &Arc<CudaStream>) {}
}

// SAFETY: as above.
unsafe impl<T: Element> DeviceRecv<T> for DeviceSlice<T> {
    fn enter_mut(&mut self, _: &Arc<CudaStream>) -> Region {
        self.whole()
    }

    fn leave_mut(&mut self, _: &Arc<CudaStream>) {}
}

/// What cudarc has, to be read in a stream.
fn reading<T>(buffer: &impl DevicePtr<T>, stream: &Arc<CudaStream>) -> Region {
    let (address, record) = buffer.device_ptr(stream);
    // It would be recorded too early: the call is not in the stream yet.
    std::mem::forget(record);
    let device = buffer.stream().context().ordinal();
    Region::on_device(address, buffer.len(), device, Some(stream))
}

/// What cudarc has, to be written in a stream.
fn writing<T>(buffer: &mut impl DevicePtrMut<T>, stream: &Arc<CudaStream>) -> Region {
    let (len, device) = (buffer.len(), buffer.stream().context().ordinal());
    let (address, record) = buffer.device_ptr_mut(stream);
    std::mem::forget(record);
    Region::on_device(address, len, device, Some(stream))
}

macro_rules! sends {
    ($([$($life:lifetime)?] $type:ty, $this:ident => $buffer:expr);+ $(;)?) => {$(
        // SAFETY: it is device memory, and cudarc has its own stream wait for what was done to it before.
        unsafe impl<$($life,)? T: Element> SendBuf<T> for $type {
            fn region(&self) -> Region {
                let $this = self;
                reading($buffer, $buffer.stream())
            }
        }

        // SAFETY: cudarc makes streams wait for each other by the buffer's events, if the program has not
        // taken that upon itself; and memory is freed in a stream that has waited for both.
        unsafe impl<$($life,)? T: Element> DeviceSend<T> for $type {
            fn enter(&self, stream: &Arc<CudaStream>) -> Region {
                let $this = self;
                reading($buffer, stream)
            }

            fn leave(&self, stream: &Arc<CudaStream>) {
                let $this = self;
                drop($buffer.device_ptr(stream));
            }
        }
    )+};
}

sends! {
    [] CudaSlice<T>, this => this;
    ['a] &'a CudaSlice<T>, this => *this;
    ['a] &'a mut CudaSlice<T>, this => &**this;
    ['a] CudaView<'a, T>, this => this;
    ['a] CudaViewMut<'a, T>, this => this;
}

macro_rules! receives {
    ($([$($life:lifetime)?] $type:ty, $this:ident => $buffer:expr);+ $(;)?) => {$(
        // SAFETY: as for `SendBuf`, by a unique borrow or the only handle.
        unsafe impl<$($life,)? T: Element> RecvBuf<T> for $type {
            fn region_mut(&mut self) -> Region {
                let $this = self;
                let stream = $this.stream().clone();
                writing($buffer, &stream)
            }
        }

        // SAFETY: as for `DeviceSend`, by a unique borrow or the only handle.
        unsafe impl<$($life,)? T: Element> DeviceRecv<T> for $type {
            fn enter_mut(&mut self, stream: &Arc<CudaStream>) -> Region {
                let $this = self;
                writing($buffer, stream)
            }

            fn leave_mut(&mut self, stream: &Arc<CudaStream>) {
                let $this = self;
                drop($buffer.device_ptr_mut(stream));
            }
        }
    )+};
}

receives! {
    [] CudaSlice<T>, this => this;
    ['a] &'a mut CudaSlice<T>, this => &mut **this;
    ['a] CudaViewMut<'a, T>, this => this;
}
