//! What can be wrong with the schedules of a collective.

use std::fmt;

use crate::step::{Rank, Step};

/// Something wrong with the schedules of a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Nobody can go on.
    Deadlock {
        /// Where everyone is who has not ended.
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
    /// Everyone has ended, and there are messages that nobody took.
    Leftover {
        /// The sender.
        from: Rank,
        /// Who should have received.
        to: Rank,
        /// The channel.
        channel: u32,
        /// How many.
        messages: usize,
    },
    /// A message to or from the rank itself, or a rank that does not exist.
    Peer {
        /// Whose step it is.
        rank: Rank,
        /// The step.
        step: Step,
    },
    /// A step did something it must not do.
    Data {
        /// Whose step it is.
        rank: Rank,
        /// The step.
        step: Step,
        /// Element of the step.
        element: u64,
        /// What it did.
        problem: Problem,
    },
    /// An output element is wrong at the end.
    Result {
        /// Whose output.
        rank: Rank,
        /// Element of the output.
        element: u64,
        /// What is there instead.
        seen: String,
    },
    /// Two accesses to the same memory, at least one a write, with no message to order them.
    Race {
        /// Whose memory.
        owner: Rank,
        /// Who accesses it; the owner's own use before or after the collective counts as well.
        ranks: [Rank; 2],
    },
}

/// Where a rank's channel stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stuck {
    /// The rank.
    pub rank: Rank,
    /// The channel.
    pub channel: u32,
    /// Index of the step.
    pub index: u64,
    /// The step.
    pub step: Step,
}

/// What a step did that it must not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    /// Reached beyond the end of a buffer (one that a rank does not have is empty).
    OutOfBounds,
    /// Wrote to the input buffer, by that name.
    WroteInput,
    /// Read what nobody has written.
    ReadNothing,
    /// Read as input what was written over in the meantime.
    ReadOverwrittenInput,
    /// Reduced a contribution that was not read as input, so may not be scaled.
    ReadUnscaled,
    /// Reduced two different elements with each other.
    MixedElements,
    /// Wrote what another channel of the rank uses, or used what another wrote.
    SharedByChannels,
    /// Reduced two values that have a contribution in common.
    ReducedTwice,
}

impl fmt::Display for Fault {
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

impl std::error::Error for Fault {}
