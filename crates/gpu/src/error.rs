//! Why an operation between GPUs cannot be made, or has failed.

use spark_ccl_types::Operation;

/// Why an operation between GPUs cannot be made, or has failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call of the driver failed.
    #[error(transparent)]
    Cuda(#[from] spark_ccl_cuda::Error),
    /// Slots cannot have this shape.
    #[error(transparent)]
    Slots(#[from] spark_ccl_slots::Error),
    /// A call of the driver failed when some kernels of a call had been launched, and others not.
    #[error("the call was enqueued in part: {0}")]
    InPart(spark_ccl_cuda::Error),
    /// A number of ranks for which there are no kernels.
    #[error("{ranks} ranks; the kernels are for 1 to {}", crate::MAX_RANKS)]
    Ranks {
        /// How many ranks.
        ranks: usize,
    },
    /// Descriptors that are not those of the peers.
    #[error(
        "rank {rank} was given the scratch of {given} peers; of {ranks} ranks, it needs that of \
         each other, by rank, and none in its own place"
    )]
    Peers {
        /// The rank.
        rank: usize,
        /// The number of ranks that its own scratch is for.
        ranks: usize,
        /// How many descriptors there are.
        given: usize,
    },
    /// Memory of the host that is too short for scratch, or that was registered for another GPU.
    #[error(
        "scratch in the host's memory needs {needed} bytes, and this GPU reaches {given} of those \
         given"
    )]
    HostScratch {
        /// How many bytes of the memory the rank's GPU reaches.
        given: usize,
        /// How many bytes the scratch needs.
        needed: usize,
    },
    /// There is no kernel for an operation.
    #[error("there is no kernel for {operation:?}")]
    Operation {
        /// The operation.
        operation: Operation,
    },
    /// A root that is no rank.
    #[error("rank {rank} was given the root {root}; the ranks are 0 to {}", ranks.saturating_sub(1))]
    Root {
        /// The rank.
        rank: usize,
        /// The root.
        root: usize,
        /// How many ranks there are.
        ranks: usize,
    },
    /// The other end of a message that is no rank.
    #[error("rank {rank} was given the peer {peer}; the ranks are 0 to {}", ranks.saturating_sub(1))]
    Peer {
        /// The rank.
        rank: usize,
        /// The peer.
        peer: usize,
        /// How many ranks there are.
        ranks: usize,
    },
    /// A plan beyond the limits, or with a kernel that does not do the operation.
    #[error("the plan {plan} does not fit {operation:?} here; take that of `Plan::new`")]
    Plan {
        /// The plan.
        plan: String,
        /// The operation.
        operation: Operation,
    },
    /// A peer made a different call.
    #[error(
        "rank {rank} does not agree with rank {peer} in operation {operation}: it has signed {:#x} \
         {:#x}, and rank {peer} {:#x} {:#x}; all ranks must make the same calls in the same order",
        own[0], own[1], theirs[0], theirs[1]
    )]
    Mismatch {
        /// The rank that compared.
        rank: usize,
        /// A rank that it does not agree with.
        peer: usize,
        /// Its own words, of [`Call::words`](crate::Call::words).
        own: [u64; 2],
        /// The peer's.
        theirs: [u64; 2],
        /// Which of the operations it was, counted from 1, those in graphs included.
        operation: u64,
    },
    /// A message is not what its receiver expects.
    #[error(
        "rank {rank} does not agree with rank {peer} in message {message} from there: it has \
         signed {:#x} {:#x}, and rank {peer} {:#x} {:#x}; each message must be received with the \
         type and the count with which it is sent",
        own[0], own[1], theirs[0], theirs[1]
    )]
    OtherMessage {
        /// The receiver.
        rank: usize,
        /// The sender.
        peer: usize,
        /// The receiver's words, of [`Message::words`](crate::Message::words).
        own: [u64; 2],
        /// The sender's.
        theirs: [u64; 2],
        /// Which of the messages from this peer it was, counted from 1, those in graphs included.
        message: u64,
    },
    /// A peer did not come within the patience.
    #[error(
        "rank {rank} waited for rank {peer} for {seconds} s in vain (warp {warp}, round {round}): \
         that rank is late, or has ended"
    )]
    Late {
        /// The rank that waited.
        rank: usize,
        /// The rank that did not come.
        peer: usize,
        /// How long it waited.
        seconds: f64,
        /// Which warp of the rank; for a message, which strand.
        warp: u16,
        /// Which of this warp's rounds, counted over all operations; for a message, which batch of
        /// the strand.
        round: u32,
    },
    /// The host did nothing for a kernel within the patience.
    #[error(
        "rank {rank} waited for its host for {seconds} s in vain: the process was stopped, or its \
         thread has ended"
    )]
    Unanswered {
        /// The rank that waited.
        rank: usize,
        /// How long it waited.
        seconds: f64,
    },
    /// The host ended the waits.
    #[error(
        "rank {rank} was told to stop while it waited for rank {peer} (warp {warp}, round {round})"
    )]
    Aborted {
        /// The rank that waited.
        rank: usize,
        /// The rank for which it waited.
        peer: usize,
        /// Which warp of the rank.
        warp: u16,
        /// Which of this warp's rounds, counted over all operations.
        round: u32,
    },
    /// The host ended the waits while no kernel waited.
    #[error("rank {rank} was told to stop; make a new communicator")]
    Ended {
        /// The rank.
        rank: usize,
    },
}

impl Error {
    /// The error of a launch, after this number of successful launches of the same operation.
    #[must_use]
    pub fn after(self, launches: usize) -> Self {
        match self {
            Self::Cuda(error) if launches > 0 => Self::InPart(error),
            error => error,
        }
    }
}
