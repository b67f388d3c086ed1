//! The kernels, loaded on a GPU.

use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use spark_ccl_cuda::cudarc::driver::{CudaContext, CudaFunction, CudaStream, result};
use spark_ccl_cuda::{Images, checked, make_current};

use crate::channels::{FEW, MANY};
use crate::layout::{Arguments, MemberLayout};
use crate::message::Launch;
use crate::{Error, Kernel, Plan};

static IMAGES: Images = Images::new(
    "collectives.cu",
    include_bytes!("../kernels/collectives.images"),
);

static MESSAGES: Images = Images::new("messages.cu", include_bytes!("../kernels/messages.images"));

/// One lock per GPU, held during a communicator's first launch in a stream. If two threads launch the first kernels of
/// two streams at once, the driver may give both streams one queue of the GPU, and a rank's kernel could then wait
/// behind that of another rank, which waits for it. Later launches take no lock: in a full stream they wait for room,
/// which may only come once another communicator has launched.
static FIRST_LAUNCHES: [Mutex<()>; 16] = [const { Mutex::new(()) }; 16];

#[derive(Debug)]
pub(crate) struct Kernels {
    /// The functions, by the number of the kernel.
    functions: Vec<CudaFunction>,
    passing: [Passing; 2],
    /// The streams with earlier launches. A `Weak` keeps the address from being reused.
    streams: Mutex<Vec<Weak<CudaStream>>>,
}

/// The kernels that pass messages by packets, or by lines.
#[derive(Debug)]
struct Passing {
    few: CudaFunction,
    many: CudaFunction,
}

impl Kernels {
    /// Loads all kernels at once: loading one later would wait for running kernels, which may wait for it.
    pub(crate) fn load(context: &Arc<CudaContext>) -> Result<Self, Error> {
        let [kernels, messages] = [IMAGES.load(context)?, MESSAGES.load(context)?];
        let functions = Kernel::ALL.map(|kernel| kernels.function(kernel.name()));
        let passing = |few: &str, many: &str| -> Result<Passing, Error> {
            Ok(Passing {
                few: messages.function(few)?,
                many: messages.function(many)?,
            })
        };
        Ok(Self {
            functions: functions.into_iter().collect::<Result<_, _>>()?,
            passing: [
                passing("few_messages_packets", "many_messages_packets")?,
                passing("few_messages_lines", "many_messages_lines")?,
            ],
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
        let function = &self.functions[plan.kernel as usize];
        // SAFETY: these kernels have one parameter, which has this layout. The caller vouches for the memory that
        // it names.
        unsafe { launch_in(stream, function, [plan.ctas, plan.threads], &mut arguments) }
    }

    /// Enqueues the kernel that passes some messages in a stream, by lines or by packets.
    ///
    /// # Safety
    /// All memory that the member and the launch name must be there, and used as `channels.h` says, until
    /// the kernel has ended.
    pub(crate) unsafe fn pass(
        &self,
        lines: bool,
        launch: &Launch,
        (member, channels): (MemberLayout, u64),
        stream: &CudaStream,
    ) -> Result<(), Error> {
        let Passing { few, many } = &self.passing[usize::from(lines)];
        let grid = [launch.ctas, launch.threads];
        // SAFETY: each kernel has one parameter, which has this layout. The caller vouches for the memory that it
        // names.
        unsafe {
            if launch.messages <= FEW {
                let mut arguments = launch.layout::<FEW>(member, channels);
                launch_in(stream, few, grid, &mut arguments)
            } else {
                let mut arguments = launch.layout::<MANY>(member, channels);
                launch_in(stream, many, grid, &mut arguments)
            }
        }
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

/// Launches a kernel on a grid of this many CTAs and threads of each.
///
/// # Safety
/// The kernel's one parameter must have this layout, and all memory that it names must be there until the kernel has
/// ended.
unsafe fn launch_in<A>(
    stream: &CudaStream,
    function: &CudaFunction,
    [ctas, threads]: [u32; 2],
    arguments: &mut A,
) -> Result<(), Error> {
    let device = make_current(stream.context())?;
    let (grid, block) = ((ctas, 1, 1), (threads, 1, 1));
    let mut parameters = [std::ptr::from_mut(arguments).cast()];
    // SAFETY: the parameter has the kernel's layout, and the driver copies it. The caller vouches for the memory that
    // it names.
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
