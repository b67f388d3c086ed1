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
        let mut at = 0;
        while at < len {
            let count = most.min(len - at);
            // SAFETY: the source is readable and `dst` writable for `len` bytes, the job's elements, and they do not
            // overlap: this function requires both. `at + count <= len`.
            unsafe { ptr::copy_nonoverlapping(src.add(at), dst.add(at), count) };
            at += count;
        }
    }
}

/// Whether copies from one address to another are slow where `rep movsb` makes them, as Linux does, and glibc before 2.39
/// from some kilobytes on.
///
/// AMD's Zen 3 and 4 then take up to 20 times as long if the destination's place in its page is 1 to 31 bytes behind the
/// source's. That is common: blocks of `malloc` that hold whole pages and follow one another are 16 bytes apart in that.
///
/// Source: bug 30994 of glibc; measured in docs/performance.md.
///
/// ```
/// assert!(!spark_ccl_compute::copies_slowly(0x1000, 0x8000));
/// ```
pub const fn copies_slowly(src: usize, dst: usize) -> bool {
    cfg!(target_arch = "x86_64") && matches!(dst.wrapping_sub(src) % PAGE, 1..32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Operand;
    use spark_ccl_types::{Combine, DType, Scale};

    #[test]
    fn every_distance_within_a_page() {
        let source: Vec<u8> = (0..20_000_u32).map(|i| ((i * 31) >> 3) as u8).collect();
        for distance in (0..40).chain([64, 4080]) {
            for len in [0, 1, PIECE, PIECE + 1, 5000] {
                let mut target = vec![0xa5; 20_000];
                let shift =
                    (source.as_ptr().addr() + distance).wrapping_sub(target.as_ptr().addr());
                let start = shift % 4096;
                let job = Job {
                    dtype: DType::U8,
                    op: Combine::Sum,
                    srcs: &[Operand {
                        ptr: source.as_ptr(),
                        scale: Scale::One,
                    }],
                    dsts: &[target[start..].as_mut_ptr()],
                    count: len,
                    streaming: false,
                };
                assert_eq!(
                    copies_slowly(source.as_ptr().addr(), job.dsts[0].addr()),
                    cfg!(target_arch = "x86_64") && (1..32).contains(&distance)
                );
                // SAFETY: both hold `len` bytes from there on, and nothing else uses them.
                unsafe { copy(source.as_ptr(), &job) };
                assert!(
                    target[start..start + len] == source[..len],
                    "{distance} {len}"
                );
                let others = target[..start].iter().chain(&target[start + len..]);
                assert!(
                    others.into_iter().all(|&byte| byte == 0xa5),
                    "{distance} {len}"
                );
            }
        }
    }
}
