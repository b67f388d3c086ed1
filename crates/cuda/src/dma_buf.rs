//! Memory of a device as a dma-buf, by which RDMA devices register it. Does not know who does.

use std::os::fd::{FromRawFd, OwnedFd};

use cudarc::driver::sys;

use crate::pointer::range_of;
use crate::{Error, Feature, checked, require};

/// Memory of a device, by a descriptor. The descriptor may be closed once the memory is registered;
/// the memory must stay for as long as it is.
#[derive(Debug)]
pub struct DmaBuf {
    /// The dma-buf, of whole pages of the host.
    pub descriptor: OwnedFd,
    /// Where the memory begins in it.
    pub offset: u64,
}

impl DmaBuf {
    /// Exports memory that is one allocation, or one mapping, of a device. Its context must be
    /// current.
    pub(crate) fn of(device: usize, address: u64, bytes: usize) -> Result<Self, Error> {
        require(Feature::DmaBuf)?;
        let outside = || Error::Range {
            device,
            address,
            bytes,
        };
        let last = address.saturating_add(bytes.max(1) as u64 - 1);
        let range = range_of(device, address)?.ok_or_else(outside)?;
        if !range.contains(&last) {
            return Err(outside());
        }
        let pages = pages_of(address, last, host_page());
        // Whole pages of an allocation by `cuMemAlloc` may hold parts of others.
        if pages.start < range.start || pages.end > range.end {
            return Err(outside());
        }
        let mut descriptor = -1_i32;
        let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        // SAFETY: for this kind of handle, the driver writes an `int`, to `descriptor`. It checks
        // the range, and the flags are none.
        let status = unsafe {
            let place = (&raw mut descriptor).cast();
            let (start, length) = (pages.start, (pages.end - pages.start) as usize);
            sys::cuMemGetHandleForAddressRange(place, start, length, kind, 0)
        };
        checked("cuMemGetHandleForAddressRange", device, status.result())?;
        Ok(Self {
            // SAFETY: the driver has just opened the descriptor, for this call.
            descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) },
            offset: address - pages.start,
        })
    }
}

/// The whole pages that a first and a last byte are in.
fn pages_of(first: u64, last: u64, page: u64) -> std::ops::Range<u64> {
    let start = first / page * page;
    start..(last / page + 1) * page
}

/// The bytes of a page of the host, in which the driver exports memory.
fn host_page() -> u64 {
    rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_pages_are_exported() {
        const PAGE: u64 = 64 << 10;
        let start = 7 * PAGE;
        assert_eq!(pages_of(start, start, PAGE), start..start + PAGE);
        assert_eq!(pages_of(start, start + PAGE - 1, PAGE), start..start + PAGE);
        assert_eq!(
            pages_of(start + 512, start + PAGE, PAGE),
            start..start + 2 * PAGE
        );
    }
}
