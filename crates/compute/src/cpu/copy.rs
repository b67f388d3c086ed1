//! Copies, byte for byte.

use std::ptr;

use super::slow_copies::copies_slowly;
use crate::Job;

/// glibc copies up to this length by vector instructions.
const PIECE: usize = 1024;

/// Copies the only source.
///
/// # Safety
/// The source must be readable, and the destinations writable, for the job's elements. A
/// destination that is not the source must not overlap it.
#[inline]
pub(super) unsafe fn copy(src: *const u8, job: &Job<'_>) {
    let len = job.count * job.dtype.size();
    for &dst in job.dsts.iter().filter(|&&dst| !ptr::eq(src, dst)) {
        // SAFETY: the source is readable and `dst` writable for `len` bytes, the job's elements,
        // and they do not overlap: this function requires both.
        unsafe { copy_to(src, dst, len) };
    }
}

/// Copies `len` bytes.
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` bytes, and they must not overlap.
#[inline]
pub(super) unsafe fn copy_to(src: *const u8, dst: *mut u8, len: usize) {
    let most = if len > PIECE && copies_slowly(src.addr(), dst.addr()) {
        PIECE
    } else {
        len
    };
    // SAFETY: `src` is readable and `dst` writable for `len` bytes, and they do not overlap: this
    // function requires that. `most` is not 0: it is `PIECE`, or `len`, and without bytes nothing
    // is copied.
    unsafe { copy_in_pieces(src, dst, len, most) };
}

/// Copies `len` bytes, at most `most` (not 0, unless `len` is) by one call.
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` bytes, and they must not overlap.
#[inline]
unsafe fn copy_in_pieces(src: *const u8, dst: *mut u8, len: usize, most: usize) {
    let mut at = 0;
    while at < len {
        let count = most.min(len - at);
        // SAFETY: `at + count <= len`, so these bytes are among those that are readable and
        // writable and do not overlap (this function's contract).
        unsafe { ptr::copy_nonoverlapping(src.add(at), dst.add(at), count) };
        at += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    #[test]
    fn every_distance_within_a_page() {
        let source: Vec<u8> = (0..20_000_u32).map(|i| ((i * 31) >> 3) as u8).collect();
        for distance in (0..40).chain([64, 4080]) {
            for len in [0, 1, PIECE, PIECE + 1, 5000] {
                for most in [PIECE, 20_000] {
                    let mut target = vec![0xa5; 20_000];
                    let shift =
                        (source.as_ptr().addr() + distance).wrapping_sub(target.as_ptr().addr());
                    let start = shift % PAGE;
                    let dst = target[start..].as_mut_ptr();
                    // SAFETY: both hold `len` bytes from there on, apart from each other, and
                    // nothing else uses them.
                    unsafe { copy_in_pieces(source.as_ptr(), dst, len, most) };
                    assert!(
                        target[start..start + len] == source[..len],
                        "{distance} {len} {most}"
                    );
                    let others = target[..start].iter().chain(&target[start + len..]);
                    assert!(
                        others.into_iter().all(|&byte| byte == 0xa5),
                        "{distance} {len} {most}"
                    );
                }
            }
        }
    }
}
