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
    /// Whether it knows what is done to it in streams, and waits for that before it is freed.
    pub(crate) tracked: bool,
}

impl Region {
    /// Device memory: `len` elements from an address.
    pub(super) fn on_device(
        address: u64,
        len: usize,
        device: usize,
        stream: Option<&Arc<CudaStream>>,
        tracked: bool,
    ) -> Self {
        Self {
            ptr: std::ptr::without_provenance_mut(address as usize),
            len,
            home: None,
            site: Some(Site {
                device,
                stream: stream.cloned(),
                tracked,
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
    /// Where the memory is, without its address.
    #[doc(hidden)]
    fn place(&self) -> Region;

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
    /// Where the memory is, without its address.
    #[doc(hidden)]
    fn place(&self) -> Region;

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
    /// streams, and as long as a graph that has captured them is launched. Meanwhile nothing else writes what they read, and nothing else touches what they write.
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
        Region::on_device(self.address, self.len, self.device, None, false)
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
    fn place(&self) -> Region {
        self.whole()
    }

    fn enter(&self, _: &Arc<CudaStream>) -> Region {
        self.whole()
    }

    fn leave(&self, _: &Arc<CudaStream>) {}
}

// SAFETY: as above.
unsafe impl<T: Element> DeviceRecv<T> for DeviceSlice<T> {
    fn place(&self) -> Region {
        self.whole()
    }

    fn enter_mut(&mut self, _: &Arc<CudaStream>) -> Region {
        self.whole()
    }

    fn leave_mut(&mut self, _: &Arc<CudaStream>) {}
}

/// Where cudarc has a buffer.
fn place<T>(buffer: &impl Sliced<T>) -> Region {
    let own = buffer.stream();
    Region::on_device(0, buffer.len(), own.context().ordinal(), Some(own), true)
}

/// What cudarc has, to be read in a stream.
fn reading<T>(buffer: &impl DevicePtr<T>, stream: &Arc<CudaStream>) -> Region {
    let (address, record) = buffer.device_ptr(stream);
    // It would be recorded too early: the call is not in the stream yet.
    std::mem::forget(record);
    let own = buffer.stream();
    let device = own.context().ordinal();
    Region::on_device(address, buffer.len(), device, Some(own), true)
}

/// What cudarc has was read in a stream. It remembers one reader only: so its own stream, in which it is freed,
/// waits for each.
fn was_read<T>(buffer: &impl DevicePtr<T>, stream: &Arc<CudaStream>) {
    drop(buffer.device_ptr(stream));
    let (own, context) = (buffer.stream(), stream.context());
    if own != stream && context.is_managing_stream_synchronization() {
        // Kept as cudarc keeps what cannot be returned: the context's next call says it.
        context.record_err(own.join(stream));
        // Who writes next waits for the last reader only: that is the own stream now, behind all of them.
        drop(buffer.device_ptr(own));
    }
}

/// What cudarc has, to be written in a stream.
fn writing<T>(buffer: &mut impl DevicePtrMut<T>, stream: &Arc<CudaStream>) -> Region {
    let (len, own) = (buffer.len(), buffer.stream().clone());
    let (address, record) = buffer.device_ptr_mut(stream);
    std::mem::forget(record);
    Region::on_device(address, len, own.context().ordinal(), Some(&own), true)
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

        // SAFETY: cudarc makes streams of one context object, which calls insist on, wait for each other by
        // the buffer's events, if the program has not taken that upon itself; memory is freed in its own
        // stream, which waits for the last writer and, by `was_read`, for all readers.
        unsafe impl<$($life,)? T: Element> DeviceSend<T> for $type {
            fn place(&self) -> Region {
                let $this = self;
                place($buffer)
            }

            fn enter(&self, stream: &Arc<CudaStream>) -> Region {
                let $this = self;
                reading($buffer, stream)
            }

            fn leave(&self, stream: &Arc<CudaStream>) {
                let $this = self;
                was_read($buffer, stream);
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
            fn place(&self) -> Region {
                let own = self.stream();
                Region::on_device(0, self.len(), own.context().ordinal(), Some(own), true)
            }

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
