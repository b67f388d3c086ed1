//! The engine that does collectives by this library's own kernels.
//!
//! Between GPUs that reach each other's memory, each rank's kernels push data into the scratch
//! memory of the others, and poll their own. Between other GPUs of a host, the scratch is in memory
//! of the host that all ranks share (`pinned`). Between hosts, kernels pass data to their own host,
//! which sends it (`staged`). The guard thread checks whether kernels have given up waiting, and
//! ends them when a rank has died or left. Knows `crates/gpu` and the links; knows no NCCL.

mod attach;
mod attached;
mod copies;
mod engine;
mod enqueue;
mod group;
mod measured;
mod messages;
mod offer;
mod pass;
mod patience;
mod pinned;
mod placement;
mod refused;
mod report;
mod staged;
mod through_host;
mod transport;
mod votes;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use attach::attach;
use engine::KernelEngine;
use group::enqueue_together;
use measured::candidates;
use spark_ccl_config::GpuLayout;
use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_gpu::Kernel;
use spark_ccl_types::{DType, Operation};

use super::allocation::{new_block, new_block_of};
use super::waiting::{run, wait_for, wait_for_last, wait_for_own};
use super::watched_engine::WatchedEngine;
use crate::engine::{Engine, Registration, StreamTask};
use crate::error::Error;
use crate::memory::device::block::Block;
use crate::memory::device::gpu::Gpu;
use crate::memory::device::memory::TypedBlock;
use crate::task::Task;

impl Engine for KernelEngine {
    fn run(&self, task: &Task) -> Result<(), Error> {
        run(self, task)
    }

    fn drain(&self) -> Result<(), Error> {
        wait_for_last(self)
    }

    fn settle(&self) -> Result<(), Error> {
        wait_for_own(self)
    }

    fn is_settled(&self) -> bool {
        self.base.is_idle().unwrap_or(false)
    }

    fn set_timeout(&self, timeout: Duration) {
        self.base.wait_at_most(timeout);
        self.adapt_patience();
    }

    fn gpu(&self) -> &Arc<Gpu> {
        &self.base.gpu
    }

    fn enqueue(&self, task: &Task, stream: &Arc<CudaStream>) -> Result<(), Error> {
        self.enqueue(task, stream)
    }

    fn enqueue_together(&self, tasks: &[StreamTask<'_>]) -> Result<(), Error> {
        enqueue_together(tasks)
    }

    fn wait(&self, stream: &CudaStream) -> Result<(), Error> {
        wait_for(self, stream)
    }

    fn reported(&self) -> Result<(), Error> {
        self.reported()
    }

    fn path(&self) -> Option<String> {
        let way = self.member()?.path();
        let others = self.passed_over.iter();
        let others = others.map(|other| format!("; not {other}"));
        Some(way + &others.collect::<String>())
    }

    fn explain(&self, operation: Operation, dtype: DType, count: usize) -> Option<String> {
        let member = self.member()?;
        member.explain(self.measured(), operation, dtype, count)
    }

    fn kernels(&self, operation: Operation) -> Option<(GpuLayout, Vec<&'static str>)> {
        let (layout, limits) = (self.kernels.layout.clone()?, self.member()?.limits()?);
        let kernels = candidates(operation, layout.ranks as usize, limits);
        Some((layout, kernels.map(Kernel::name).collect()))
    }

    fn is_between_gpus(&self) -> bool {
        let member = self.member();
        member.is_some_and(|member| member.limits().is_some())
    }

    fn alloc(&self, bytes: usize) -> Result<Arc<Block>, Error> {
        let member = self.member();
        let Some(pool) = member.as_ref().and_then(|member| member.pool()) else {
            return new_block(self, bytes);
        };
        let what = format!("{bytes} bytes of pinned memory");
        new_block_of(self, bytes, (&what, None), || {
            pool.alloc(&self.base.context, bytes)
        })
    }

    /// Kernels take memory as it is.
    fn register(self: Arc<Self>, _: TypedBlock<'_>, _: Registration) -> Result<bool, Error> {
        Ok(false)
    }

    fn finalize(&self) -> Result<(), Error> {
        let ended = self.base.lock()?.backend.take();
        let ended = ended.ok_or_else(|| self.base.gone())?;
        let member = self.member.lock().take();
        // The last owner of the member gives its memory back.
        drop((ended, member));
        Ok(())
    }

    fn tell_what_has_run(&self) {
        self.base.tell_what_has_run();
    }

    fn leave(&self) {
        self.base.is_done();
        self.abort();
    }
}
