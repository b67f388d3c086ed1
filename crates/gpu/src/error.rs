//! Why an operation between GPUs cannot be made, or has failed.

use spark_ccl_types::{Operation, ReduceOp};

/// Why an operation between GPUs cannot be made, or has failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call of the driver failed.
    #[error(transparent)]
    Cuda(#[from] spark_ccl_cuda::Error),
    /// A number of ranks for which there are no kernels.
    #[error("{ranks} ranks; the kernels are for 2 to {}", crate::MAX_RANKS)]
    Ranks {
        /// How many.
        ranks: usize,
    },
    /// Two GPUs cannot reach each other's memory.
    #[error(
        "the GPU of rank {from} cannot reach the memory of that of rank {to}; `nvidia-smi topo -p2p r` \
         says which can"
    )]
    NoAccess {
        /// The rank whose GPU should reach the other's.
        from: usize,
        /// The rank of the other one.
        to: usize,
    },
    /// There is no kernel for an operation.
    #[error("there is no kernel for {operation:?}")]
    Operation {
        /// The operation.
        operation: Operation,
    },
    /// There is no kernel for a reduction.
    #[error("there is no kernel for {op}, which has a factor; use sum, prod, max, min or avg")]
    Reduction {
        /// The reduction.
        op: ReduceOp,
    },
    /// A plan that its limits do not allow, or of a kernel for other operations.
    #[error("the plan {plan} is none for {operation:?} here; take that of `Plan::new`")]
    Plan {
        /// The plan.
        plan: String,
        /// The operation.
        operation: Operation,
    },
    /// A peer did not come within the patience.
    #[error(
        "rank {rank} waited for rank {peer} for {seconds} s in vain (warp {warp}, round {round}): that rank \
         is late, has ended, or made another call"
    )]
    Late {
        /// The rank that waited.
        rank: usize,
        /// The rank that did not come.
        peer: usize,
        /// How long it waited.
        seconds: f64,
        /// Which of its warps.
        warp: u16,
        /// For which of this warp's rounds, in all operations.
        round: u32,
    },
    /// The program ended the waits.
    #[error(
        "rank {rank} was told to stop while it waited for rank {peer} (warp {warp}, round {round})"
    )]
    Aborted {
        /// The rank that waited.
        rank: usize,
        /// The rank for which it waited.
        peer: usize,
        /// Which of its warps.
        warp: u16,
        /// For which of this warp's rounds, in all operations.
        round: u32,
    },
}
