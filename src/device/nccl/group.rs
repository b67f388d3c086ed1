//! The tasks of a group as a group of NCCL's, which begins them together.

use std::sync::Arc;

use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_nccl as nccl;

use super::NcclEngine;
use super::connection_check::ConnectionCheck;
use super::error::is_harmless;
use crate::engine::StreamTask;
use crate::error::Error;
use crate::task::Task;

impl NcclEngine {
    /// Admits, has the ranks meet for, enqueues and notes the calls of a group.
    pub(super) fn enqueue_together(&self, tasks: &[StreamTask<'_>]) -> Result<(), Error> {
        let calls = tasks.iter().map(Admitted::of);
        let calls = calls.collect::<Result<Vec<_>, _>>()?;
        // All checks are begun before any is waited for: this thread may be several of the ranks.
        let mut checks = Vec::new();
        for call in &calls {
            checks.extend(call.check_connection()?);
        }
        checks.into_iter().try_for_each(ConnectionCheck::wait)?;
        // The group's end launches them.
        let passed = calls.iter().map(|call| {
            let base = &call.engine.base;
            base.to_launch(call.task.limit)
        });
        let passed = passed.collect::<Result<Vec<_>, _>>()?;
        calls.iter().try_for_each(Admitted::hold_back)?;
        // NCCL may not return from the group's end.
        for call in &calls {
            call.engine.inside.enter(call.task.limit);
        }
        let mut recorded = Vec::new();
        let done = self.library.group(|| {
            let mut steps = calls.iter();
            steps.try_for_each(|call| call.enqueue().map_err(Failure::Own))?;
            let compared = calls.iter().map(Admitted::is_compared);
            let compared = compared.collect::<Result<Vec<_>, _>>();
            // Before any can run, and only if all will.
            for (call, is_compared) in calls.iter().zip(compared.map_err(Failure::Own)?) {
                if is_compared {
                    recorded.push((call, call.record().map_err(Failure::Own)?));
                }
            }
            Ok(())
        });
        if matches!(&done, Err(Failure::Nccl(error)) if is_harmless(error)) {
            for (call, number) in recorded.into_iter().rev() {
                call.take_back(number);
            }
        }
        let goes_on = matches!(&done, Err(Failure::Nccl(error)) if error.goes_on());
        let mut noted = Ok(());
        for call in &calls {
            call.engine.inside.leave();
            if !goes_on {
                noted = noted.and(call.note(done.is_ok()));
            }
        }
        drop(passed);
        match done {
            Ok(()) => noted,
            Err(Failure::Own(error)) => Err(error),
            Err(Failure::Nccl(error)) => Err(self.group_failed(&calls, error)),
        }
    }

    /// Fails the communicators of a group's calls.
    fn group_failed(&self, calls: &[Admitted<'_>], error: nccl::Error) -> Error {
        let error = Arc::new(error);
        let mut said = None;
        for call in calls {
            said = Some(call.failed(&error));
        }
        // After all communicators have failed.
        if error.goes_on() {
            calls.iter().for_each(Admitted::outlive);
        }
        said.unwrap_or_else(|| self.failed("group", error))
    }
}

/// Why a group failed.
enum Failure {
    Own(Error),
    Nccl(nccl::Error),
}

impl From<nccl::Error> for Failure {
    fn from(error: nccl::Error) -> Self {
        Self::Nccl(error)
    }
}

/// A call of a group that its engine has admitted.
struct Admitted<'a> {
    engine: &'a NcclEngine,
    task: &'a Task,
    stream: &'a Arc<CudaStream>,
}

impl<'a> Admitted<'a> {
    fn of(task: &'a StreamTask<'_>) -> Result<Self, Error> {
        let engine = task.engine_as::<NcclEngine>()?;
        // Here the ranks have not been told of any call of the group.
        if engine.base.watch.failed() {
            return Err(engine.base.gone());
        }
        engine.admit(&task.task, task.stream)?;
        Ok(Self {
            engine,
            task: &task.task,
            stream: task.stream,
        })
    }

    fn check_connection(&self) -> Result<Option<ConnectionCheck<'_>>, Error> {
        self.engine.check_connection(self.task)
    }

    /// Makes the call's stream wait until its memory may be used.
    fn hold_back(&self) -> Result<(), Error> {
        let operation = self.task.operation().name();
        self.engine
            .base
            .hold_back(operation, self.task.regions(), self.stream)
    }

    fn enqueue(&self) -> Result<(), Error> {
        self.engine.enqueue_in_group(self.task, self.stream)
    }

    fn is_compared(&self) -> Result<bool, Error> {
        self.engine.is_compared(self.task, self.stream)
    }

    /// Records the call, which the ranks compare, and returns its number.
    fn record(&self) -> Result<u64, Error> {
        let base = &self.engine.base;
        // Calls of other threads are recorded, refused and taken back under the lock.
        let _serialised = base.lock()?;
        base.watch.record_call(self.task.signature.words());
        Ok(base.watch.calls_made())
    }

    /// Takes back the record of the call with this number: none of the group runs. Fails the
    /// communicator if another thread has recorded a call since: that has another number on the
    /// other ranks.
    fn take_back(&self, number: u64) {
        let base = &self.engine.base;
        // After an error there is nothing to compare any more.
        let Ok(_serialised) = base.lock() else { return };
        if base.watch.calls_made() == number {
            base.watch.take_back_call();
        } else {
            base.give_up("a group was refused while another thread made a call".to_owned());
        }
    }

    /// Notes the call after the group's end, and whether that has enqueued all of it.
    fn note(&self, is_whole: bool) -> Result<(), Error> {
        self.engine.note(self.task, self.stream, is_whole)
    }

    /// Keeps the call's memory: NCCL goes on with the call.
    fn outlive(&self) {
        self.engine.outlive(self.task.regions());
    }

    /// Fails the call's communicator because of the group's error.
    fn failed(&self, error: &Arc<nccl::Error>) -> Error {
        self.engine.failed("group", Arc::clone(error))
    }
}
