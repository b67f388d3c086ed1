//! Results that go past the caches, straight to memory.
//!
//! A store to a line that is not in the cache reads it first, and pushes out another. Streaming
//! stores do neither, if they fill the line. While they are on their way, nothing would be read: so
//! the lines that are needed next are asked for meanwhile.

use core::arch::x86_64::{
    __m128i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_sfence, _mm_stream_si128,
};
use std::mem::MaybeUninit;
use std::ptr;

use super::dispatch::Kernel;
use crate::{Job, Operand};

/// Bytes of a line of the cache.
const LINE: usize = 64;

/// The pieces in which results are computed before they are streamed stay in the first-level cache.
const BLOCK: usize = 8192;

/// How far ahead of a copy its source is asked for: a page, where the hardware's own prefetching
/// ends.
const AHEAD: usize = 4096;

#[repr(C, align(64))]
struct Block([MaybeUninit<u8>; BLOCK]);

/// Runs a job block by block.
///
/// Where a destination is a source, its lines are in the cache anyhow: the results are put there,
/// and streamed to the others only.
///
/// # Safety
/// As for the kernel, which must be that of the job.
pub(super) unsafe fn reduce(kernel: Kernel, job: &Job<'_>) {
    let in_place = |dst: &*mut u8| job.srcs.iter().any(|src| ptr::eq(src.ptr, *dst));
    let home = job.dsts.iter().position(in_place);
    let mut block = Block([MaybeUninit::uninit(); BLOCK]);
    let size = job.dtype.size();
    // Ends the first block with a line of the first destination.
    let lead = job.dsts.first().map_or(0, |dst| dst.addr() % LINE);
    let mut most = (BLOCK - lead) / size;
    let mut first = 0;
    while first < job.count {
        let (at, count) = (first * size, most.min(job.count - first));
        // SAFETY: `count` elements from `at` on lie within the operands, and fit the block. The
        // block's sources are read before anything else than `home` is written.
        unsafe {
            let result = home.map_or(block.0.as_mut_ptr().cast(), |i| job.dsts[i].add(at));
            let part = Job {
                dsts: &[result],
                count,
                ..*job
            };
            kernel(&part, at);
            for (i, dst) in job.dsts.iter().enumerate() {
                if home != Some(i) {
                    let len = count * size;
                    stream(result, dst.add(at), len, job.srcs, at + len);
                }
            }
        }
        most = BLOCK / size;
        first += count;
    }
    fence();
}

/// Copies the only source.
///
/// # Safety
/// Source and destinations must hold the job's elements.
pub(super) unsafe fn copy(src: *const u8, job: &Job<'_>) {
    for &dst in job.dsts {
        if !ptr::eq(src, dst) {
            let len = job.count * job.dtype.size();
            // SAFETY: see above.
            unsafe { stream(src, dst, len, job.srcs, AHEAD) };
        }
    }
    fence();
}

/// Copies with streaming stores, but for the parts of lines at either end. For each line, asks for
/// one of each of the sources `next`, from `at` on.
///
/// # Safety
/// `src` and `dst` must hold `len` bytes, and overlap not at all.
unsafe fn stream(src: *const u8, dst: *mut u8, len: usize, next: &[Operand], at: usize) {
    let head = dst.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let last = head + lines * LINE;
    // SAFETY: the three parts make up `len`; that of whole lines is aligned.
    unsafe {
        ptr::copy_nonoverlapping(src, dst, head);
        for i in 0..lines {
            for operand in next {
                // May lie beyond the source, which a prefetch does not mind.
                _mm_prefetch::<_MM_HINT_T0>(operand.ptr.wrapping_add(at + i * LINE).cast());
            }
            for piece in 0..LINE / size_of::<__m128i>() {
                let at = head + i * LINE + piece * size_of::<__m128i>();
                _mm_stream_si128(dst.add(at).cast(), _mm_loadu_si128(src.add(at).cast()));
            }
        }
        ptr::copy_nonoverlapping(src.add(last), dst.add(last), len - last);
    }
}

/// Orders streaming stores before all later ones. No other fence of this architecture, and no
/// release store, does: whoever is told that the job is done would else see old memory.
fn fence() {
    // SAFETY: an instruction of the baseline.
    unsafe { _mm_sfence() };
}
