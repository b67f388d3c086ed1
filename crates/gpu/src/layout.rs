//! The structures that kernels and Rust share; `kernels/layout.h` declares the same. Plain data.

/// The most ranks of a communicator.
pub const MAX_RANKS: usize = 8;
/// The most CTAs of a kernel.
pub(crate) const MAX_CTAS: u32 = 32;
/// The most warps of a CTA.
pub(crate) const MAX_WARPS: u32 = 16;
const WARPS: usize = (MAX_CTAS * MAX_WARPS) as usize;
const DEPTH: usize = 8;
const SLOT_OF_PACKETS: usize = 512;
const SLOT_OF_LINES: usize = 2048;
const SIGNATURES: usize = 2 * MAX_RANKS * 32;

/// The bytes of `Rounds`, for all warps of a rank: three numbers of 64 bits for each.
pub(crate) const ROUNDS_BYTES: usize = WARPS * 3 * 8;
/// The bytes of `State`, which has a cache line of its own.
pub(crate) const STATE_BYTES: usize = 128;
/// The offset of `State::ended`.
pub(crate) const ENDED: u64 = 12;

/// The bytes of a rank's scratch that its peers write: signatures, and slots.
pub(crate) const fn shared_bytes(ranks: usize) -> usize {
    SIGNATURES + WARPS * ranks * DEPTH * (SLOT_OF_PACKETS + SLOT_OF_LINES)
}

/// A rank's part in its communicator, as addresses on its GPU.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct MemberLayout {
    pub(crate) scratch: [u64; MAX_RANKS],
    pub(crate) rounds: u64,
    pub(crate) state: u64,
    pub(crate) control: u64,
    pub(crate) failure: u64,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
}

/// Which elements a factor is for; `layout.h` says more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Scaling {
    Plain = 0,
    Own = 1,
    Shared = 2,
    OwnInMemory = 3,
}

/// An operation of a rank.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct CallLayout {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) bytes: u64,
    pub(crate) input_stride: u64,
    pub(crate) output_stride: u64,
    pub(crate) words: [u64; 2],
    pub(crate) factor: u64,
    pub(crate) scaling: u32,
    pub(crate) combine: u32,
    pub(crate) divisor: u32,
    pub(crate) dtype: u32,
    pub(crate) to: u32,
    pub(crate) from: u32,
}

impl CallLayout {
    /// An operation without data.
    pub(crate) const NOTHING: Self = Self {
        input: 0,
        output: 0,
        bytes: 0,
        input_stride: 0,
        output_stride: 0,
        words: [0; 2],
        factor: 0,
        scaling: Scaling::Plain as u32,
        combine: 0,
        divisor: 1,
        dtype: 0,
        to: 0,
        from: 0,
    };
}

/// The argument of all kernels.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Arguments {
    pub(crate) member: MemberLayout,
    pub(crate) call: CallLayout,
}

// `layout.h` asserts the same sizes. Fields are in the same order, and none is padded.
const _: () = assert!(size_of::<MemberLayout>() == 104);
const _: () = assert!(size_of::<CallLayout>() == 88);
const _: () = assert!(size_of::<Arguments>() == 192);

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn fields_are_where_the_kernels_have_them() {
        assert_eq!(offset_of!(MemberLayout, rounds), 64);
        assert_eq!(offset_of!(MemberLayout, failure), 88);
        assert_eq!(offset_of!(MemberLayout, ranks), 100);
        assert_eq!(offset_of!(CallLayout, words), 40);
        assert_eq!(offset_of!(CallLayout, scaling), 64);
        assert_eq!(offset_of!(CallLayout, from), 84);
        assert_eq!(offset_of!(Arguments, call), 104);
    }

    #[test]
    fn scratch_is_as_large_as_the_documents_say() {
        assert_eq!(shared_bytes(2) - SIGNATURES, 20 << 20);
        assert_eq!(shared_bytes(8) - SIGNATURES, 80 << 20);
    }
}
