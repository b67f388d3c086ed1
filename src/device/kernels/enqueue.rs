//! From checked tasks to a kernel in a stream.

use std::sync::Arc;
use std::time::Duration;

use spark_ccl_control::DevicePart;
use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_cuda::{RecordedEvent, capture_of, is_capturing};
use spark_ccl_gpu::{self as gpu, Call, Message};
use spark_ccl_types::{ReduceOp, Side};

use super::copies::MessageCopy;
use super::engine::KernelEngine;
use super::messages::{messages_of, part_of};
use super::transport::KernelTransport;
use crate::device::calls::Calls;
use crate::device::rank::DeviceState;
use crate::device::watched_engine::WatchedEngine;
use crate::error::Error;
use crate::memory::device::gate::Passed;
use crate::task::Task;

/// The end of a kernel, in a stream that captures nothing.
pub(super) type LaunchEnd = Result<Option<Arc<RecordedEvent>>, spark_ccl_cuda::Error>;

/// A call that its engine has admitted.
pub(super) struct Admitted<'a> {
    pub(super) engine: &'a KernelEngine,
    pub(super) work: Work,
    task: &'a Task,
    pub(super) stream: &'a Arc<CudaStream>,
}

/// The work of a kernel for a call.
pub(super) enum Work {
    Collective(Call),
    Messages(Vec<Message>),
}

impl KernelEngine {
    /// Admits, enqueues and notes a checked call that is in no group.
    pub(super) fn enqueue(&self, task: &Task, stream: &Arc<CudaStream>) -> Result<(), Error> {
        let call = self.admit(task, stream)?;
        // Held until the call is noted: nothing is freed meanwhile.
        let _passed = call.to_launch()?;
        call.hold_back()?;
        let launched = match &call.work {
            Work::Collective(of_all) => self.launch(of_all, stream, call.limit()),
            Work::Messages(messages) => self.pass(messages, &[], stream, call.limit()),
        };
        call.observe(&launched);
        let (end, launched) = self.end_of(launched, stream);
        launched.and(end.map_or(Ok(()), |end| call.note(end)))
    }

