//! How an NCCL communicator ends: by finalize, or by abort.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam::channel::bounded;
use spark_ccl_nccl as nccl;

use super::NcclEngine;
use super::error::refused;
use super::helper_thread::on_helper_thread;
use crate::device::waiting::{CALL, SUBSIDES};
use crate::error::Error;
use crate::memory::device::helper_thread::spawn;

impl NcclEngine {
    /// Returns what must live until NCCL has ended everything that it runs: registered memory, and
    /// the stream that makes cudarc track the uses of its buffers.
    fn until_the_end(&self) -> impl Send + use<> {
        (Arc::clone(&self.kept), Arc::clone(&self.base.gpu))
    }

    /// Deregisters all memory; none of it may be in use. NCCL (2.28.9, `commFree`) frees the
    /// connections to its proxies before it deregisters the rest, which uses these connections:
    /// sometimes the process crashes.
    fn forget_memory(&self) -> impl FnOnce(&nccl::Communicator) + Send + use<> {
        let (kept, rank) = (Arc::clone(&self.kept), self.base.rank);
        move |nccl| {
            if let Err(error) = kept.deregister(kept.take_all(rank), nccl) {
                spark_ccl_log::debug!("rank {rank}: {error}");
            }
        }
    }

    /// Ends NCCL's communicator once everything that was enqueued has run on all ranks. All ranks
    /// must call this.
    pub(super) fn finalize(&self) -> Result<(), Error> {
        let base = &self.base;
        let (nccl, timeout) = {
            let mut state = base.lock()?;
            (state.backend.take(), state.calls.timeout)
        };
        let nccl = nccl.ok_or_else(|| base.gone())?;
        let (forget_memory, kept) = (self.forget_memory(), self.until_the_end());
        let what = format!("finalize of {}", base.member());
        let hint = "is a graph with its calls still there? NCCL waits until that is dropped";
        on_helper_thread(&what, hint, &base.watch, timeout, move || {
            forget_memory(&nccl);
            let done = nccl.finalize();
            drop(kept);
            done.map_err(|error| refused("finalize", error))
        })
    }

    /// Leaves without [`finalize`](Self::finalize). Calls that do not end soon are aborted.
    pub(super) fn leave(&self) {
        let is_idle = self.base.is_done();
        // Once this rank has left, it answers no questions. So it asks now, and the others compare.
        self.ask_about(self.base.watch.calls_made());
        self.end_nccl(is_idle);
    }

    /// Ends running calls. Memory is deregistered only if nothing runs: otherwise that might wait
    /// for calls that are to be aborted. If a call of NCCL does not return, nothing can be ended.
    pub(super) fn end_nccl(&self, is_idle: bool) {
        // Threads that wait for NCCL return.
        self.inside.call_timeout.set(Duration::ZERO);
        let is_stuck = self.stuck.load(Ordering::Relaxed);
        let limit = if is_stuck { Duration::ZERO } else { CALL };
        let rank = self.base.rank;
        let Some(mut state) = self.base.state.try_lock_for(limit) else {
            if !self.stuck.swap(true, Ordering::Relaxed) {
                spark_ccl_log::error!(
                    "rank {rank}: NCCL does not come back from a call, and cannot be aborted \
                     meanwhile"
                );
            }
            return;
        };
        let taken = state.backend.take();
        drop(state);
        let Some(nccl) = taken else { return };
        let kept = self.until_the_end();
        let forget_memory = is_idle.then(|| self.forget_memory());
        let (sender, done) = bounded(1);
        let started = spawn("spark-nccl-abort", move || {
            if let Some(forget_memory) = forget_memory {
                forget_memory(&nccl);
            }
            if let Err(error) = nccl.abort() {
                spark_ccl_log::warn!("rank {rank}: {error}");
            }
            drop(kept);
            // Fails if the thread that waits for the abort has given up.
            let _ = sender.send(());
        });
        // If no thread could be started, the communicator was dropped, which aborts it, too.
        if started.is_ok() && done.recv_timeout(SUBSIDES).is_err() {
            spark_ccl_log::warn!(
                "rank {rank}: NCCL has ended what runs, but waits for graphs with its calls to be \
                 dropped"
            );
        }
    }
}

impl Drop for NcclEngine {
    fn drop(&mut self) {
        self.end_nccl(false);
    }
}
