//! The errors of boxes and carriers.

use crate::slot::{Counter, Placement};

/// An error of boxes or carriers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Boxes cannot have this shape.
    #[error(
        "slots need at least one lane, 1 to 64 slots a lane and a payload of whole lines of 128 \
         bytes, not {lanes} lanes of {depth} slots of {payload} bytes"
    )]
    Shape {
        /// The lanes.
        lanes: usize,
        /// The slots of each lane.
        depth: usize,
        /// The bytes of each slot.
        payload: usize,
    },
    /// Memory is too small for a box.
    #[error("a box takes {needed} bytes, and its memory has {bytes}")]
    Memory {
        /// The memory's bytes.
        bytes: usize,
        /// The bytes of the box.
        needed: usize,
    },
    /// The address of a box's slots does not fit their placement.
    #[error("slots whose placement is {placement:?} have the address {on_device:x?} on a GPU")]
    Placement {
        /// Where the shape has them.
        placement: Placement,
        /// The address on a GPU that the box was given.
        on_device: Option<u64>,
    },
    /// A kernel has published a slot of impossible length.
    #[error(
        "lane {lane} says that slot {number} has {length} bytes, and slots have {payload}: \
         something else has written its memory"
    )]
    Length {
        /// The lane.
        lane: usize,
        /// The slot.
        number: u64,
        /// The bytes in the slot's record.
        length: u64,
        /// The largest payload of a slot.
        payload: usize,
    },
    /// A counter has an impossible value.
    #[error(
        "lane {lane}: {counter:?} is {seen}, and can be {least} to {most}: something else has \
         written its memory, or the peer is another program"
    )]
    Count {
        /// The lane.
        lane: usize,
        /// Which counter.
        counter: Counter,
        /// Its value.
        seen: u64,
        /// The smallest value that it can have.
        least: u64,
        /// The largest value that it can have.
        most: u64,
    },
    /// The peer is gone.
    #[error("the other end of the carrier is gone")]
    Gone,
    /// The link to the peer has failed.
    #[error("{problem}")]
    Link {
        /// The link's error.
        problem: String,
    },
    /// The peer has sent something that it must not.
    #[error("protocol violation: {problem}")]
    Violation {
        /// The part of the protocol that it violates.
        problem: String,
    },
}

impl Error {
    /// Whether this error may be the consequence of a fault of the peer or the network, about which
    /// other ranks may know more.
    ///
    /// ```
    /// assert!(spark_ccl_slots::Error::Gone.may_have_a_cause());
    /// ```
    pub fn may_have_a_cause(&self) -> bool {
        matches!(self, Self::Gone | Self::Link { .. })
    }
}
