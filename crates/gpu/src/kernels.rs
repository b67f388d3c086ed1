//! The kernels, loaded on a GPU.

use std::sync::Arc;

use spark_ccl_cuda::cudarc::driver::{CudaContext, CudaStream};
use spark_ccl_cuda::{DependentLaunch, Function, Images};

use crate::channels::{FEW, MANY, Places};
use crate::launch::{Streams, launch_early, launch_in};
use crate::layout::{Arguments, MemberLayout};
use crate::message::Launch;
use crate::plan::Protocol;
use crate::sums::Sums;
use crate::{Error, Kernel, Plan};

static IMAGES: Images = Images::new(
    "collectives.cu",
    include_bytes!("../kernels/collectives.images"),
);

static MESSAGES: Images = Images::new("messages.cu", include_bytes!("../kernels/messages.images"));

#[derive(Debug)]
pub(crate) struct Kernels {
    /// The functions, by the number of the kernel.
    functions: Vec<Function>,
    sums: Sums,
    dependent: Option<DependentLaunch>,
    /// By the number of the protocol.
    passing: [Passing; 3],
    streams: Streams,
}

/// The kernels that pass messages by a protocol.
#[derive(Debug)]
struct Passing {
    few: Function,
    many: Function,
}

impl Kernels {
    /// Loads all kernels at once: loading a kernel later would wait for running kernels, which may
    /// wait for it.
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
            sums: Sums::find(&kernels)?,
            dependent: DependentLaunch::find(context)?,
            passing: [
                passing("few_messages_packets", "many_messages_packets")?,
                passing("few_messages_lines", "many_messages_lines")?,
                passing("few_messages_quads", "many_messages_quads")?,
            ],
            streams: Streams::new(),
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
        let own = self.sums.of(plan.kernel, &arguments);
        let function = own.unwrap_or(&self.functions[plan.kernel as usize]);
        // SAFETY: these kernels have one parameter, which has the layout of `Arguments`, and each
        // thread waits for the kernel ahead before all else. The caller keeps all memory that the
        // arguments name, and uses it as `layout.h` says, until the kernel has ended.
        unsafe {
            let grid = [plan.ctas, plan.threads];
            launch_early(self.dependent, stream, function, grid, &mut arguments)
        }
    }

    /// Launches each kernel of collectives once.
    ///
    /// # Safety
    /// All memory that the arguments name must be there, and used as `layout.h` says, until the
    /// last kernel has ended.
    pub(crate) unsafe fn launch_all(
        &self,
        mut arguments: Arguments,
        stream: &CudaStream,
    ) -> Result<(), Error> {
        let mut all = self.functions.iter().chain(self.sums.all());
        // SAFETY: these kernels have one parameter, which has the layout of `Arguments`, and each
        // thread waits for the kernel ahead before all else. The caller keeps all memory that the
        // arguments name, and uses it as `layout.h` says, until the last of them has ended.
        all.try_for_each(|function| unsafe {
            launch_early(self.dependent, stream, function, [1, 32], &mut arguments)
        })
    }

    /// Enqueues the kernel that passes some messages in a stream, by some protocol.
    ///
    /// # Safety
    /// All memory that the member and the launch name must be there, and used as `channels.h` says,
    /// until the kernel has ended.
    pub(crate) unsafe fn pass(
        &self,
        protocol: Protocol,
        launch: &Launch,
        (member, places): (MemberLayout, Places),
        stream: &CudaStream,
    ) -> Result<(), Error> {
        let Passing { few, many } = &self.passing[protocol as usize];
        let grid = [launch.ctas, launch.threads];
        // SAFETY: each kernel has one parameter: `layout::<FEW>` and `few` have room for as many
        // messages, and so have `layout::<MANY>` and `many`. The caller keeps all memory that the
        // member and the launch name, and uses it as `channels.h` says, until the kernel has ended.
        unsafe {
            if launch.messages <= FEW {
                let mut arguments = launch.layout::<FEW>(member, places);
                launch_in(stream, few, grid, &mut arguments)
            } else {
                let mut arguments = launch.layout::<MANY>(member, places);
                launch_in(stream, many, grid, &mut arguments)
            }
        }
    }

    /// As [`Streams::launch`].
    pub(crate) fn launch_in_turn(
        &self,
        stream: &CudaStream,
        launch: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.streams.launch(stream, launch)
    }
}
