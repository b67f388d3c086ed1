//! What the kernels and Rust share: `kernels/layout.h` has the same structures and numbers.

/// The most ranks of an arena.
pub const MAX_RANKS: usize = 8;
/// The most CTAs of a kernel.
pub(crate) const MAX_CTAS: u32 = 32;
/// The most warps of a CTA.
pub(crate) const MAX_WARPS: u32 = 16;
const WARPS: usize = (MAX_CTAS * MAX_WARPS) as usize;
const DEPTH: usize = 8;
const SLOT_OF_PACKETS: usize = 512;
const SLOT_OF_LINES: usize = 2048;

/// The bytes of the rounds that the warps of a rank have done, by protocol: two numbers of 64 bits.
pub(crate) const ROUNDS_BYTES: usize = WARPS * 2 * 8;

/// The bytes of a rank's scratch.
pub(crate) const fn scratch_bytes(ranks: usize) -> usize {
    WARPS * ranks * DEPTH * (SLOT_OF_PACKETS + SLOT_OF_LINES)
}

/// What a rank has of its communicator; all are addresses on its GPU.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct MemberLayout {
    pub(crate) scratch: [u64; MAX_RANKS],
    pub(crate) rounds: u64,
    pub(crate) failed: u64,
    pub(crate) abort: u64,
    pub(crate) report: u64,
    /// In nanoseconds.
    pub(crate) patience: u64,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
}

/// An operation of a rank.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct CallLayout {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) bytes: u64,
    pub(crate) stride: u64,
    pub(crate) combine: u32,
    pub(crate) divisor: u32,
    pub(crate) dtype: u32,
    pub(crate) unused: u32,
}

impl CallLayout {
    /// An operation on no bytes.
    pub(crate) const NOTHING: Self = Self {
        input: 0,
        output: 0,
        bytes: 0,
        stride: 0,
        combine: 0,
        divisor: 1,
        dtype: 0,
        unused: 0,
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
const _: () = assert!(size_of::<MemberLayout>() == 112);
const _: () = assert!(size_of::<CallLayout>() == 48);
const _: () = assert!(size_of::<Arguments>() == 160);

/// Why a wait ended, as a kernel reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Report {
    /// The program ended it, not the clock.
    pub(crate) is_aborted: bool,
    pub(crate) peer: usize,
    pub(crate) warp: u16,
    pub(crate) round: u32,
}

impl Report {
    /// `None` as long as there is no report, which is 0.
    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        let [reason, peer, ..] = bits.to_le_bytes();
        (reason != 0).then(|| Self {
            is_aborted: reason == 2,
            peer: usize::from(peer),
            warp: (bits >> 16) as u16,
            round: (bits >> 32) as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn fields_are_where_the_kernels_have_them() {
        assert_eq!(offset_of!(MemberLayout, rounds), 64);
        assert_eq!(offset_of!(MemberLayout, patience), 96);
        assert_eq!(offset_of!(MemberLayout, ranks), 108);
        assert_eq!(offset_of!(CallLayout, combine), 32);
        assert_eq!(offset_of!(Arguments, call), 112);
    }

    #[test]
    fn reports_are_read() {
        assert_eq!(Report::from_bits(0), None);
        let report = Report {
            is_aborted: true,
            peer: 3,
            warp: 511,
            round: 70_000,
        };
        let bits = 2 | 3 << 8 | 511 << 16 | 70_000 << 32;
        assert_eq!(Report::from_bits(bits), Some(report));
        let late = Report::from_bits(bits - 1).unwrap();
        assert!(!late.is_aborted);
    }

    #[test]
    fn scratch_is_as_large_as_the_documents_say() {
        assert_eq!(scratch_bytes(2), 20 << 20);
        assert_eq!(scratch_bytes(8), 80 << 20);
    }
}
