//! A rank's part in an arena.

use std::sync::Arc;

use spark_ccl_cuda::OwnStream;
use spark_ccl_cuda::cudarc::driver::{CudaContext, CudaStream};

use crate::arena::Arena;
use crate::kernels::Kernels;
use crate::layout::{Arguments, CallLayout, MemberLayout, Report};
use crate::{Call, Error, Kernel, Limits, Plan};

/// A rank's part in an [`Arena`].
#[derive(Debug)]
pub struct Member {
    layout: MemberLayout,
    arena: Arc<Arena>,
}

impl Member {
    /// The parts of all ranks, by rank.
    ///
    /// # Errors
    /// The driver fails.
    pub fn all_of(arena: &Arc<Arena>) -> Result<Vec<Self>, Error> {
        let contexts = arena.contexts.iter().enumerate();
        let members = contexts.map(|(rank, context)| {
            let member = Self {
                layout: arena.layout_of(rank)?,
                arena: Arc::clone(arena),
            };
            member.warm_up(context)?;
            Ok(member)
        });
        members.collect()
    }

    /// Launches each kernel for nothing, and waits: what the driver does at the first launch may wait
    /// for kernels that run, and these may wait for a peer.
    fn warm_up(&self, context: &Arc<CudaContext>) -> Result<(), Error> {
        let stream = OwnStream::new(context)?;
        let arguments = Arguments {
            member: self.layout,
            call: CallLayout::NOTHING,
        };
        for kernel in Kernel::ALL {
            let plan = Plan::of(kernel, 0, self.ranks(), self.limits());
            // SAFETY: without bytes, a kernel only reads the rounds, which the arena has.
            unsafe { self.kernels().launch(plan, arguments, stream.inner())? };
        }
        Ok(stream.synchronize()?)
    }

    fn kernels(&self) -> &Kernels {
        &self.arena.kernels[self.rank()]
    }

    /// Which rank it is.
    pub fn rank(&self) -> usize {
        self.layout.rank as usize
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.layout.ranks as usize
    }

    /// What bounds plans here.
    pub fn limits(&self) -> Limits {
        self.arena.limits
    }

    /// The plan that [`enqueue`](Self::enqueue) takes.
    ///
    /// # Errors
    /// There is no kernel for the operation.
    pub fn plan(&self, call: &Call) -> Result<Plan, Error> {
        let operation = call.operation;
        let plan = Plan::new(operation, call.bytes(), self.ranks(), self.limits());
        plan.ok_or(Error::Operation { operation })
    }

    /// Enqueues an operation in a stream of the rank's GPU, or captures it into a graph; does not wait.
    ///
    /// # Safety
    /// - Both buffers must be as long as the call says. Until the operation has run, nothing else may
    ///   write the input, or use the output.
    /// - All ranks must make the same calls in the same order, each one after the other: in one
    ///   stream, or in streams that wait for each other. That includes launches of graphs. A graph
    ///   must not be launched after the member was dropped.
    /// - The kernels of ranks that share a GPU must be able to run at the same time.
    ///
    /// # Errors
    /// An earlier operation has failed, there is no kernel for the call, or the driver fails.
    pub unsafe fn enqueue(&self, call: &Call, stream: &CudaStream) -> Result<(), Error> {
        let plan = self.plan(call)?;
        // SAFETY: the buffers are as long as the call says, and are left to it until it has run;
        // all ranks make the same calls in order, and their kernels can run at the same time (this
        // function's contract). `plan` follows from the call, the number of ranks and the arena's
        // limits, so it is the same on all ranks.
        unsafe { self.enqueue_as(plan, call, stream) }
    }

    /// Like [`enqueue`](Self::enqueue), by a plan of the caller's, the same on all ranks.
    ///
    /// # Safety
    /// The same as for [`enqueue`](Self::enqueue).
    ///
    /// # Errors
    /// The same; or the plan is for another operation, or beyond the limits.
    pub unsafe fn enqueue_as(
        &self,
        plan: Plan,
        call: &Call,
        stream: &CudaStream,
    ) -> Result<(), Error> {
        self.check()?;
        let fitting = Plan::of(plan.kernel, call.bytes(), self.ranks(), self.limits());
        let is_allowed = self.limits().lines || !plan.kernel.has_lines();
        if plan != fitting || !is_allowed || !plan.kernel.does(call.operation) {
            return Err(Error::Plan {
                plan: format!("{plan:?}"),
                operation: call.operation,
            });
        }
        let arguments = Arguments {
            member: self.layout,
            call: call.layout(self.ranks())?,
        };
        if call.count == 0 {
            return Ok(());
        }
        // SAFETY: the caller vouches for the buffers, and for one operation at a time. Scratch, rounds
        // and reports belong to the arena, which frees them only after the kernels that run have
        // ended: nobody launches others once its members are dropped.
        unsafe { self.kernels().launch(plan, arguments, stream) }
    }

    /// Whether a wait of this rank has ended in vain. Looks at memory of the host, and asks no driver;
    /// what is still running is not waited for.
    ///
    /// # Errors
    /// One has: which, and for which peer.
    pub fn check(&self) -> Result<(), Error> {
        let rank = self.rank();
        let Some(report) = Report::from_bits(self.arena.report(rank)) else {
            return Ok(());
        };
        let Report {
            is_aborted,
            peer,
            warp,
            round,
        } = report;
        Err(if is_aborted {
            Error::Aborted {
                rank,
                peer,
                warp,
                round,
            }
        } else {
            Error::Late {
                rank,
                peer,
                seconds: self.arena.patience.as_secs_f64(),
                warp,
                round,
            }
        })
    }

    /// Ends all waits of all ranks, for good.
    pub fn abort(&self) {
        self.arena.abort();
    }
}
