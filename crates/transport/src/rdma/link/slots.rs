//! The slots of one direction of a link, at either end.

// Headers are aligned: the memory starts at a page boundary, and slots are multiples of 64 bytes
// apart.
#![allow(clippy::cast_ptr_alignment)]

use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};
use spark_ccl_verbs::{Access, Error, MemoryRegion, ProtectionDomain};

use crate::memory::{available_bytes, too_little};
use crate::{Geometry, LinkError};

/// The header before a payload: the tag and the number of the message, 64 bits each.
pub(super) const HEADER_BYTES: usize = 16;
/// From a slot's start to its payload, which is aligned for every reduction. The header ends here.
const PAYLOAD: usize = 64;

/// The size of a greeting: a packet of the largest MTU, because the network between two ports may
/// carry less than the ports.
pub(super) const GREETING: usize = 4096;

const MAX_SLOTS: usize = 1 << 16;
const MAX_SLOT_BYTES: usize = 1 << 30;

/// The slots of one direction. Both ends have the same layout, so a message has the same offset at
/// both.
#[derive(Debug)]
pub(super) struct Slots {
    start: NonNull<u8>,
    bytes: usize,
    geometry: Geometry,
    /// One for each rail; empty once they are deregistered.
    regions: Vec<MemoryRegion>,
}

// SAFETY: the mapping belongs to the process and not to a thread. The bytes are accessible only
// through raw pointers, whose users are responsible for synchronisation.
unsafe impl Send for Slots {}

/// The header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) tag: u64,
    pub(super) number: u64,
    /// The payload tells where the message is.
    pub(super) is_lent: bool,
}

/// Marks a lent message, in the header's word for the number.
const LENT: u64 = 1 << 63;

impl Slots {
    /// The slots of a link's end, for what it sends and what it receives.
    ///
    /// # Errors
    /// When there is not enough memory, or the geometry is beyond the limits of links over RDMA.
    pub(super) fn both(geometry: Geometry) -> Result<[Self; 2], Box<dyn std::error::Error>> {
        check_available(geometry, available_bytes())?;
        Ok([Self::new(geometry)?, Self::new(geometry)?])
    }

    /// Allocates slots, all zero, not registered yet.
    pub(super) fn new(geometry: Geometry) -> Result<Self, LinkError> {
        let bytes = bytes(geometry).ok_or_else(|| {
            LinkError::Misuse(format!("a link over RDMA cannot have {geometry:?}"))
        })?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // Shared, so that a fork does not turn pages that a device writes into copies.
        //
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::SHARED)
        }
        .map_err(|error| LinkError::Os {
            call: "mmap",
            error,
        })?;
        let start = NonNull::new(start.cast()).ok_or(LinkError::Os {
            call: "mmap",
            error: rustix::io::Errno::NOMEM,
        })?;
        Ok(Self {
            start,
            bytes,
            geometry,
            regions: Vec::new(),
        })
    }

    /// Registers the memory with one more rail's device; returns the region's index.
    pub(super) fn register(
        &mut self,
        domain: &ProtectionDomain,
        access: Access,
    ) -> Result<(), Error> {
        // SAFETY: the memory is unmapped only after the region is deregistered, and is accessed
        // only through raw pointers.
        let region = unsafe { domain.register(self.start, self.bytes, access) }?;
        self.regions.push(region);
        Ok(())
    }

    pub(super) fn regions(&self) -> &[MemoryRegion] {
        &self.regions
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The address and offset of the [`GREETING`] bytes behind all slots.
    pub(super) fn greeting(&self) -> (*const u8, usize) {
        let offset = self.bytes - GREETING;
        // SAFETY: they are the last bytes of the memory, so the offset is within it.
        (unsafe { self.start.as_ptr().add(offset) }, offset)
    }

    /// The offset of a message's header in the memory.
    pub(super) fn offset(&self, number: u64) -> usize {
        let Geometry { slot_bytes, slots } = self.geometry;
        let slot = (number % slots as u64) as usize;
        slot * (PAYLOAD + slot_bytes) + PAYLOAD - HEADER_BYTES
    }

    /// The address of a message's payload, 64-byte aligned, with room for `slot_bytes`.
    pub(super) fn payload(&self, number: u64) -> *mut u8 {
        // SAFETY: the slot is one of the geometry's, so its payload lies within the memory.
        unsafe { self.header(number).add(HEADER_BYTES) }
    }

    /// # Safety
    /// The slot belongs to the caller.
    pub(super) unsafe fn write_header(&self, header: Header) {
        let at = self.header(header.number).cast::<u64>();
        // SAFETY: the header is two aligned words within the memory. The slot belongs to the
        // caller, as this function requires, so neither the peer nor the device accesses it.
        unsafe {
            at.write(header.tag);
            at.add(1)
                .write(header.number | if header.is_lent { LENT } else { 0 });
        }
    }

    /// Reads the header of a message in its slot, once: the peer may write to it at any time.
    pub(super) fn read_header(&self, number: u64) -> Result<Header, LinkError> {
        let at = self.header(number).cast::<u64>();
        // SAFETY: the header is two aligned words within the memory, for which any bits are valid.
        let (tag, word) = unsafe { (at.read_volatile(), at.add(1).read_volatile()) };
        let header = Header {
            tag,
            number: word & !LENT,
            is_lent: word & LENT != 0,
        };
        if header.number != number {
            return Err(LinkError::Protocol(format!(
                "the slot of message {number} holds message {}",
                header.number
            )));
        }
        Ok(header)
    }

    fn header(&self, number: u64) -> *mut u8 {
        // SAFETY: the slot is one of the geometry's, so it lies within the memory.
        unsafe { self.start.as_ptr().add(self.offset(number)) }
    }
}

