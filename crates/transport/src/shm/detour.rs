//! Reads from the peer's memory by way of a buffer, where the kernel would copy slowly between the
//! two addresses.

use spark_ccl_compute::{Helpers, copies_slowly};

use super::reach::{Reach, Unread};

/// The bytes that are read at a time: with their destination, they fit into a core's caches.
const PART: usize = 64 << 10;
const PAGE: usize = 4096;
/// No thread reads less of a message: a system call costs as much as the copy of some kilobytes.
const LEAST_PART: usize = 64 << 10;
/// From the destination's place in its page to that of the buffer: neither copy is slow then.
const AHEAD: usize = 64;

/// The buffer, once it was needed.
#[derive(Debug, Default)]
pub(super) struct Detour(Vec<u8>);

impl Detour {
    /// As [`Reach::read`] does, with helpers if there are any.
    pub(super) fn read(
        &mut self,
        reach: Reach,
        address: u64,
        into: &mut [u8],
        helpers: Option<&Helpers>,
    ) -> Result<(), Unread> {
        if copies_slowly(address as usize, into.as_ptr().addr()) {
            self.read_around(reach, address, into)
        } else if let Some(helpers) = helpers {
            let read =
                |first, part: &mut [u8]| reach.read(address.wrapping_add(first as u64), part);
            helpers.fill(into, LEAST_PART, read)
        } else {
            reach.read(address, into)
        }
    }

    /// Through the buffer.
    pub(super) fn read_around(
        &mut self,
        reach: Reach,
        address: u64,
        into: &mut [u8],
    ) -> Result<(), Unread> {
        self.0.resize(PAGE + PART, 0);
        let place = into.as_ptr().addr().wrapping_add(AHEAD);
        let start = place.wrapping_sub(self.0.as_ptr().addr()) % PAGE;
        for (number, part) in into.chunks_mut(PART).enumerate() {
            let buffer = &mut self.0[start..start + part.len()];
            reach.read(address.wrapping_add((number * PART) as u64), buffer)?;
            part.copy_from_slice(buffer);
        }
        Ok(())
    }
}
