//! Launches kernels in streams.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use spark_ccl_cuda::cudarc::driver::{CudaContext, CudaStream};
use spark_ccl_cuda::{DependentLaunch, Function, stream_id};

use crate::Error;
use crate::turns::{Turn, Turns};

/// By GPU: the turns of launches that are a communicator's first in a stream. Where two threads
/// launch the first kernels of two streams at once, the driver may give both streams one queue of
/// the GPU. A rank's kernel would then start only after another rank's kernel, which waits for it.
/// Later launches do without: where a stream is full, they wait for room, which may come only once
/// another communicator has launched.
static FIRST_LAUNCHES: [Turns; 16] = [const { Turns::new() }; 16];
/// The longest that others wait for a first launch. One that takes longer waits for room in a
/// stream that the program has filled, and which therefore has its queue already.
const LONGEST: Duration = Duration::from_secs(1);
/// The most streams that are remembered. One more first launch does no harm.
const STREAMS: usize = 4096;

/// The streams in which a communicator has launched kernels, and whether any of these may run.
#[derive(Debug)]
pub(crate) struct Streams {
    /// By the driver's numbers: streams of other libraries are other objects in each call.
    known: Mutex<BTreeSet<u64>>,
    may_run: AtomicBool,
}

// Relaxed, all accesses of `may_run`: it orders no other memory. Launches borrow the streams, and
// the end owns them, so it sees all launches.
impl Streams {
    /// For kernels that are warmed up next: as long as nothing notes that these have run, they may.
    pub(crate) fn new() -> Self {
        Self {
            known: Mutex::default(),
            may_run: AtomicBool::new(true),
        }
    }

    /// Whether a kernel may run, or be in a graph.
    pub(crate) fn may_run(&self) -> bool {
        self.may_run.load(Ordering::Relaxed)
    }

    /// Notes that no kernel runs, until the next launch.
    ///
    /// # Safety
    /// All kernels that were launched have ended, none was captured, and no thread launches one
    /// meanwhile.
    pub(crate) unsafe fn note_idle(&self) {
        self.may_run.store(false, Ordering::Relaxed);
    }

    /// Makes a launch in a stream: not at the same time as others, if it is the first one there. A
    /// captured kernel is not launched yet.
    pub(crate) fn launch(
        &self,
        stream: &CudaStream,
        launch: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.may_run.store(true, Ordering::Relaxed);
        let id = match stream_id(stream)? {
            Some(id) if !self.known.lock().contains(&id) => id,
            _ => return launch(),
        };
        let turn = first_turn(stream.context());
        launch()?;
        drop(turn);
        let mut streams = self.known.lock();
        if streams.len() == STREAMS {
            streams.clear();
        }
        streams.insert(id);
        Ok(())
    }
}

/// To be held during the first launches in a stream.
pub(crate) fn first_turn(context: &CudaContext) -> Turn<'static> {
    FIRST_LAUNCHES[context.ordinal() % FIRST_LAUNCHES.len()].take(LONGEST)
}

/// Launches a kernel so that it may start before the one ahead of it has ended, where the GPU and
/// the driver do that.
///
/// # Safety
/// The kernel's one parameter must have this layout, and all memory that it names must be there
/// until the kernel has ended. Each thread must wait for the kernel ahead before it touches memory.
pub(crate) unsafe fn launch_early<A>(
    dependent: Option<DependentLaunch>,
    stream: &CudaStream,
    function: &Function,
    grid: [u32; 2],
    arguments: &mut A,
) -> Result<(), Error> {
    // SAFETY: the caller passes the kernel's one parameter in its layout, and keeps all memory that
    // it names until the kernel has ended. Each thread of the kernel waits for the kernel ahead
    // before it touches memory. `parameters` points to `arguments`, which is borrowed.
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
/// The kernel's one parameter must have this layout, and all memory that it names must be there
/// until the kernel has ended.
pub(crate) unsafe fn launch_in<A>(
    stream: &CudaStream,
    function: &Function,
    grid: [u32; 2],
    arguments: &mut A,
) -> Result<(), Error> {
    let mut parameters = [std::ptr::from_mut(arguments).cast()];
    // SAFETY: `parameters` points to `arguments`, which is borrowed. The caller says that it has
    // the layout of the kernel's one parameter, and keeps all memory that it names until the kernel
    // has ended.
    unsafe { Ok(function.launch(stream, grid, &mut parameters)?) }
}
