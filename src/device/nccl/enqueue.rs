//! From a checked task to NCCL calls in a stream: the checks, waits and notes around the calls of
//! `calls.rs`.

use std::sync::Arc;

use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_nccl::{self as nccl, Stream};

use super::NcclEngine;
use super::calls::CallTarget;
use super::error::is_harmless;
use crate::device::parts::parts_of;
use crate::device::watched_engine::WatchedEngine;
use crate::error::Error;
use crate::memory::buffer::Region;
use crate::task::Task;

impl NcclEngine {
    /// Admits, has the ranks meet for, enqueues and notes a checked call that is in no group.
    pub(super) fn enqueue(&self, task: &Task, stream: &Arc<CudaStream>) -> Result<(), Error> {
        let (operation, regions) = (task.operation().name(), task.regions());
        self.admit(task, stream)?;
        if let Some(check) = self.check_connection(task)? {
            check.wait()?;
        }
        let passed = self.base.to_launch(task.limit)?;
        self.base.hold_back(operation, regions, stream)?;
        let is_compared = self.is_compared(task, stream)?;
        let mut goes_on = false;
        let called = self.with(operation, task.limit, |calls, nccl| {
            let done = self.recorded(nccl, task, stream, is_compared);
            goes_on = done.as_ref().is_err_and(nccl::Error::goes_on);
            done.map(|()| self.base.record(calls, stream, parts_of(task), task.limit))
        });
        drop(passed);
        match called {
            Ok(end) => {
                self.observe(task, &end);
                self.base.used(regions, stream, end)
            }
            Err(error) if goes_on => {
                self.outlive(regions);
                Err(error)
            }
            Err(error) => {
                // A part of the call may be in the stream. Its error is returned below.
                let _ = self.base.used(regions, stream, self.base.end(stream));
                Err(error)
            }
        }
    }

    /// Makes a call part of this thread's NCCL group. It is not recorded for comparisons: it runs
    /// only if no other call of the group is refused.
    pub(super) fn enqueue_in_group(&self, task: &Task, stream: &CudaStream) -> Result<(), Error> {
        self.with(task.operation().name(), task.limit, |_, nccl| {
            self.call(nccl, task, stream)
        })
    }

    /// Makes a call, and records it if the ranks compare it: before it can run, so that no rank has
    /// its result and asks in vain.
    fn recorded(
        &self,
        nccl: &nccl::Communicator,
        task: &Task,
        stream: &CudaStream,
        is_compared: bool,
    ) -> Result<(), nccl::Error> {
        if !is_compared {
            return self.call(nccl, task, stream);
        }
        let watch = &self.base.watch;
        watch.record_call(task.signature.words());
        // A refused call does not run, and the user may make it again.
        self.call(nccl, task, stream).inspect_err(|error| {
            if is_harmless(error) {
                watch.take_back_call();
            }
        })
    }

    fn call(
        &self,
        nccl: &nccl::Communicator,
        task: &Task,
        stream: &CudaStream,
    ) -> Result<(), nccl::Error> {
        let slice = |region: &Region| self.slice(region, task.signature.dtype);
        let [input, output] = task.regions().map(slice);
        let target = CallTarget {
            library: self.library,
            nccl,
            rank: self.base.rank,
            size: self.base.size,
            // SAFETY: `admit` has checked that the stream is of this device. It is borrowed until
            // this returns, and `target`, which has the value that is made here, is dropped before
            // that.
            stream: unsafe {
                Stream::from_raw(stream.cu_stream().cast(), self.base.device() as i32)
            },
        };
        target.enqueue(task, input, output)
    }
}
