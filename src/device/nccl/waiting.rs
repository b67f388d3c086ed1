//! Waiting for streams, and the ends of a communicator.

use super::NcclEngine;
use super::error::refused;
use super::helper_thread::{on_helper_thread, spawn};
use crate::device::pause::{YIELD_FOR, pause};
use crate::error::Error;
use crossbeam::channel::bounded;
use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_cuda::{is_capturing, is_idle};
use spark_ccl_nccl as nccl;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How many times a waiter looks at a stream before it checks the clock and the communicator.
const LOOKS: u32 = 64;
/// How long a call into NCCL may delay a thread that wants to abort the communicator.
const CALL: Duration = Duration::from_secs(5);
/// What NCCL does at once when it aborts takes some 100 ms; for graphs that are still there it waits without end.
const ABORT: Duration = Duration::from_secs(2);

impl NcclEngine {
    /// Waits until all in a stream has run, and looks whether it went well.
    pub(super) fn wait_for(&self, stream: &CudaStream) -> Result<(), Error> {
        // To look at it would end the capture.
        if self.own(is_capturing(stream))? {
            return Err(Error::Invalid {
                operation: "wait",
                problem: "the stream captures a graph".to_owned(),
            });
        }
        self.wait_until(|| is_idle(stream))
    }

    /// Waits for the last call.
    pub(super) fn wait_for_last(&self) -> Result<(), Error> {
        let last = self.lock()?.calls.last.clone();
        last.map_or(Ok(()), |last| self.wait_until(|| last.is_complete()))
    }

    fn wait_until(
        &self,
        is_over: impl Fn() -> Result<bool, spark_ccl_cuda::Error>,
    ) -> Result<(), Error> {
        let start = Instant::now();
        let mut looks = 0_u32;
        while !is_over().map_err(|error| self.lost(error))? {
            looks += 1;
            let waited = start.elapsed();
            if (waited > YIELD_FOR || looks.is_multiple_of(LOOKS))
                && let Err(error) = self.still_waits(start)
            {
                // An error of CUDA's is now only a consequence of the fault.
                let _ = self.subside();
                return Err(error);
            }
            pause(waited);
        }
        // An aborted communicator's streams end early.
        self.check()
    }

    /// Waits a little for the last call to end: after an abort, a program that gets the error may free what kernels
    /// use. Returns whether it has ended.
    fn subside(&self) -> Result<bool, spark_ccl_cuda::Error> {
        let last = self.state.try_lock_for(CALL);
        let Some(last) = last.and_then(|state| state.calls.last.clone()) else {
            return Ok(true);
        };
        let start = Instant::now();
        while !last.is_complete()? {
            if start.elapsed() > ABORT {
                return Ok(false);
            }
            pause(start.elapsed());
        }
        Ok(true)
    }

    fn still_waits(&self, start: Instant) -> Result<(), Error> {
        self.check()?;
        // A thread that holds the lock enqueues a call; the time is checked at a later look.
        let timeout = self
            .state
            .try_lock()
            .map(|state| (state.timeout, state.calls.count));
        if let Some((timeout, calls)) = timeout
            && start.elapsed() > timeout
        {
            self.raise_timeout(calls, start.elapsed());
        }
        self.check()
    }

    /// The communicator's error, if it has failed; also what NCCL has noticed meanwhile.
    pub(super) fn check(&self) -> Result<(), Error> {
        if let Some(fault) = self.watch.fault() {
            self.abort();
            return Err(Error::Failed(fault));
        }
        // The thread that holds the lock gets NCCL's error itself.
        let Some(state) = self.state.try_lock() else {
            return Ok(());
        };
        let (is_gone, noticed) = (state.nccl.is_none(), state.noticed());
        drop(state);
        match noticed {
            Some(error) => Err(self.failed("ncclCommGetAsyncError", error)),
            None if is_gone => Err(self.gone()),
            None => Ok(()),
        }
    }

    pub(super) fn wait_at_most(&self, timeout: Duration) {
        self.call_timeout.set(timeout);
        // A communicator that has failed waits for nothing.
        if let Ok(mut state) = self.lock() {
            state.timeout = timeout;
        }
    }