/// Checks for available memory: the kernel does not refuse a mapping that it has no memory for, but
/// kills processes later.
fn check_available(geometry: Geometry, available: Option<u64>) -> Result<(), String> {
    let needed = bytes(geometry).map_or(0, |bytes| bytes.saturating_mul(2));
    let Some(available) = too_little(needed, available) else {
        return Ok(());
    };
    Err(format!(
        "a link takes {} KiB of memory for its slots, where {} KiB are available: lower \
         SPARK_CCL_SLOTS ({} now) or SPARK_CCL_SLOT_BYTES ({} now)",
        needed >> 10,
        available >> 10,
        geometry.slots,
        geometry.slot_bytes
    ))
}

/// The size of all slots and a greeting; `None` if the geometry is beyond the limits of such links.
fn bytes(geometry: Geometry) -> Option<usize> {
    let Geometry { slot_bytes, slots } = geometry;
    let possible = slot_bytes % 64 == 0
        && (64..=MAX_SLOT_BYTES).contains(&slot_bytes)
        && (1..=MAX_SLOTS).contains(&slots);
    let all = slots
        .checked_mul(PAYLOAD + slot_bytes)?
        .checked_add(GREETING)?;
    (possible && isize::try_from(all).is_ok()).then_some(all)
}

impl Drop for Slots {
    fn drop(&mut self) {
        for region in self.regions.drain(..) {
            if let Err(error) = region.deregister() {
                // A device may still write: this memory must never be reused.
                spark_ccl_log::warn!("{} bytes are never freed: {error}", self.bytes);
                return;
            }
        }
        // SAFETY: the mapping is this value's own, no device can access it any more, and pointers
        // into it may be used only while the value lives.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        if let Err(error) = unmapped {
            spark_ccl_log::warn!("munmap: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_there_is_not_is_asked_for_in_words() {
        let geometry = Geometry {
            slot_bytes: 256 << 10,
            slots: 3072,
        };
        let available = 2 << 30;
        check_available(geometry, None).unwrap();
        check_available(geometry, Some(available)).unwrap();
        let error = check_available(geometry, Some(available / 2)).unwrap_err();
        for words in [
            "takes 1573256 KiB",
            "where 1048576 KiB are available",
            "SPARK_CCL_SLOTS (3072 now)",
            "SPARK_CCL_SLOT_BYTES (262144 now)",
        ] {
            assert!(error.contains(words), "{error}");
        }
    }
}
