//! The layout that the kernel and Rust share: `kernels/staged_layout.h` has the same structures and
//! numbers.

use crate::flows::{FLOWS, MESSAGES};

/// The most CTAs of an operation. Each CTA has a lane.
pub(super) const STAGE_CTAS: usize = 8;
/// The slots of a lane.
pub(super) const SLOTS: usize = 2;
/// The bytes of a slot of operations, and the most of a slot of messages.
pub(super) const SLOT: usize = 512 << 10;
/// In a slot, the output starts behind the input, at a multiple of this.
pub(super) const GAP: usize = 64;

/// The words of 64 bits of a `Bell`, an `Answer`, and of what precedes them.
pub(super) const LINE: usize = 8;
/// In device memory: `failed`; how many operations have ended; and from here on, how many pieces
/// each lane has had.
pub(super) const OPERATIONS: u64 = 8;
pub(super) const ROUNDS: u64 = 16;

/// Some lanes of a rank; all are addresses on its GPU.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct StageLayout {
    pub(super) slots: u64,
    pub(super) slot: u64,
    pub(super) bells: u64,
    pub(super) answers: u64,
    pub(super) control: u64,
    pub(super) expired: u64,
    pub(super) rounds: u64,
    pub(super) operations: u64,
    pub(super) failed: u64,
}

/// The memory on which the host does an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Manner {
    InSlots,
    /// Buffers in memory of the host: one piece, which nothing copies.
    OnBuffers,
    /// The same, where the shorter buffer is this rank's block of the other one.
    InPlace,
}

/// An operation of a rank.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Transfer {
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) input_stride: u64,
    pub(super) output_stride: u64,
    pub(super) bytes: u64,
    pub(super) piece: u64,
    pub(super) words: [u64; 2],
    pub(super) factor: u64,
    pub(super) factor_bytes: u64,
    pub(super) inputs: u32,
    pub(super) outputs: u32,
    pub(super) is_shared: u32,
    pub(super) manner: Manner,
}

impl Transfer {
    /// A piece of nothing.
    pub(super) const NOTHING: Self = Self {
        input: 0,
        output: 0,
        input_stride: 0,
        output_stride: 0,
        bytes: 0,
        piece: 1,
        words: [0; 2],
        factor: 0,
        factor_bytes: 0,
        inputs: 0,
        outputs: 0,
        is_shared: 0,
        manner: Manner::InSlots,
    };
}

/// The argument of the kernel of operations.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Passing {
    pub(super) stage: StageLayout,
    pub(super) transfer: Transfer,
}

/// Messages one way between this rank and another: a CTA's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct StageFlow {
    pub(super) lane: u32,
    pub(super) is_sent: u16,
    pub(super) begin: u16,
    pub(super) pieces: u64,
}

/// A buffer that is sent or received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct StageMessage {
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) piece: u64,
    pub(super) words: [u64; 2],
}

/// The argument of the kernel of messages.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Posting {
    pub(super) stage: StageLayout,
    pub(super) flow: [StageFlow; FLOWS],
    pub(super) message: [StageMessage; MESSAGES],
}

// `staged_layout.h` asserts the same sizes. Fields are in the same order, and none is padded.
const _: () = assert!(size_of::<StageLayout>() == 72);
const _: () = assert!(size_of::<Transfer>() == 96);
const _: () = assert!(size_of::<Passing>() == 168);
const _: () = assert!(size_of::<StageFlow>() == 16);
const _: () = assert!(size_of::<StageMessage>() == 40);
const _: () = assert!(size_of::<Posting>() == 3784);