    /// What must live until NCCL has ended everything that it runs: what is registered, and the stream because of which
    /// cudarc keeps its buffers until their uses are over.
    fn until_the_end(&self) -> impl Send + use<> {
        (Arc::clone(&self.kept), Arc::clone(&self.gpu))
    }

    /// Deregisters all memory; none of it may be in use. NCCL (2.28.9, `commFree`) frees the connections to its proxies
    /// before it gives up what is still registered, which uses these connections: sometimes the process crashes.
    fn forget_memory(&self) -> impl FnOnce(&nccl::Communicator) + Send + use<> {
        let (kept, rank) = (Arc::clone(&self.kept), self.rank);
        move |nccl| {
            if let Err(error) = kept.deregister(kept.take_all(rank), nccl) {
                tracing::debug!("rank {rank}: {error}");
            }
        }
    }

    /// Ends NCCL's communicator once everything that was enqueued has run on all ranks. All ranks must call this.
    pub(super) fn end_together(&self) -> Result<(), Error> {
        let (nccl, timeout) = {
            let mut state = self.lock()?;
            (state.nccl.take(), state.timeout)
        };
        let nccl = nccl.ok_or_else(|| self.gone())?;
        let (forget_memory, kept) = (self.forget_memory(), self.until_the_end());
        let what = format!("finalize of {}", self.member());
        let hint = "is a graph with its calls still there? NCCL waits until that is dropped";
        on_helper_thread(&what, hint, &self.watch, timeout, move || {
            forget_memory(&nccl);
            let done = nccl.finalize();
            drop(kept);
            done.map_err(|error| refused("finalize", error))
        })
    }

    /// Leaves without [`end_together`](Self::end_together). Calls that do not end soon are aborted on all ranks, which
    /// could otherwise take their output for results.
    pub(super) fn end_alone(&self) {
        if !self.watch.failed() {
            match self.subside() {
                Ok(true) => {
                    self.end_nccl(true);
                    return;
                }
                Ok(false) => self.give_up(
                    "it dropped the communicator while calls of device memory were in a stream"
                        .to_owned(),
                ),
                Err(error) => drop(self.lost(error)),
            }
        }
        self.abort();
    }

    /// Ends what runs; after that nothing can be enqueued any more. Returns `false` if a call of NCCL's does not
    /// return, so that nothing could be ended.
    pub(super) fn abort(&self) -> bool {
        self.end_nccl(false)
    }

    /// The same. Memory is deregistered only if nothing runs: otherwise that might wait for what is to be aborted.
    fn end_nccl(&self, is_idle: bool) -> bool {
        // Threads that wait for NCCL return.
        self.call_timeout.set(Duration::ZERO);
        let is_stuck = self.stuck.load(Ordering::Relaxed);
        let limit = if is_stuck { Duration::ZERO } else { CALL };
        let Some(mut state) = self.state.try_lock_for(limit) else {
            if !self.stuck.swap(true, Ordering::Relaxed) {
                tracing::error!(
                    "rank {}: NCCL does not come back from a call, and cannot be aborted meanwhile",
                    self.rank
                );
            }
            return false;
        };
        let taken = state.nccl.take();
        drop(state);
        let Some(nccl) = taken else { return true };
        let kept = self.until_the_end();
        let forget_memory = is_idle.then(|| self.forget_memory());
        let (rank, (sender, done)) = (self.rank, bounded(1));
        let started = spawn("spark-nccl-abort", move || {
            if let Some(forget_memory) = forget_memory {
                forget_memory(&nccl);
            }
            if let Err(error) = nccl.abort() {
                tracing::warn!("rank {rank}: {error}");
            }
            drop(kept);
            // Fails if the thread that aborts has waited long enough.
            let _ = sender.send(());
        });
        // If no thread could be started, the communicator was dropped, which aborts it, too.
        if started.is_ok() && done.recv_timeout(ABORT).is_err() {
            tracing::warn!(
                "rank {rank}: NCCL has ended what runs, but waits for graphs with its calls to be dropped"
            );
        }
        true
    }
}

impl Drop for NcclEngine {
    fn drop(&mut self) {
        self.abort();
    }
}
