//! The structures that message kernels share with Rust; `kernels/channels.h` declares the same.
//! Plain data.

use crate::layout::{MAX_RANKS, MemberLayout};

/// The most strands of a channel, and so the most warps that one end of a message has.
pub(crate) const STRANDS: u32 = 256;
/// The bytes of a rank's channel with another: slots and credits.
pub(crate) const CHANNEL_BYTES: usize = 256 * 8 * 2048 + 256 * 16;
/// The bytes of a rank's counts for a channel.
pub(crate) const COUNTS_BYTES: usize = 3 * 256 * 8 + 128;

/// Where a rank's channels are in each rank's scratch, and its own counts of them on its GPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places {
    pub(crate) channels: u64,
    pub(crate) counts: u64,
}

/// The most flows of a launch: one each way, with each rank.
pub(crate) const FLOWS: usize = 2 * MAX_RANKS;
/// The most messages of a launch, for the two sizes of a kernel's argument.
pub(crate) const FEW: usize = 16;
pub(crate) const MANY: usize = 120;

/// Some messages one way between this rank and a peer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct FlowLayout {
    pub(crate) peer: u8,
    pub(crate) is_sent: u8,
    pub(crate) begin: u8,
    pub(crate) end: u8,
    pub(crate) warps: u32,
}

/// A buffer that is sent or received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct MessageLayout {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) words: [u64; 2],
}

/// The argument of a kernel.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct LaunchLayout<const MESSAGES: usize> {
    pub(crate) member: MemberLayout,
    /// Where the channels are in each rank's scratch.
    pub(crate) channels: u64,
    pub(crate) counts: u64,
    pub(crate) flows: u64,
    pub(crate) flow: [FlowLayout; FLOWS],
    pub(crate) message: [MessageLayout; MESSAGES],
}

// `channels.h` asserts the same sizes. Fields are in the same order, and none is padded.
const _: () = assert!(CHANNEL_BYTES == 4_198_400);
const _: () = assert!(COUNTS_BYTES == 6272);
const _: () = assert!(size_of::<FlowLayout>() == 8);
const _: () = assert!(size_of::<MessageLayout>() == 32);
const _: () = assert!(size_of::<LaunchLayout<FEW>>() == 768);
const _: () = assert!(size_of::<LaunchLayout<MANY>>() == 4096);

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn fields_are_where_the_kernels_have_them() {
        type Launch = LaunchLayout<FEW>;
        assert_eq!(offset_of!(Launch, channels), 104);
        assert_eq!(offset_of!(Launch, counts), 112);
        assert_eq!(offset_of!(Launch, flow), 128);
        assert_eq!(offset_of!(Launch, message), 256);
        assert_eq!(offset_of!(FlowLayout, warps), 4);
        assert_eq!(offset_of!(MessageLayout, words), 16);
    }
}
