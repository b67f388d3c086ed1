//! How a rank's kernels reach the other ranks: through scratch that they share, or by way of the
//! host.

use std::sync::Arc;

use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_gpu::{self as gpu, Call, Error, Kernel, Limits, Member, Message, Plan, Wire};
use spark_ccl_types::{DType, Operation};

use super::messages::is_of_messages;
use super::patience::Patience;
use super::staged::{Pool, Staged};
use crate::plan::measured::{MEASURED, Measured};

/// How a rank's kernels reach the other ranks.
#[derive(Debug)]
pub(in crate::device) enum KernelTransport {
    /// All ranks reach each other's scratch, on their GPUs or in memory that they share.
    Kernels(Box<Member>),
    /// Kernels stage data in the host's memory, and the host carries them.
    Host(Staged),
}

impl KernelTransport {
    /// This transport, described for people.
    pub(super) fn path(&self) -> String {
        match self {
            Self::Kernels(member) => {
                let Limits { ctas, wire } = member.limits();
                let ranks = member.ranks();
                let (on_gpu, in_host) = (gpu::Scratch::bytes, gpu::Scratch::bytes_in_host);
                let (place, scratch) = match wire {
                    Wire::Any => ("peers' memory, by packets", on_gpu(ranks)),
                    Wire::Whole => ("peers' memory, by lines", on_gpu(ranks)),
                    Wire::Host => ("pinned memory of the host", in_host(ranks)),
                };
                format!("{place}, up to {ctas} CTAs, {scratch} bytes of scratch")
            }
            Self::Host(staged) => staged.path(),
        }
    }

    /// The limits of its kernels; `None` where the host carries the data.
    pub(super) fn limits(&self) -> Option<Limits> {
        match self {
            Self::Kernels(member) => Some(member.limits()),
            Self::Host(_) => None,
        }
    }

    /// Makes the user's memory, if `alloc_device` gives memory of the host.
    pub(super) fn pool(&self) -> Option<&Pool> {
        match self {
            Self::Kernels(_) => None,
            Self::Host(staged) => staged.pool(),
        }
    }

    /// Whether a call's data would be copied into the host's memory.
    pub(super) fn is_copied_by_host(&self, call: &Call) -> bool {
        match self {
            Self::Kernels(_) => false,
            Self::Host(staged) => staged.is_copied_by_host(call),
        }
    }

    /// How a call is done, for people.
    pub(super) fn explain(
        &self,
        measured: &Measured<Kernel>,
        operation: Operation,
        dtype: DType,
        count: usize,
    ) -> Option<String> {
        let member = match self {
            Self::Kernels(member) => member,
            Self::Host(staged) => return staged.explain(operation, dtype, count),
        };
        if is_of_messages(operation) {
            return Some("the kernel of messages".to_owned());
        }
        let bytes = count.saturating_mul(dtype.size()) as u64;
        let (ranks, limits) = (member.ranks(), member.limits());
        let (plan, reason) = if let Some(kernel) = measured.fastest(operation, bytes) {
            (Plan::of(kernel, bytes, ranks, limits), MEASURED)
        } else {
            let plan = Plan::new(operation, bytes, ranks, limits)?;
            (plan, plan.reason(limits))
        };
        Some(format!(
            "kernel {}, {} CTAs of {} threads ({reason})",
            plan.kernel.name(),
            plan.ctas,
            plan.threads,
        ))
    }

