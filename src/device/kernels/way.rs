//! How a rank's kernels reach the other ranks: their GPUs' memory, or by way of the host.

use super::staged::Staged;
use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_gpu::{self as gpu, Call, Error, Member, Message};
use spark_ccl_types::Operation;
use std::sync::Arc;
use std::time::Duration;

/// How a rank's kernels reach the other ranks.
#[derive(Debug)]
pub(in crate::device) enum Way {
    /// All GPUs reach each other's memory.
    Peers(Box<Member>),
    /// The host carries what kernels stage there.
    Host(Staged),
}

impl Way {
    /// Whether there are kernels for an operation.
    pub(super) fn does(&self, operation: Operation) -> bool {
        matches!(self, Self::Peers(_)) || operation.has_schedule()
    }

    /// What it is, for people.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Peers(member) => {
                let gpu::Limits { ctas, lines } = member.limits();
                let protocol = if lines { "lines" } else { "packets" };
                let scratch = gpu::Scratch::bytes(member.ranks());
                format!(
                    "peers' memory, by {protocol}, up to {ctas} CTAs, {scratch} bytes of scratch"
                )
            }
            Self::Host(staged) => staged.describe(),
        }
    }

    /// Enqueues an operation.
    ///
    /// # Safety
    /// As of [`Member::enqueue`].
    pub(super) unsafe fn enqueue(
        &self,
        call: &Call,
        stream: &Arc<CudaStream>,
    ) -> Result<(), Error> {
        // SAFETY: the caller vouches for what both ask for; of a stage, that is less.
        unsafe {
            match self {
                Self::Peers(member) => member.enqueue(call, stream),
                Self::Host(staged) => staged.enqueue(call, stream),
            }
        }
    }

    /// Enqueues messages.
    ///
    /// # Safety
    /// As of [`Member::pass`].
    pub(super) unsafe fn pass(
        &self,
        messages: &[Message],
        stream: &Arc<CudaStream>,
    ) -> Result<(), Error> {
        match self {
            // SAFETY: the caller vouches for it.
            Self::Peers(member) => unsafe { member.pass(messages, stream) },
            Self::Host(_) => Err(Error::Operation {
                operation: Operation::Send,
            }),
        }
    }

    /// What kernels have reported.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self {
            Self::Peers(member) => member.check(),
            Self::Host(staged) => staged.check(),
        }
    }

    /// Ends this rank's waits, for good.
    pub(super) fn abort(&self) {
        match self {
            Self::Peers(member) => member.abort(),
            Self::Host(staged) => staged.abort(),
        }
    }

    /// Sets how long waits may take.
    pub(super) fn set_patience(&self, patience: Duration) {
        match self {
            Self::Peers(member) => member.set_patience(patience),
            Self::Host(staged) => staged.set_patience(patience),
        }
    }

    pub(super) fn rank(&self) -> usize {
        match self {
            Self::Peers(member) => member.rank(),
            Self::Host(staged) => staged.rank(),
        }
    }

    /// Ends it once all has run in the GPU's context. It comes back where the driver does not wait for that.
    pub(super) fn end(self) -> Result<(), Box<(Self, Error)>> {
        match self {
            Self::Peers(member) => member.end().map_err(|failed| {
                let (member, error) = *failed;
                Box::new((Self::Peers(Box::new(member)), error))
            }),
            Self::Host(staged) => match staged.settle() {
                Ok(()) => Ok(()),
                Err(error) => Err(Box::new((Self::Host(staged), error))),
            },
        }
    }
}
