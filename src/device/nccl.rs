//! The engine that leaves collectives to NCCL.
//!
//! The NCCL communicator is made over the links of the ranks. The guard thread checks that enqueued
//! calls run, and aborts them when a rank has died or when they take too long. Knows `crates/nccl`
//! and the links; knows no kernels of ours.

mod attach;
mod calls;
mod comparison;
mod connection_check;
mod connection_key;
mod ending;
mod engine;
mod enqueue;
mod error;
mod group;
mod helper_thread;
mod inside;
mod look;
mod registration;
mod registration_table;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use attach::{attach, library};
use engine::NcclEngine;
use spark_ccl_cuda::cudarc::driver::CudaStream;

use super::allocation::new_block;
use super::waiting::{run, wait_for, wait_for_last, wait_for_own};
use crate::engine::{Engine, Registration, StreamTask};
use crate::error::Error;
use crate::memory::device::block::Block;
use crate::memory::device::gpu::Gpu;
use crate::memory::device::memory::TypedBlock;
use crate::task::Task;

impl Engine for NcclEngine {
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
        // After a failure the time limit stays 0, which ends calls under way.
        if !self.base.watch.failed() {
            self.inside.call_timeout.set(timeout);
        }
        self.base.wait_at_most(timeout);
    }

    fn gpu(&self) -> &Arc<Gpu> {
        &self.base.gpu
    }

    fn enqueue(&self, task: &Task, stream: &Arc<CudaStream>) -> Result<(), Error> {
        self.enqueue(task, stream)
    }

    fn enqueue_together(&self, tasks: &[StreamTask<'_>]) -> Result<(), Error> {
        self.enqueue_together(tasks)
    }

    fn wait(&self, stream: &CudaStream) -> Result<(), Error> {
        wait_for(self, stream)
    }

    fn alloc(&self, bytes: usize) -> Result<Arc<Block>, Error> {
        new_block(self, bytes)
    }

    fn register(
        self: Arc<Self>,
        memory: TypedBlock<'_>,
        kind: Registration,
    ) -> Result<bool, Error> {
        self.register_block(&memory, kind)
    }

    fn finalize(&self) -> Result<(), Error> {
        self.finalize()
    }

    fn tell_what_has_run(&self) {
        self.base.tell_what_has_run();
    }

    fn leave(&self) {
        self.leave();
    }
}
