//! The kernels, loaded on a GPU.

use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use spark_ccl_cuda::cudarc::driver::{CudaContext, CudaFunction, CudaStream, result};
use spark_ccl_cuda::{Images, checked, make_current};

use crate::layout::Arguments;
use crate::{Error, Kernel, Plan};

static IMAGES: Images = Images::new(
    "collectives.cu",
    include_bytes!("../kernels/collectives.images"),
);

/// By GPU, held during a launch that is a communicator's first in a stream. Where two threads launch at
/// once, each the first kernel of a stream, the driver may give both streams one queue of the GPU: a rank's
/// kernel would then start only after that of another rank, which waits for it. Later launches do without:
/// where a stream is full, they wait for room, which may come only once another communicator has launched.
static FIRST_LAUNCHES: [Mutex<()>; 16] = [const { Mutex::new(()) }; 16];

#[derive(Debug)]
pub(crate) struct Kernels {
    /// By the number of the kernel.
    functions: Vec<CudaFunction>,
    /// Where some were launched. A `Weak` keeps the address from being reused.
    streams: Mutex<Vec<Weak<CudaStream>>>,
}

impl Kernels {
    /// Loads all of them: a kernel that is loaded later would wait for those that run, which may wait
    /// for it.
    pub(crate) fn load(context: &Arc<CudaContext>) -> Result<Self, Error> {
        let kernels = IMAGES.load(context)?;
        let functions = Kernel::ALL.map(|kernel| kernels.function(kernel.name()));
        Ok(Self {
            functions: functions.into_iter().collect::<Result<_, _>>()?,
            streams: Mutex::default(),
        })
    }

    /// Enqueues a kernel in a stream.
    ///
    /// # Safety
    /// All memory that the arguments name must be there, and used as `layout.h` says, until the
    /// kernel has ended.
    pub(crate) unsafe fn launch(
        &self,
        plan: Plan,
        mut arguments: Arguments,
        stream: &CudaStream,
    ) -> Result<(), Error> {
        let device = make_current(stream.context())?;
        let function = &self.functions[plan.kernel as usize];
        let (grid, block) = ((plan.ctas, 1, 1), (plan.threads, 1, 1));
        let mut parameters = [(&raw mut arguments).cast()];
        // SAFETY: each kernel has one parameter, which has this layout, and which the driver copies.
        // The caller vouches for the memory that it names.
        let launched = unsafe {
            let function = function.cu_function();
            result::launch_kernel(
                function,
                grid,
                block,
                0,
                stream.cu_stream(),
                &mut parameters,
            )
        };
        Ok(checked("cuLaunchKernel", device, launched)?)
    }

    /// To be held during a launch in a stream, if it is the first one there.
    pub(crate) fn turn(&self, stream: &Arc<CudaStream>) -> Option<MutexGuard<'static, ()>> {
        let mut streams = self.streams.lock();
        let mut known = streams.iter();
        if known.any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(stream))) {
            return None;
        }
        streams.retain(|known| known.strong_count() > 0);
        streams.push(Arc::downgrade(stream));
        drop(streams);
        Some(first_turn(stream.context()))
    }
}

/// To be held during the first launches in a stream.
pub(crate) fn first_turn(context: &CudaContext) -> MutexGuard<'static, ()> {
    FIRST_LAUNCHES[context.ordinal() % FIRST_LAUNCHES.len()].lock()
}
