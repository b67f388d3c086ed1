//! Kernels, and how they are launched.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, result, sys};

use crate::current::make_current;
use crate::{Error, checked};

/// A kernel that is loaded in a context, which it keeps.
#[derive(Debug, Clone)]
pub struct Function {
    handle: sys::CUfunction,
    _context: Arc<CudaContext>,
}

// SAFETY: the driver accepts a function on any thread, and the handle is never dereferenced here.
unsafe impl Send for Function {}
// SAFETY: through a shared reference, the handle is only passed to the driver, which locks.
unsafe impl Sync for Function {}

impl Function {
    /// A function of a module that stays loaded as long as the context exists.
    pub(crate) fn new(handle: sys::CUfunction, context: &Arc<CudaContext>) -> Self {
        Self {
            handle,
            _context: Arc::clone(context),
        }
    }

    pub(crate) fn handle(&self) -> sys::CUfunction {
        self.handle
    }

    /// Launches the kernel in a stream of its context, on a grid of this many CTAs, and threads of
    /// each.
    ///
    /// # Safety
    /// Each parameter must point to a value of the layout that the kernel has for it. All memory
    /// that they name must be there until the kernel has ended.
    ///
    /// # Errors
    /// The driver fails.
    pub unsafe fn launch(
        &self,
        stream: &CudaStream,
        [ctas, threads]: [u32; 2],
        parameters: &mut [*mut c_void],
    ) -> Result<(), Error> {
        let device = make_current(stream.context())?;
        let (grid, block, stream) = ((ctas, 1, 1), (threads, 1, 1), stream.cu_stream());
        // SAFETY: the driver copies the parameters before it returns. The caller gives each the
        // layout that the kernel has for it, and keeps the memory that they name until the kernel
        // has ended. The stream is borrowed, and `self` keeps the context in which the function is
        // loaded.
        let launched =
            unsafe { result::launch_kernel(self.handle, grid, block, 0, stream, parameters) };
        checked("cuLaunchKernel", device, launched)
    }
}
