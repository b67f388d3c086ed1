//! Reasons for which an argument is refused before NCCL is called.

use spark_ccl_types::DType;

/// What was wrong with an argument.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArgumentError {
    /// The length of a buffer is not the one that the call needs.
    #[error("the {buffer} buffer has {seen} elements, but must have {expected}")]
    Length {
        /// Which buffer.
        buffer: &'static str,
        /// How many elements it must have.
        expected: usize,
        /// How many it has.
        seen: usize,
    },
    /// A buffer cannot be split equally between the ranks.
    #[error("the {buffer} buffer has {seen} elements, which {ranks} ranks cannot share equally")]
    Shares {
        /// Which buffer.
        buffer: &'static str,
        /// How many elements it has.
        seen: usize,
        /// How many ranks there are.
        ranks: usize,
    },
    /// A buffer that this rank needs was not given.
    #[error("rank {root} is the root and needs a {buffer} buffer")]
    Missing {
        /// Which buffer.
        buffer: &'static str,
        /// The root, which is this rank.
        root: usize,
    },
    /// The element type of a buffer, or of a reduction, is not the call's.
    #[error("the {what} is of {seen}, but must be of {expected}")]
    DType {
        /// What has the wrong type.
        what: &'static str,
        /// The type that it must have.
        expected: DType,
        /// The type that it has.
        seen: DType,
    },
    /// A buffer or stream belongs to another device than the communicator.
    #[error("the {what} is of device {seen}, but the communicator of device {expected}")]
    Device {
        /// What belongs to another device.
        what: &'static str,
        /// The communicator's device.
        expected: i32,
        /// The other device.
        seen: i32,
    },
    /// NCCL accepts a setting only together with another one.
    #[error("{what} needs {with} as well")]
    Alone {
        /// The setting that was given.
        what: &'static str,
        /// The setting that is missing.
        with: &'static str,
    },
    /// There is no such rank.
    #[error("the {what} is {seen}, but there are {ranks} ranks, from 0 on")]
    Rank {
        /// Which rank it should be: the root, the peer, or this rank.
        what: &'static str,
        /// The number given.
        seen: usize,
        /// How many ranks there are.
        ranks: usize,
    },
    /// The buffers overlap, but not in the way that this call supports in place.
    #[error(
        "the send and receive buffers overlap; they must be apart, or {}",
        in_place.unwrap_or("in two calls: this is never done in place")
    )]
    Overlap {
        /// How the buffers must lie for the call in place; `None` if it is never done in place.
        in_place: Option<&'static str>,
    },
    /// The memory is not aligned.
    #[error("the memory at {address:#x} must be a multiple of {needs} bytes")]
    Alignment {
        /// Where it starts.
        address: usize,
        /// What its address must be a multiple of.
        needs: usize,
    },
    /// An object of one communicator was used with another.
    #[error("the {what} was made with another communicator")]
    OtherCommunicator {
        /// The object.
        what: &'static str,
    },
    /// A number is out of NCCL's range.
    #[error("{what} is {seen}, but must be from {least} to {most}")]
    Beyond {
        /// Which number.
        what: &'static str,
        /// The number given.
        seen: usize,
        /// The lower bound.
        least: usize,
        /// The upper bound.
        most: usize,
    },
    /// A C string would contain a zero byte.
    #[error("{what} has a zero byte")]
    ZeroByte {
        /// Which string.
        what: &'static str,
    },
}
