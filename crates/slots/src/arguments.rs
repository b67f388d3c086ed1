//! The argument of the kernels. `kernels/slots_layout.h` has the same structures.

use crate::layout::HEAD;
use crate::{Route, Shape};

/// The addresses of a rank's boxes for a peer, on the rank's GPU.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Boxes {
    /// The outbox.
    pub outbox: u64,
    /// The inbox.
    pub inbox: u64,
    /// The heads of the outbox's slots.
    pub heads: u64,
    /// The payloads of the outbox's slots.
    pub payloads: u64,
    /// The slots of the inbox.
    pub slots: u64,
}

impl Boxes {
    /// An outbox and an inbox at these addresses. `slots` says where the slots of both are, if they
    /// are not in the boxes.
    pub fn new(shape: Shape, [outbox, inbox]: [u64; 2], slots: Option<[u64; 2]>) -> Self {
        let within = [outbox, inbox].map(|start| start + shape.slots() as u64);
        let [filled, come] = slots.unwrap_or(within);
        Self {
            outbox,
            inbox,
            heads: within[0],
            payloads: filled + HEAD as u64,
            slots: come,
        }
    }
}

/// How many slots a lane has passed with a peer, in device memory; all 0 at first.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Passed {
    pub(crate) filled: u64,
    consumed: u64,
    sent: u64,
}

/// A rank's part in its communicator. Addresses are on its GPU.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct SlotMember {
    /// [`Boxes`] by rank, in device memory.
    pub boxes: u64,
    /// [`Passed`] by rank and lane, then one for packets, then one by rank for the number of
    /// messages, in device memory.
    pub passed: u64,
    /// `State` of `crates/gpu/kernels/layout.h`, in device memory.
    pub state: u64,
    /// How many calls have not gone through slots, in device memory.
    pub others: u64,
    /// `Control` of `crates/gpu/kernels/layout.h`, in the host's memory.
    pub control: u64,
    /// `Failure` of `crates/gpu/kernels/layout.h`, in the host's memory.
    pub failure: u64,
    /// `Journal` of `slots_layout.h`, of calls and then of the messages from and to each rank, in
    /// the host's memory.
    pub journal: u64,
    /// [`Shape::heads`](crate::Shape::heads).
    pub heads: u64,
    /// [`Shape::stride`](crate::Shape::stride).
    pub stride: u64,
    /// [`Shape::packets`](crate::Shape::packets).
    pub packets: u64,
    /// [`Shape::lanes`](crate::Shape::lanes); the last one is for messages.
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
    /// The rank's part in its communicator.
    pub member: SlotMember,
    /// The input's address on the GPU.
    pub input: u64,
    /// The output's address, which may be the input's.
    pub output: u64,
    /// The bytes of a block.
    pub bytes: u64,
    /// The distance of the input's blocks for adjacent ranks, in bytes; 0 if there is only one
    /// block.
    pub input_stride: u64,
    /// The distance of the output's blocks, in bytes; 0 if there is only one block.
    pub output_stride: u64,
    /// The most bytes of a slot's payload; a multiple of 16.
    pub piece: u64,
    /// The call's signature, which must be the same on all ranks.
    pub words: [u64; 2],
    /// This and the fields up to `dtype` are as in `Call` of `crates/gpu/kernels/layout.h`.
    pub factor: u64,
    /// `Scaling`.
    pub scaling: u32,
    /// `Combine`.
    pub combine: u32,
    /// The divisor of integers, or 1.
    pub divisor: u32,
    /// `Type`.
    pub dtype: u32,
    /// The ranks that exchange slots.
    pub route: Route,
    /// Not 0 if the elements of ranks are combined.
    pub reduces: u32,
    /// How many rounds a lane fills before it consumes the first.
    pub ahead: u32,
    /// Not 0 if the call ends only once its slots have been taken from the outbox: where some ranks
    /// may end it while others have not begun it.
    pub settles: u32,
}

/// The most flows of a launch.
pub const FLOWS: usize = 16;
/// The most messages of a launch.
pub const MESSAGES: usize = 80;

/// The messages of a launch to a rank, or from one.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Flow {
    /// The other rank.
    pub peer: u32,
    /// Not 0 if this rank sends them.
    pub is_sent: u32,
    /// The place of the first of them among the launch's messages.
    pub begin: u32,
    /// The place behind the last one.
    pub end: u32,
}

/// This rank's end of a message.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Message {
    /// The buffer's address on the GPU.
    pub start: u64,
    /// The bytes of the buffer.
    pub bytes: u64,
    /// The most bytes of a slot's payload.
    pub piece: u64,
    /// The signature, which must be the same at both ends.
    pub words: [u64; 2],
}

/// Messages of a rank, with a flow for each CTA.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Mailing {
    /// The rank's part in its communicator.
    pub member: SlotMember,
    /// The flows.
    pub flow: [Flow; FLOWS],
    /// The messages of all flows.
    pub message: [Message; MESSAGES],
}

// `slots_layout.h` asserts the same sizes. Fields are in the same order, and none is padded.
const _: () = assert!(size_of::<Boxes>() == 40);
const _: () = assert!(size_of::<Passed>() == 24);
const _: () = assert!(size_of::<SlotMember>() == 96);
const _: () = assert!(size_of::<Exchanging>() == 216);
const _: () = assert!(size_of::<Flow>() == 16);
const _: () = assert!(size_of::<Message>() == 40);
const _: () = assert!(size_of::<Mailing>() == 3552);