    /// Enqueues an operation, by the kernel that was measured to be the fastest, or else by the one
    /// that the plan takes without measurements.
    ///
    /// # Safety
    /// - The descriptors given to [`Member::join`] must have been those of the scratch of this
    ///   communicator's other ranks, by rank, and each scratch must be used for this communicator
    ///   alone.
    /// - Both buffers must be as long as the call says. Until the operation has run, nothing else
    ///   may write the input, or use the output.
    /// - A rank's operations, and launches of graphs that have captured some, must run one after
    ///   the other. A graph must not be launched after this was dropped.
    /// - Ranks whose calls have the same words must make the same calls, and have measured the
    ///   same.
    /// - The kernels of ranks that share a GPU must be able to run at the same time.
    pub(super) unsafe fn enqueue(
        &self,
        measured: &Measured<Kernel>,
        call: &Call,
        stream: &Arc<CudaStream>,
    ) -> Result<(), Error> {
        let bytes = call.count.saturating_mul(call.dtype.size()) as u64;
        let kernel = measured.fastest(call.operation, bytes);
        // SAFETY: buffers are as long as the call says, and the caller leaves them to it until it
        // has run. The caller lets this rank's operations run one after the other, and launches no
        // graph of them after `self` was dropped. A stage needs no more. For a member, the caller
        // has joined it with the scratch of its own communicator alone. Ranks with these words make
        // the same call, and the caller lets their kernels run at the same time. A plan follows
        // from the call, the limits and the measurements. All ranks have these alike, so the plan
        // is the same on all.
        unsafe {
            match (self, kernel) {
                (Self::Kernels(member), Some(kernel)) => {
                    let plan = Plan::of(kernel, bytes, member.ranks(), member.limits());
                    member.enqueue_as(plan, call, stream)
                }
                (Self::Kernels(member), None) => member.enqueue(call, stream),
                (Self::Host(staged), _) => staged.enqueue(call, stream),
            }
        }
    }

    /// Enqueues messages.
    ///
    /// # Safety
    /// - The descriptors given to [`Member::join`] must have been those of the scratch of this
    ///   communicator's other ranks, by rank, and each scratch must be used for this communicator
    ///   alone.
    /// - All buffers must be as long as the messages say. Until all have been passed, nothing else
    ///   may write what is sent, or use what is received.
    /// - A rank's operations, and launches of graphs that have captured some, must run one after
    ///   the other. A graph must not be launched after this was dropped.
    /// - The kernels of ranks that share a GPU must be able to run at the same time.
    pub(super) unsafe fn pass(
        &self,
        messages: &[Message],
        stream: &Arc<CudaStream>,
    ) -> Result<(), Error> {
        // SAFETY: buffers are as long as the messages say, and the caller leaves them to these
        // until all have passed. The caller lets this rank's operations run one after the other,
        // and at the same time as those of ranks on the same GPU. No graph of them is launched
        // after `self` was dropped. A stage needs no more. For a member, the caller has joined it
        // with the scratch of its own communicator alone.
        unsafe {
            match self {
                Self::Kernels(member) => member.pass(messages, stream),
                Self::Host(staged) => staged.pass(messages, stream),
            }
        }
    }

    /// The error that kernels have reported, if any.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self {
            Self::Kernels(member) => member.check(),
            Self::Host(staged) => staged.check(),
        }
    }

    /// A number that changes with progress, if the host sees it.
    pub(super) fn progress(&self) -> u64 {
        match self {
            Self::Kernels(_) => 0,
            Self::Host(staged) => staged.progress(),
        }
    }

    /// Ends this rank's waits, for good.
    pub(super) fn abort(&self) {
        match self {
            Self::Kernels(member) => member.abort(),
            Self::Host(staged) => staged.abort(),
        }
    }

    /// Sets how long waits may take.
    pub(super) fn set_patience(&self, patience: Patience) {
        match self {
            Self::Kernels(member) => member.set_patience(patience.limit()),
            Self::Host(staged) => staged.set_patience(patience),
        }
    }

    pub(super) fn rank(&self) -> usize {
        match self {
            Self::Kernels(member) => member.rank(),
            Self::Host(staged) => staged.rank(),
        }
    }

    /// Ends it once everything in the GPU's context has run. Returns it with the error if the
    /// driver does not wait for that.
    pub(super) fn end(self) -> Result<(), Box<(Self, Error)>> {
        match self {
            Self::Kernels(member) => member.end().map_err(|failed| {
                let (member, error) = *failed;
                Box::new((Self::Kernels(Box::new(member)), error))
            }),
            Self::Host(staged) => staged.end().map_err(|failed| {
                let (staged, error) = *failed;
                Box::new((Self::Host(staged), error))
            }),
        }
    }
}
