//! The trait by which a communicator knows an engine for device memory. Tasks that engines enqueue
//! run later, in the order of streams. The engine of host memory is `host`, which needs no trait.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use spark_ccl_config::GpuLayout;
use spark_ccl_cuda::cudarc::driver::{CudaContext, CudaStream};
use spark_ccl_types::{DType, Operation};

use crate::error::Error;
use crate::memory::device::block::Block;
use crate::memory::device::gpu::Gpu;
use crate::memory::device::memory::TypedBlock;
use crate::task::Task;

/// A registration of memory with a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Registration {
    /// For this rank alone: the others need not register.
    Local,
    /// As a symmetric window: all ranks register memory of the same length.
    Symmetric,
}

/// A checked task, and the stream that it is for.
pub(crate) struct StreamTask<'a> {
    pub(crate) engine: &'a Arc<dyn Engine>,
    pub(crate) task: Task,
    pub(crate) stream: &'a Arc<CudaStream>,
}

impl StreamTask<'_> {
    /// The block's engine, if it is of this backend.
    ///
    /// # Errors
    /// It is of another one.
    pub(crate) fn engine_as<E: Engine>(&self) -> Result<&E, Error> {
        let engine: &dyn Any = &**self.engine;
        engine.downcast_ref().ok_or_else(|| Error::Invalid {
            operation: self.task.operation().name(),
            problem: "the calls of a group are of one backend".to_owned(),
        })
    }
}

/// Does whole collectives on memory of one GPU.
pub(crate) trait Engine: Any + Debug + Send + Sync {
    /// This rank's handle of its GPU.
    fn gpu(&self) -> &Arc<Gpu>;

    /// The context of its GPU.
    fn context(&self) -> &Arc<CudaContext> {
        &self.gpu().context
    }

    /// Runs a checked task to its end, in the stream that its memory comes with.
    ///
    /// # Errors
    /// Those of [`enqueue`](Self::enqueue) and [`wait`](Self::wait).
    fn run(&self, task: &Task) -> Result<(), Error>;

    /// Waits until everything in flight has ended.
    ///
    /// # Errors
    /// The fault that has cut it short.
    fn drain(&self) -> Result<(), Error>;

    /// Waits until this rank's own calls have run.
    ///
    /// # Errors
    /// The fault that has cut them short.
    fn settle(&self) -> Result<(), Error>;

    /// Whether this rank's own calls have run. Does not wait.
    fn is_settled(&self) -> bool;

    /// Sets the timeout of calls that begin from now on.
    fn set_timeout(&self, timeout: Duration);

    /// Enqueues a checked task. To keep memory from being freed while it is in use, the engine must
    /// do all of this:
    ///
    /// - It checks that memory, stream and context are of its GPU, and that no graph captures
    ///   memory that this library frees.
    /// - Before the task, it calls `order::hold_back`.
    /// - After the task, it records an event for `order::were_used`. If it has no event, it calls
    ///   `order::were_lost`.
    ///
    /// # Errors
    /// The task or the stream does not suit this engine; or the fault that has ended it.
    fn enqueue(&self, task: &Task, stream: &Arc<CudaStream>) -> Result<(), Error>;

    /// Enqueues checked tasks, of this engine and of others, so that no task waits for another to
    /// end before it starts.
    ///
    /// # Errors
    /// Those of [`enqueue`](Self::enqueue). If a task or a stream is invalid, nothing is enqueued.
    fn enqueue_together(&self, tasks: &[StreamTask<'_>]) -> Result<(), Error>;

    /// Waits until everything in a stream has run, and checks for errors.
    ///
    /// # Errors
    /// A failure in it, or the fault that has cut it short.
    fn wait(&self, stream: &CudaStream) -> Result<(), Error>;

    /// Checks for errors that its calls have reported and that have not yet failed the
    /// communicator.
    ///
    /// # Errors
    /// The fault that this has become.
    fn reported(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Tells people how its calls reach the other ranks, where that is this library's choice.
    fn path(&self) -> Option<String> {
        None
    }

    /// Tells people how it does a call of this many elements, where that is this library's choice.
    fn explain(&self, _: Operation, _: DType, _: usize) -> Option<String> {
        None
    }

    /// The kernels between GPUs that it can choose from for an operation, and the layout by which
    /// measurements of them are stored.
    fn kernels(&self, _: Operation) -> Option<(GpuLayout, Vec<&'static str>)> {
        None
    }

    /// Whether kernels pass the data between the GPUs of all ranks, with no work of the host.
    fn is_between_gpus(&self) -> bool {
        false
    }

    /// A new block of memory.
    ///
    /// # Errors
    /// There is not enough, or the engine has none to give.
    fn alloc(&self, bytes: usize) -> Result<Arc<Block>, Error>;

    /// Registers a block until it is dropped, or the engine ends. Returns whether the engine makes
    /// use of that.
    ///
    /// # Errors
    /// The engine cannot, or the ranks register different windows.
    fn register(self: Arc<Self>, memory: TypedBlock<'_>, kind: Registration)
    -> Result<bool, Error>;

    /// Ends the engine once everything that was enqueued has run on all ranks. All ranks must call
    /// this.
    ///
    /// # Errors
    /// The fault that has cut it short.
    fn finalize(&self) -> Result<(), Error>;

    /// Tells the other ranks which calls have run here, before this rank leaves with others under
    /// way.
    fn tell_what_has_run(&self);

    /// Ends at once, and aborts what has not run.
    fn leave(&self);
}
