//! The defects that the schedules of a collective can have.

use std::fmt;

use crate::step::{Rank, Step};

/// A defect in the schedules of a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Defect {
    /// No rank can continue.
    Deadlock {
        /// The channels that have not ended.
        stuck: Vec<Stuck>,
    },
    /// The two ends of a link disagree on the length of a message. A signal has length 0.
    Length {
        /// The receiver.
        rank: Rank,
        /// The sender.
        from: Rank,
        /// The channel.
        channel: u32,
        /// Elements expected.
        expected: u64,
        /// Elements in the message.
        seen: u64,
    },
    /// All ranks have ended, but messages were never received.
    Leftover {
        /// The sender.
        from: Rank,
        /// The rank that should have received them.
        to: Rank,
        /// The channel.
        channel: u32,
        /// The number of messages.
        messages: usize,
    },
    /// A message to or from the rank itself, or a rank that does not exist.
    Peer {
        /// The rank of the step.
        rank: Rank,
        /// The step.
        step: Step,
    },
    /// A step did something forbidden.
    Data {
        /// The rank of the step.
        rank: Rank,
        /// The step.
        step: Step,
        /// The element within the step.
        element: u64,
        /// Its action.
        problem: Problem,
    },
    /// An output element is wrong at the end.
    Result {
        /// The rank of the output.
        rank: Rank,
        /// Element of the output.
        element: u64,
        /// Its actual contents.
        seen: String,
    },
    /// Two accesses to the same memory, at least one of them a write, that no message orders.
    Race {
        /// The owner of the memory.
        owner: Rank,
        /// The ranks that access it. The owner's own uses before and after the collective count as
        /// accesses.
        ranks: [Rank; 2],
    },
}

/// The step that a channel of a rank waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stuck {
    /// The rank.
    pub rank: Rank,
    /// The channel.
    pub channel: u32,
    /// The index of the step.
    pub index: u64,
    /// The step.
    pub step: Step,
}

/// The forbidden action of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    /// Accessed elements beyond the end of a buffer. A buffer that the rank does not have is empty.
    OutOfBounds,
    /// Wrote to the input buffer, by that name.
    WroteInput,
    /// Read an element that was never written.
    ReadNothing,
    /// Read an input element that had been overwritten.
    ReadOverwrittenInput,
    /// Reduced a contribution that was read from elsewhere than the input, and so would miss its
    /// factor.
    ReadUnscaled,
    /// Reduced a contribution without the factor that all ranks share.
    Unscaled,
    /// Multiplied what had been reduced, and so multiplied, before.
    ScaledTwice,
    /// Reduced two elements with different indices.
    MixedElements,
    /// Wrote what another channel of the rank uses, or used what another channel wrote.
    SharedByChannels,
    /// Reduced two values that have a contribution in common.
    ReducedTwice,
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadlock { stuck } => {
                write!(f, "deadlock: {} channels wait:", stuck.len())?;
                for Stuck {
                    rank,
                    channel,
                    index,
                    step,
                } in stuck.iter().take(8)
                {
                    write!(
                        f,
                        " [rank {rank} channel {channel} step {index}: {:?}]",
                        step.kind
                    )?;
                }
                Ok(())
            }
            Self::Length {
                rank,
                from,
                channel,
                expected,
                seen,
            } => write!(
                f,
                "rank {rank} expected {expected} elements from rank {from} on channel {channel}, \
                 and got {seen}"
            ),
            Self::Leftover {
                from,
                to,
                channel,
                messages,
            } => write!(
                f,
                "rank {to} left {messages} messages of rank {from} on channel {channel}"
            ),
            Self::Peer { rank, step } => write!(f, "rank {rank} has a step with no peer: {step:?}"),
            Self::Data {
                rank,
                step,
                element,
                problem,
            } => write!(f, "rank {rank}, element {element} of {step:?}: {problem:?}"),
            Self::Result {
                rank,
                element,
                seen,
            } => write!(f, "rank {rank} ends with output {element} being {seen}"),
            Self::Race { owner, ranks } => write!(
                f,
                "ranks {} and {} race for memory of rank {owner}",
                ranks[0], ranks[1]
            ),
        }
    }
}

impl std::error::Error for Defect {}
