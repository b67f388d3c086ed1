//! How device memory enters a call: the types of buffers that calls in streams take. Nothing is
//! enqueued here.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use spark_ccl_cuda::Observed;
use spark_ccl_cuda::cudarc::driver::{CudaSlice, CudaViewMut, DeviceSlice as Sliced};
use spark_ccl_types::Element;

use super::site::{Order, Site};
use crate::memory::buffer::{RecvBuf, Region, SendBuf, gives_back, gives_back_owners};

impl Region {
    /// Device memory: `len` elements from an address.
    pub(crate) fn on_device(address: u64, len: usize, site: Site) -> Self {
        Self {
            ptr: std::ptr::without_provenance_mut(address as usize),
            len,
            home: None,
            site: Some(Box::new(site)),
        }
    }
}

/// Device memory that a call may read.
///
/// # Safety
/// The [region](SendBuf::region) is device memory, readable for its whole length. Its order makes a
/// stream wait until it may be read there, and everyone else wait until it was read before they
/// write or free it.
pub unsafe trait DeviceSend<T: Element>: SendBuf<T> {}

/// Device memory that a call may write (and read).
///
/// # Safety
/// The [region](RecvBuf::region_mut) is device memory, readable and writable for its whole length.
/// Its order makes a stream wait until it may be written there, and everyone else wait until it was
/// written before they read, write or free it.
pub unsafe trait DeviceRecv<T: Element>: RecvBuf<T> {}

/// Device memory by its address. The code that makes the value keeps the uses of the memory in
/// order.
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
    /// The memory stays allocated until all calls with this value, or a part of it, have run in
    /// their streams. It also stays as long as a graph that has captured them is launched.
    /// Meanwhile nothing else writes the parts that they read, or touches the parts that they
    /// write.
    ///
    /// With [`Backend::Engine`](crate::Backend::Engine), launches of graphs with calls of a
    /// communicator run one after the other, also with its other calls, and none runs once that
    /// communicator is gone. A group's messages may be sent out of memory where others of it are
    /// received: the contents from before are sent.
    pub const unsafe fn from_raw(address: u64, len: usize, device: usize) -> Self {
        Self {
            address,
            len,
            device,
            element: PhantomData,
        }
    }

    /// `len` elements of it, from `offset` on; `None` if they are not within it.
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
        let site = Site {
            device: self.device,
            stream: None,
            order: Order::User,
        };
        Region::on_device(self.address, self.len, site)
    }
}

// SAFETY: `from_raw` makes all values of this type. It requires that the memory stays until its
// calls have run, and that the user keeps its uses in order. The region is that memory: `len`
// elements of `T` from `address` on, and its order is the user's.
unsafe impl<T: Element> SendBuf<T> for DeviceSlice<T> {
    fn region(&self) -> Region {
        self.whole()
    }

    gives_back!(nothing);
}

// SAFETY: `from_raw` makes all values of this type. It requires that the memory stays until its
// calls have run, and that nothing else uses it while one writes. The region is that memory: `len`
// elements of `T` from `address` on, and its order is the user's.
unsafe impl<T: Element> RecvBuf<T> for DeviceSlice<T> {
    fn region_mut(&mut self) -> Region {
        self.whole()
    }

    gives_back!(nothing);
}

// SAFETY: a call may go on after the borrow: `from_raw` requires of the user that the memory
// stays, and that nothing writes it before the call has run.
unsafe impl<T: Element> DeviceSend<T> for DeviceSlice<T> {}

// SAFETY: a call may go on after the borrow: `from_raw` requires of the user that the memory
// stays, and that nothing else uses it before the call has run.
unsafe impl<T: Element> DeviceRecv<T> for DeviceSlice<T> {}

