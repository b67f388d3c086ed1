//! What can be wrong with boxes and carriers.

use crate::slot::Counter;

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There are no such boxes.
    #[error(
        "slots need at least one lane, 1 to 64 slots a lane and a payload of whole lines of 128 \
         bytes, not {lanes} lanes of {depth} slots of {payload} bytes"
    )]
    Shape {
        /// The lanes.
        lanes: usize,
        /// The slots of each.
        depth: usize,
        /// The bytes of each.
        payload: usize,
    },
    /// Memory is too small for a box.
    #[error("a box takes {needed} bytes, and its memory has {bytes}")]
    Memory {
        /// The memory's bytes.
        bytes: usize,
        /// Those of the box.
        needed: usize,
    },
    /// A kernel has published what cannot be.
    #[error(
        "lane {lane} says that slot {number} has {length} bytes, and slots have {payload}: \
         something else has written its memory"
    )]
    Length {
        /// The lane.
        lane: usize,
        /// The slot.
        number: u64,
        /// Its bytes, as its record says.
        length: u64,
        /// The most.
        payload: usize,
    },
    /// A counter says what cannot be.
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
        /// The least that it can be.
        least: u64,
        /// The most.
        most: u64,
    },
    /// The peer is gone.
    #[error("the other end of the carrier is gone")]
    Gone,
    /// The link to the peer has failed.
    #[error("{problem}")]
    Link {
        /// How.
        problem: String,
    },
    /// The peer has sent what it cannot.
    #[error("protocol violation: {problem}")]
    Violation {
        /// What.
        problem: String,
    },
}

impl Error {
    /// Whether it may follow from what has happened to the peer or to the network, of which others
    /// may know more.
    ///
    /// ```
    /// assert!(spark_ccl_slots::Error::Gone.may_have_a_cause());
    /// ```
    pub fn may_have_a_cause(&self) -> bool {
        matches!(self, Self::Gone | Self::Link { .. })
    }
}
