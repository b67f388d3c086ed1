//! The argument of the kernels. `kernels/slots_layout.h` has the same structures.

use crate::Route;

/// The boxes that a rank has for a peer: where they are for its GPU.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Boxes {
    /// The outbox.
    pub outbox: u64,
    /// The inbox.
    pub inbox: u64,
}

/// How many slots a lane has passed with a peer, in device memory; all 0 at first.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Passed {
    pub(crate) filled: u64,
    consumed: u64,
    sent: u64,
}

/// What a rank has of its communicator; addresses for its GPU.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct SlotMember {
    /// [`Boxes`] by rank, in device memory.
    pub boxes: u64,
    /// [`Passed`] by rank and lane, then one for packets, in device memory.
    pub passed: u64,
    /// `State` of `crates/gpu/kernels/layout.h`, in device memory.
    pub state: u64,
    /// How many calls have gone other ways, in device memory.
    pub others: u64,
    /// `Control` of the same, in the host's memory.
    pub control: u64,
    /// `Failure` of the same, in the host's memory.
    pub failure: u64,
    /// `Journal` of `slots_layout.h`, in the host's memory.
    pub journal: u64,
    /// [`Shape::slots`](crate::Shape::slots).
    pub slots: u64,
    /// [`Shape::stride`](crate::Shape::stride).
    pub stride: u64,
    /// [`Shape::packets`](crate::Shape::packets).
    pub packets: u64,
    /// [`Shape::lanes`](crate::Shape::lanes).
    pub lanes: u32,
    /// [`Shape::depth`](crate::Shape::depth).
    pub depth: u32,
    /// This rank.
    pub rank: u32,
    /// How many ranks there are; at most 8.
    pub ranks: u32,
}

/// A call of a rank.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Exchanging {
    /// Of the communicator.
    pub member: SlotMember,
    /// Where the input is for the GPU.
    pub input: u64,
    /// Where the output is; may be the input.
    pub output: u64,
    /// The bytes of a block.
    pub bytes: u64,
    /// From the input's block for a rank to the next one's, in bytes; 0 where there is only one.
    pub input_stride: u64,
    /// The same of the output.
    pub output_stride: u64,
    /// The most bytes of a slot's payload; a multiple of 16.
    pub piece: u64,
    /// The call's signature: what all ranks must have alike.
    pub words: [u64; 2],
    /// As in `Call` of `crates/gpu/kernels/layout.h`, like all up to `dtype`.
    pub factor: u64,
    /// `Scaling`.
    pub scaling: u32,
    /// `Combine`.
    pub combine: u32,
    /// The divisor of integers, or 1.
    pub divisor: u32,
    /// `Type`.
    pub dtype: u32,
    /// Between which ranks slots go.
    pub route: Route,
    /// Not 0 if the elements of ranks are combined.
    pub reduces: u32,
    /// How many rounds a lane fills before it consumes the first.
    pub ahead: u32,
    /// Nothing.
    pub unused: u32,
}

// `slots_layout.h` asserts the same sizes. Fields are in the same order, and none is padded.
const _: () = assert!(size_of::<Passed>() == 24);
const _: () = assert!(size_of::<SlotMember>() == 96);
const _: () = assert!(size_of::<Exchanging>() == 216);
