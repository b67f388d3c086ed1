use spark_ccl_types::DType;

/// What was wrong with an argument.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArgumentError {
    /// A buffer has another length than the call needs.
    #[error("the {buffer} buffer has {seen} elements, but must have {expected}")]
    Length {
        /// Which buffer.
        buffer: &'static str,
        /// How many elements it must have.
        expected: usize,
        /// How many it has.
        seen: usize,
    },
    /// A buffer cannot be dealt out to the ranks.
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
    /// A buffer, or a reduction, has another element type than the call's.
    #[error("the {what} is of {seen}, but must be of {expected}")]
    DType {
        /// Of what.
        what: &'static str,
        /// The type that it must have.
        expected: DType,
        /// The type that it has.
        seen: DType,
    },
    /// A buffer or stream is of another device than the communicator.
    #[error("the {what} is of device {seen}, but the communicator of device {expected}")]
    Device {
        /// Of what.
        what: &'static str,
        /// The communicator's device.
        expected: i32,
        /// The other device.
        seen: i32,
    },
    /// NCCL takes a setting with another one only.
    #[error("{what} needs {with} as well")]
    Alone {
        /// What was set.
        what: &'static str,
        /// What was not.
        with: &'static str,
    },
    /// No such rank.
    #[error("the {what} is {seen}, but there are {ranks} ranks, from 0 on")]
    Rank {
        /// Which rank it was meant to be: the root, the peer, this rank.
        what: &'static str,
        /// The number given.
        seen: usize,
        /// How many ranks there are.
        ranks: usize,
    },
    /// The buffers overlap other than in the way that is in place.
    #[error(
        "the send and receive buffers overlap; they must be apart, or {}",
        in_place.unwrap_or("in two calls: this is never done in place")
    )]
    Overlap {
        /// What in place means for the call; `None` where nothing does.
        in_place: Option<&'static str>,
    },
    /// The memory does not start where it must.
    #[error("the memory at {address:#x} must be a multiple of {needs} bytes")]
    Alignment {
        /// Where it starts.
        address: usize,
        /// What its address must be a multiple of.
        needs: usize,
    },
    /// What was made with one communicator was used with another.
    #[error("the {what} was made with another communicator")]
    OtherCommunicator {
        /// What was used.
        what: &'static str,
    },
    /// A number is more, or less, than NCCL takes.
    #[error("{what} is {seen}, but must be from {least} to {most}")]
    Beyond {
        /// Of what.
        what: &'static str,
        /// The number given.
        seen: usize,
        /// The least there may be.
        least: usize,
        /// The most there may be.
        most: usize,
    },
    /// A text for C has a zero byte.
    #[error("{what} has a zero byte")]
    ZeroByte {
        /// Which text.
        what: &'static str,
    },
}
