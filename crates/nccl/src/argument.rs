//! The reasons for refusing an argument before NCCL is called.

use spark_ccl_types::DType;

/// The problem of an argument.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArgumentError {
    /// A buffer has another length than the call needs.
    #[error("the {buffer} buffer has {seen} elements, but must have {expected}")]
    Length {
        /// The buffer.
        buffer: &'static str,
        /// The number of elements that it must have.
        expected: usize,
        /// The number of elements that it has.
        seen: usize,
    },
    /// A buffer cannot be split equally between the ranks.
    #[error("the {buffer} buffer has {seen} elements, which {ranks} ranks cannot share equally")]
    Shares {
        /// The buffer.
        buffer: &'static str,
        /// The number of elements that it has.
        seen: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// A buffer that this rank needs was not given.
    #[error("rank {root} is the root and needs a {buffer} buffer")]
    Missing {
        /// The buffer.
        buffer: &'static str,
        /// The root, which is this rank.
        root: usize,
    },
    /// A buffer or a reduction has another element type than the call.
    #[error("the {what} is of {seen}, but must be of {expected}")]
    DType {
        /// The buffer or reduction.
        what: &'static str,
        /// The type that it must have.
        expected: DType,
        /// The type that it has.
        seen: DType,
    },
    /// A buffer or stream belongs to another device than the communicator.
    #[error("the {what} is of device {seen}, but the communicator of device {expected}")]
    Device {
        /// The buffer or stream.
        what: &'static str,
        /// The communicator's device.
        expected: i32,
        /// The other device.
        seen: i32,
    },
    /// NCCL accepts a setting only together with another one.
    #[error("{what} needs {with} as well")]
    Alone {
        /// The given setting.
        what: &'static str,
        /// The missing setting.
        with: &'static str,
    },
    /// The communicator has no rank of this number.
    #[error("the {what} is {seen}, but there are {ranks} ranks, from 0 on")]
    Rank {
        /// Its role: the root, the peer, or this rank.
        what: &'static str,
        /// The given number.
        seen: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// The buffers overlap, but not as this call in place allows.
    #[error(
        "the send and receive buffers overlap; they must be apart, or {}",
        in_place.unwrap_or("in two calls: this is never done in place")
    )]
    Overlap {
        /// How the buffers must lie for this call in place; `None` if it is never done in place.
        in_place: Option<&'static str>,
    },
    /// The memory is not aligned.
    #[error("the memory at {address:#x} must be a multiple of {needs} bytes")]
    Alignment {
        /// Its address.
        address: usize,
        /// The required alignment in bytes.
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
        /// The number's name.
        what: &'static str,
        /// The given number.
        seen: usize,
        /// The lower bound.
        least: usize,
        /// The upper bound.
        most: usize,
    },
    /// A C string would contain a zero byte.
    #[error("{what} has a zero byte")]
    ZeroByte {
        /// The string.
        what: &'static str,
    },
}
