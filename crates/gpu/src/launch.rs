//! How kernels are launched in streams.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use spark_ccl_cuda::cudarc::driver::{CudaContext, CudaFunction, CudaStream, result};
use spark_ccl_cuda::{DependentLaunch, checked, make_current};

use crate::Error;
use crate::turns::{Turn, Turns};

/// By GPU, for launches that are a communicator's first in a stream. Where two threads launch at
/// once, each the first kernel of a stream, the driver may give both streams one queue of the GPU: a rank's
/// kernel would then start only after that of another rank, which waits for it. Later launches do without:
/// where a stream is full, they wait for room, which may come only once another communicator has launched.
static FIRST_LAUNCHES: [Turns; 16] = [const { Turns::new() }; 16];
/// The longest that others wait for a first launch. One that takes longer waits for room in a stream that the program has
/// filled, and which therefore has its queue already.
const LONGEST: Duration = Duration::from_secs(1);

/// Where a communicator has launched kernels. A `Weak` keeps the address from being reused.
#[derive(Debug, Default)]
pub(crate) struct Streams(Mutex<Vec<Weak<CudaStream>>>);

impl Streams {
    /// To be held during a launch in a stream, if it is the first one there.
    pub(crate) fn turn(&self, stream: &Arc<CudaStream>) -> Option<Turn<'static>> {
        let mut streams = self.0.lock();
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
pub(crate) fn first_turn(context: &CudaContext) -> Turn<'static> {
    FIRST_LAUNCHES[context.ordinal() % FIRST_LAUNCHES.len()].take(LONGEST)
}

/// Launches a kernel so that it may start before the one ahead of it has ended, where the GPU and the driver do that.
///
/// # Safety
/// The same as of [`launch_in`]; and each thread must wait for the kernel ahead before it touches memory.
pub(crate) unsafe fn launch_early<A>(
    dependent: Option<DependentLaunch>,
    stream: &CudaStream,
    function: &CudaFunction,
    grid: [u32; 2],
    arguments: &mut A,
) -> Result<(), Error> {
    // SAFETY: the parameter has the kernel's layout, the memory that it names is there until the kernel has ended, and
    // each thread waits before it touches any, as this function requires.
    unsafe {
        match dependent {
            Some(dependent) => {
                let mut parameters = [std::ptr::from_mut(arguments).cast()];
                Ok(dependent.launch(stream, function, grid, &mut parameters)?)
            }
            None => launch_in(stream, function, grid, arguments),
        }
    }
}

/// Launches a kernel on a grid of this many CTAs and threads of each.
///
/// # Safety
/// The kernel's one parameter must have this layout, and all memory that it names must be there until the kernel has
/// ended.
pub(crate) unsafe fn launch_in<A>(
    stream: &CudaStream,
    function: &CudaFunction,
    [ctas, threads]: [u32; 2],
    arguments: &mut A,
) -> Result<(), Error> {
    let device = make_current(stream.context())?;
    let (grid, block) = ((ctas, 1, 1), (threads, 1, 1));
    let mut parameters = [std::ptr::from_mut(arguments).cast()];
    // SAFETY: `parameters` points to the kernel's one parameter, which has its layout and which the driver
    // copies before it returns. All memory that it names is there until the kernel has ended. This function
    // requires both of its arguments. Function and stream are borrowed, so they exist.
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
