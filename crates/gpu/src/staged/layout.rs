//! What the kernel and Rust share: `kernels/staged_layout.h` has the same structures and numbers.

/// The most CTAs.
pub(super) const STAGE_CTAS: usize = 8;
/// The slots of each.
pub(super) const SLOTS: usize = 2;
/// The bytes of a slot.
pub(super) const SLOT: usize = 512 << 10;
/// In a slot, the output starts behind the input, at a multiple of this.
pub(super) const GAP: usize = 64;

/// The words of 64 bits of a `Bell`, an `Answer`, and of what precedes them.
pub(super) const LINE: usize = 8;
/// The bytes of `StageState`.
pub(super) const STATE_BYTES: usize = 72;
/// Where its `failed` is.
pub(super) const FAILED: u64 = 64;

/// Where a rank's stage is; all are addresses on its GPU.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct StageLayout {
    pub(super) slots: u64,
    pub(super) bells: u64,
    pub(super) answers: u64,
    pub(super) control: u64,
    pub(super) expired: u64,
    pub(super) state: u64,
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
    pub(super) inputs: u32,
    pub(super) outputs: u32,
    pub(super) is_shared: u32,
    pub(super) unused: u32,
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
        inputs: 0,
        outputs: 0,
        is_shared: 0,
        unused: 0,
    };
}

/// The kernel's argument.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Passing {
    pub(super) stage: StageLayout,
    pub(super) transfer: Transfer,
}

// `staged_layout.h` asserts the same sizes. Fields are in the same order, and none is padded.
const _: () = assert!(size_of::<StageLayout>() == 48);
const _: () = assert!(size_of::<Transfer>() == 88);
const _: () = assert!(size_of::<Passing>() == 136);