    /// Checks a task and a stream, before anything is done in it.
    pub(super) fn admit<'a>(
        &'a self,
        task: &'a Task,
        stream: &'a Arc<CudaStream>,
    ) -> Result<Admitted<'a>, Error> {
        self.base.admit(task, stream)?;
        let work = if let Some(messages) = messages_of(task) {
            Work::Messages(messages)
        } else {
            let call = self.call(task);
            self.admit_staging(task, &call)?;
            Work::Collective(call)
        };
        Ok(Admitted {
            engine: self,
            work,
            task,
            stream,
        })
    }

    /// Refuses a call that would be staged where `SPARK_CCL_PATH` forbids that.
    fn admit_staging(&self, task: &Task, call: &Call) -> Result<(), Error> {
        if self.may_stage() || task.by_any_path || call.count == 0 {
            return Ok(());
        }
        if self
            .member()
            .is_none_or(|member| !member.is_copied_by_host(call))
        {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: format!("{} with SPARK_CCL_PATH=zero-copy", task.operation().name()),
            reason: format!(
                "a buffer of {} is not from alloc_device of this communicator, so the call would \
                 be staged through the host; SPARK_CCL_PATH=auto allows that",
                self.base.member()
            ),
        })
    }

    fn call(&self, task: &Task) -> Call {
        let [input, output] = addresses(task, self.base.rank);
        let reduction = &task.reduction;
        Call {
            operation: task.operation(),
            dtype: task.signature.dtype,
            op: reduction.op.unwrap_or(ReduceOp::Sum),
            factor: task
                .factor_at
                .unwrap_or(u64::from_ne_bytes(reduction.factor)),
            is_factor_in_memory: task.factor_at.is_some(),
            root: task.signature.root as usize,
            count: task.signature.count as usize,
            input,
            output,
            in_place: task.in_place,
            words: task.signature.words(),
        }
    }

    /// The end of what was launched, also where only a part of the work was. `None` if a capture
    /// kept all of it from being launched: then the memory is not used, and the communicator is
    /// fine.
    pub(super) fn end_of(
        &self,
        launched: Result<LaunchEnd, Error>,
        stream: &Arc<CudaStream>,
    ) -> (Option<LaunchEnd>, Result<(), Error>) {
        match launched {
            Ok(end) => (Some(end), Ok(())),
            // After a part of the work, this is the communicator's fault (`failed`).
            Err(error) if matches!(&error, Error::Cuda(error) if error.is_of_a_capture()) => {
                (None, Err(error))
            }
            Err(error) => (Some(self.base.end(stream)), Err(error)),
        }
    }

    /// Launches a collective's kernel behind the last call; `limit` is its time, if it has one of
    /// its own.
    pub(super) fn launch(
        &self,
        call: &Call,
        stream: &Arc<CudaStream>,
        limit: Option<Duration>,
    ) -> Result<LaunchEnd, Error> {
        self.behind_the_last(stream, [DevicePart::Collective], limit, |member| {
            // SAFETY: `attach` has made the scratch for this communicator alone, and `exchange` has
            // passed each rank's to the others and checked whose it is. `admit` has checked that
            // the buffers are memory of this GPU, and the task's check that they are as long as the
            // call says. Their order keeps them, and keeps others away, until the call has run
            // (`hold_back`, `note`); for `DeviceSlice`, also in graphs, its `from_raw` promises
            // that. Calls run one after the other: this one is behind the last one, and the lock is
            // held; where graphs are among them, `from_raw` promises that, too. The words have all
            // that a call depends on but for each rank's own addresses and factor. All ranks have
            // the measurements of the world, which are rank 0's. `attach` has shared out the CTAs
            // of GPUs that ranks share.
            unsafe { member.enqueue(self.measured(), call, stream) }
        })
    }

    /// Launches the kernels that pass messages behind the last call, and behind copies; after an
    /// error, some may run.
    pub(super) fn pass(
        &self,
        messages: &[Message],
        copies: &[MessageCopy],
        stream: &Arc<CudaStream>,
        limit: Option<Duration>,
    ) -> Result<LaunchEnd, Error> {
        self.behind_the_last(stream, messages.iter().map(part_of), limit, |member| {
            // SAFETY: `attach` has made the scratch for this communicator alone, and `exchange` has
            // passed each rank's to the others and checked whose it is. `admit` has checked that
            // the buffers are memory of this GPU, and the task's check that the messages lie in
            // them. Their order keeps them, and keeps others away, until the messages have passed
            // (`hold_back`, `note`); for `DeviceSlice`, also in graphs, its `from_raw` promises
            // that. These are behind the last call, and the lock is held; where graphs are among
            // them, `from_raw` promises that, too. A message's words have its type and its count,
            // and so its length. Copies are of messages of this call, and the memory that they are
            // in is for one call at a time, and stays as long as the member.
            unsafe {
                for (number, copy) in copies.iter().enumerate() {
                    copy.enqueue(stream).map_err(|error| error.after(number))?;
                }
                let passed = member.pass(messages, stream);
                passed.map_err(|error| error.after(copies.len()))
            }
        })
    }

    /// The gate must be open: see `to_launch`.
    fn behind_the_last(
        &self,
        stream: &Arc<CudaStream>,
        parts: impl IntoIterator<Item = DevicePart> + Clone,
        limit: Option<Duration>,
        launch: impl FnOnce(&KernelTransport) -> Result<(), gpu::Error>,
    ) -> Result<LaunchEnd, Error> {
        let base = &self.base;
        base.check_members(parts.clone())?;
        let launched = {
            let DeviceState { backend, calls, .. } = &mut *base.lock()?;
            let member = backend.as_ref().ok_or_else(|| base.gone())?;
            self.allow(member, calls, limit);
            let followed = follow(calls, stream).map_err(gpu::Error::from);
            match followed.and_then(|()| launch(member)) {
                Err(error @ gpu::Error::InPart(_)) => {
                    // The next launch must be behind that part, too.
                    drop(base.record(calls, stream, parts, limit));
                    Err(error)
                }
                launched => launched.map(|()| base.record(calls, stream, parts, limit)),
            }
        };
        launched.map_err(|error| self.failed(error))
    }
}

