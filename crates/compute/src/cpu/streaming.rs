//! Results that are stored past the caches, straight to memory.
//!
//! A store to a line that is not cached first reads that line, and evicts another. Streaming stores
//! that fill whole lines do neither. No reads would happen while they are in progress, so the lines
//! needed next are prefetched meanwhile.

use core::arch::x86_64::{
    __m128i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_sfence, _mm_stream_si128,
};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;

use super::copy::copy_to;
use super::dispatch::Kernel;
use crate::{Job, Operand};

/// The size of a cache line in bytes.
const LINE: usize = 64;

/// Results are computed in blocks that fit into the L1 cache, and then streamed.
const BLOCK: usize = 8192;

/// How far ahead of a copy its source is prefetched: a page, at whose end the hardware's own
/// prefetching stops.
const AHEAD: usize = 4096;

#[repr(C, align(64))]
struct Block([MaybeUninit<u8>; BLOCK]);

/// Runs a job block by block.
///
/// The results are computed in one destination, and go from there to the others. It is one whose
/// lines are cached: a destination that is also a source, or one that is not to be streamed.
///
/// # Safety
/// `kernel` must be one for the job's type and operation, at a level that the machine supports. The
/// job must have a source. Its sources must be readable and its destinations writable for
/// `job.count` elements. No destination may overlap another operand partly, and nothing else may
/// write the sources or touch the destinations meanwhile.
pub(super) unsafe fn reduce(kernel: Kernel, job: &Job<'_>) {
    let is_source = |dst: &*mut u8| job.srcs.iter().any(|src| ptr::eq(src.ptr, *dst));
    let kept = |&index: &usize| !job.streams(index);
    let cached = job.dsts.iter().copied().find(is_source);
    let cached = cached.or_else(|| (0..job.dsts.len()).find(kept).map(|index| job.dsts[index]));
    let mut block = Block([MaybeUninit::uninit(); BLOCK]);
    let size = job.dtype.size();
    let mut most = (BLOCK - lead(job, cached)) / size;
    let mut first = 0;
    while first < job.count {
        let (at, count) = (first * size, most.min(job.count - first));
        // SAFETY: all operands hold `job.count` elements, so `count` of them from `at` on lie
        // within each (`first + count <= job.count`); they fit into the block. The job has a
        // source, `kernel` is one for its type and operation, and the machine supports its level.
        // Nothing else uses the operands. This function requires all of that of its arguments. The
        // kernel has read a block's sources before any destination but `cached` is written. No
        // destination overlaps the result: `cached`, which may be listed twice, is left out, and
        // others do not overlap it partly.
        unsafe {
            let result = cached.map_or(block.0.as_mut_ptr().cast(), |dst| dst.add(at));
            let part = Job {
                dsts: &[result],
                count,
                ..*job
            };
            kernel(&part, at);
            let len = count * size;
            for (index, &dst) in job.dsts.iter().enumerate() {
                if cached == Some(dst) {
                    continue;
                }
                if job.streams(index) {
                    let next = at + len..job.count * size;
                    stream(result, dst.add(at), len, job.srcs, next);
                } else {
                    ptr::copy_nonoverlapping(result, dst.add(at), len);
                }
            }
        }
        most = BLOCK / size;
        first += count;
    }
    fence();
}

/// How much shorter the first block is, so that it ends at a line boundary of the first destination
/// that is streamed.
fn lead(job: &Job<'_>, cached: Option<*mut u8>) -> usize {
    let is_streamed =
        |&(index, &dst): &(usize, &*mut u8)| job.streams(index) && cached != Some(dst);
    let streamed = job.dsts.iter().enumerate().find(is_streamed);
    streamed.map_or(0, |(_, dst)| dst.addr() % LINE)
}

/// Copies the only source.
///
/// # Safety
/// The source must be readable, and the destinations writable, for the job's elements. A
/// destination that is not the source must not overlap it.
pub(super) unsafe fn copy(src: *const u8, job: &Job<'_>) {
    let len = job.count * job.dtype.size();
    for (index, &dst) in job.dsts.iter().enumerate() {
        if ptr::eq(src, dst) {
            continue;
        }
        // SAFETY: the source is readable and `dst` writable for `len` bytes, the job's elements,
        // and `dst`, which is not the source, does not overlap it: this function requires both.
        unsafe {
            if job.streams(index) {
                stream(src, dst, len, job.srcs, AHEAD..len);
            } else {
                copy_to(src, dst, len);
            }
        }
    }
    fence();
}

/// Copies with streaming stores, except for incomplete lines at either end. For each line,
/// prefetches one line of each source, as long as `next` has more.
///
/// # Safety
/// `src` and `dst` must hold `len` bytes, and must not overlap.
unsafe fn stream(src: *const u8, dst: *mut u8, len: usize, srcs: &[Operand], next: Range<usize>) {
    let head = dst.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let last = head + lines * LINE;
    let mut next = next.step_by(LINE);
    // SAFETY: `src` is readable and `dst` writable for `len` bytes, which do not overlap: this
    // function requires that. The three parts add up to `len`. The streaming stores need 16 aligned
    // bytes: `head` ends at a line of `dst`, unless there are no whole lines. SSE2 belongs to the
    // architecture's baseline. A prefetch faults at no address.
    unsafe {
        ptr::copy_nonoverlapping(src, dst, head);
        for i in 0..lines {
            if let Some(at) = next.next() {
                for operand in srcs {
                    _mm_prefetch::<_MM_HINT_T0>(operand.ptr.wrapping_add(at).cast());
                }
            }
            for piece in 0..LINE / size_of::<__m128i>() {
                let at = head + i * LINE + piece * size_of::<__m128i>();
                _mm_stream_si128(dst.add(at).cast(), _mm_loadu_si128(src.add(at).cast()));
            }
        }
        ptr::copy_nonoverlapping(src.add(last), dst.add(last), len - last);
    }
}

/// Orders streaming stores before all later stores. On this architecture neither a release store
/// nor another kind of fence orders them. Without this fence, another thread could learn that the
/// job is done, and still read the old memory.
fn fence() {
    // SAFETY: the instruction belongs to SSE, which the architecture's baseline has, and accesses
    // no memory.
    unsafe { _mm_sfence() };
}

#[cfg(test)]
mod tests {
    use spark_ccl_types::{Combine, DType};

    use super::*;
    use crate::Streaming;

    #[test]
    fn blocks_end_at_lines_of_what_is_streamed() {
        let dsts = [8, 24].map(|offset| ptr::without_provenance_mut(4096 + offset));
        let lead = |streaming, cached| {
            let job = Job {
                dtype: DType::F32,
                op: Combine::Sum,
                srcs: &[],
                dsts: &dsts,
                count: 0,
                streaming,
                divides: false,
            };
            super::lead(&job, cached)
        };
        assert_eq!(lead(Streaming::Last, None), 24);
        assert_eq!(lead(Streaming::Everything, None), 8);
        assert_eq!(lead(Streaming::Everything, Some(dsts[0])), 24);
        assert_eq!(lead(Streaming::Last, Some(dsts[1])), 0);
    }
}