/// A part of a cudarc buffer, for calls that read it: cudarc's `CudaView` does not show the events
/// that keep its uses in order.
///
/// ```no_run
/// # use spark_ccl::cuda::{DeviceMemory, DevicePart, cudarc::driver::CudaSlice};
/// # use spark_ccl::{Communicator, Error};
/// # fn gather(comm: &Communicator, own: &CudaSlice<f32>, all: &mut DeviceMemory<f32>) -> Result<(), Error> {
/// let stream = comm.context()?.default_stream();
/// comm.all_gather(DevicePart::of(own, 0..100), all).on(&stream)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct DevicePart<'a, T> {
    slice: &'a CudaSlice<T>,
    range: Range<usize>,
}

impl<'a, T> DevicePart<'a, T> {
    /// The elements of a range that the slice has.
    pub fn of(slice: &'a CudaSlice<T>, range: Range<usize>) -> Self {
        let end = range.end.min(slice.len());
        let start = range.start.min(end);
        let range = start..end;
        Self { slice, range }
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}

/// The region of a buffer of cudarc's.
fn of_cudarc<T>(buffer: &(impl Observed + Sliced<T>)) -> Region {
    let seen = buffer.observe();
    // If this fails, the order reports the error before the address is used.
    let address = seen.as_ref().map_or(0, |seen| seen.address);
    let stream = buffer.stream();
    let site = Site {
        device: stream.context().ordinal(),
        stream: Some(Arc::clone(stream)),
        order: Order::Cudarc(seen),
    };
    Region::on_device(address, buffer.len(), site)
}

fn part_of_cudarc<T>(part: &DevicePart<'_, T>) -> Region {
    of_cudarc(part.slice).part(part.range.start, part.range.len(), size_of::<T>())
}

gives_back_owners!([T: Element] CudaSlice<T>);

macro_rules! sends {
    ($([$($life:lifetime)?] $type:ty, $back:ident, $this:ident => $region:expr);+ $(;)?) => {$(
        // SAFETY: it borrows or owns a buffer of cudarc's, so no safe code writes it meanwhile.
        // Each call is noted as the last write, and the buffer's stream waits for that before it
        // frees the memory.
        unsafe impl<$($life,)? T: Element> SendBuf<T> for $type {
            fn region(&self) -> Region {
                let $this = self;
                $region
            }

            gives_back!($back);
        }

        // SAFETY: the call waits for the event of the buffer's last write, and becomes that event.
        // The next use of the buffer, by cudarc or by this library, waits for it, and so does the
        // buffer's stream before it frees the memory. Users who call
        // `CudaContext::disable_event_tracking` keep that order themselves.
        unsafe impl<$($life,)? T: Element> DeviceSend<T> for $type {}
    )+};
}

sends! {
    [] CudaSlice<T>, itself, this => of_cudarc(this);
    ['a] &'a CudaSlice<T>, nothing, this => of_cudarc(*this);
    ['a] &'a mut CudaSlice<T>, nothing, this => of_cudarc(&**this);
    ['a] CudaViewMut<'a, T>, nothing, this => of_cudarc(this);
    ['a] DevicePart<'a, T>, nothing, this => part_of_cudarc(this);
}

macro_rules! receives {
    ($([$($life:lifetime)?] $type:ty, $back:ident, $this:ident => $buffer:expr);+ $(;)?) => {$(
        // SAFETY: it is a unique borrow of a buffer of cudarc's, or its only handle, so nothing
        // else reaches the memory. Each call is noted as the last write, and the buffer's stream
        // waits for that before it frees the memory.
        unsafe impl<$($life,)? T: Element> RecvBuf<T> for $type {
            fn region_mut(&mut self) -> Region {
                let $this = self;
                of_cudarc($buffer)
            }

            gives_back!($back);
        }

        // SAFETY: the call waits for the events of the buffer's last reads and write, and its end
        // becomes the write's event. The next use of the buffer, by cudarc or by this library,
        // waits for it. Users who call `CudaContext::disable_event_tracking` keep that order
        // themselves.
        unsafe impl<$($life,)? T: Element> DeviceRecv<T> for $type {}
    )+};
}

receives! {
    [] CudaSlice<T>, itself, this => &*this;
    ['a] &'a mut CudaSlice<T>, nothing, this => &**this;
    ['a] CudaViewMut<'a, T>, nothing, this => &*this;
}