impl Admitted<'_> {
    /// The call's own time limit, if it has one.
    pub(super) fn limit(&self) -> Option<Duration> {
        self.task.limit
    }

    /// Waits until the call can be launched, for as long as it may take.
    pub(super) fn to_launch(&self) -> Result<Passed<'_>, Error> {
        self.engine.base.to_launch(self.limit())
    }

    /// Makes the call's stream wait until its memory may be used.
    pub(super) fn hold_back(&self) -> Result<(), Error> {
        let (base, operation) = (&self.engine.base, self.task.operation().name());
        base.hold_back(operation, self.task.regions(), self.stream)
    }

    /// Notes for reports that the call was launched, if it was.
    pub(super) fn observe(&self, launched: &Result<LaunchEnd, Error>) {
        if let Ok(end) = launched {
            self.engine.observe(self.task, end);
        }
    }

    /// Notes for the call's memory when the call will have run.
    pub(super) fn note(&self, end: LaunchEnd) -> Result<(), Error> {
        let base = &self.engine.base;
        base.used(self.task.regions(), self.stream, end)
    }
}

/// Makes a stream wait for the last call, if that is in another stream; while the stream captures,
/// for the last call of the same capture. The user keeps launches of graphs in order.
fn follow(calls: &Calls, stream: &Arc<CudaStream>) -> Result<(), spark_ccl_cuda::Error> {
    let last = if is_capturing(stream)? {
        capture_of(stream)?.and_then(|capture| calls.last_in(capture))
    } else {
        calls.last.as_ref()
    };
    match last {
        Some(last) if !last.is_in(stream) => last.hold_back(stream),
        _ => Ok(()),
    }
}

/// Where a call's input and output begin. In place, the shorter one is this rank's block of the
/// other.
fn addresses(task: &Task, rank: usize) -> [u64; 2] {
    let [input, output] = task.regions().map(|region| region.ptr.addr() as u64);
    let bytes = task.signature.count * task.signature.dtype.size() as u64;
    let own = rank as u64 * bytes;
    match task.operation().own_block().filter(|_| task.in_place) {
        Some(Side::Input) => [output + own, output],
        Some(Side::Output) => [input, input + own],
        None => [input, output],
    }
}

#[cfg(test)]
mod tests {
    use spark_ccl_types::{DType, Operation};

    use super::*;
    use crate::memory::buffer::Region;
    use crate::task::Spec;

    fn starts(operation: Operation, in_place: bool) -> [u64; 2] {
        let region = |start: usize| Region::host(std::ptr::without_provenance::<u32>(start), 30);
        let spec = Spec::new(operation, DType::U32);
        let spec = if in_place { spec.in_place() } else { spec };
        let output = if in_place { 1 << 20 } else { 1 << 30 };
        let mut task = spec.task((region(1 << 20), region(output)));
        task.signature.count = 10;
        addresses(&task, 2).map(|start| start - (1 << 20))
    }

    #[test]
    fn blocks_in_place_are_this_ranks() {
        let apart = (1 << 30) - (1 << 20);
        for operation in [Operation::AllGather, Operation::Gather] {
            assert_eq!(starts(operation, true), [80, 0]);
            assert_eq!(starts(operation, false), [0, apart]);
        }
        for operation in [Operation::ReduceScatter, Operation::Scatter] {
            assert_eq!(starts(operation, true), [0, 80]);
            assert_eq!(starts(operation, false), [0, apart]);
        }
        for operation in [
            Operation::AllReduce,
            Operation::Broadcast,
            Operation::Reduce,
        ] {
            assert_eq!(starts(operation, true), [0, 0]);
        }
    }
}
