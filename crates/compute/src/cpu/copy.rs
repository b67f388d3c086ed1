//! Copies, byte for byte.

use std::ptr;

use crate::Job;

/// glibc copies lengths up to here by vector instructions.
const PIECE: usize = 1024;
const PAGE: usize = 4096;

/// Copies the only source.
///
/// # Safety
/// The source must be readable, and the destinations writable, for the job's elements. A destination that is not
/// the source must not overlap it.
pub(super) unsafe fn copy(src: *const u8, job: &Job<'_>) {
    let len = job.count * job.dtype.size();
    for &dst in job.dsts {
        if ptr::eq(src, dst) {
            continue;
        }
        let most = if copies_slowly(src.addr(), dst.addr()) {
            PIECE
        } else {
            len
        };
        // SAFETY: the source is readable and `dst` writable for `len` bytes, the job's elements, and they do not
        // overlap: this function requires both.
        unsafe { copy_in_pieces(src, dst, len, most) };
    }
}

/// Copies `len` bytes, at most `most` (not 0) by one call.
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` bytes, and they must not overlap.
unsafe fn copy_in_pieces(src: *const u8, dst: *mut u8, len: usize, most: usize) {
    let mut at = 0;
    while at < len {
        let count = most.min(len - at);
        // SAFETY: `at + count <= len`, so these bytes are among those that are readable and writable and do not overlap
        // (this function's contract).
        unsafe { ptr::copy_nonoverlapping(src.add(at), dst.add(at), count) };
        at += count;
    }
}

/// Whether copies from one address to another are slow where `rep movsb` makes them, as Linux does, and glibc before 2.39
/// from some kilobytes on.
///
/// AMD's Zen 3 and 4 then take up to 20 times as long if the destination's place in its page is 1 to 31 bytes behind the
/// source's. That is common: blocks of `malloc` that hold whole pages and follow one another are 16 bytes apart in that.
/// On other processors there is nothing to avoid, and copies by vector instructions may take longer.
///
/// Source: bug 30994 of glibc; measured in docs/performance.md.
///
/// ```
/// assert!(!spark_ccl_compute::copies_slowly(0x1000, 0x8000));
/// ```
pub fn copies_slowly(src: usize, dst: usize) -> bool {
    matches!(dst.wrapping_sub(src) % PAGE, 1..32) && is_zen_3_or_4()
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn is_zen_3_or_4() -> bool {
    use raw_cpuid::CpuId;
    use std::sync::LazyLock;

    /// The family of both.
    const FAMILY: u8 = 0x19;
    static ZEN_3_OR_4: LazyLock<bool> = LazyLock::new(|| {
        let id = CpuId::new();
        let is_amd = id
            .get_vendor_info()
            .is_some_and(|vendor| vendor.as_str() == "AuthenticAMD");
        is_amd
            && id
                .get_feature_info()
                .is_some_and(|info| info.family_id() == FAMILY)
    });
    *ZEN_3_OR_4
}

#[cfg(any(not(target_arch = "x86_64"), miri))]
fn is_zen_3_or_4() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

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
                    // SAFETY: both hold `len` bytes from there on, apart from each other, and nothing else uses them.
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

    #[test]
    fn only_destinations_just_behind_the_source_are_slow() {
        for distance in 0..PAGE {
            let slow = copies_slowly(0x7000, 0x12_7000 + distance);
            assert_eq!(slow, is_zen_3_or_4() && (1..32).contains(&distance));
        }
    }
}
