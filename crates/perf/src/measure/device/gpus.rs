//! The GPUs of a thread, each with a communicator of one backend.

use spark_ccl::cuda::Registration;
use spark_ccl::{Backend, Builder, Communicator};
use spark_ccl_cuda::context;

use super::gpu::{Gpu, free};
use crate::cli::options::{Options, Registered};
use crate::error::Error;
use crate::measure::nccl;
use crate::ranks::hosts::share;
use crate::ranks::world;

/// The GPUs of a thread, with communicators of one backend.
pub(super) struct Gpus {
    pub(super) backend: Backend,
    pub(super) all: Vec<Gpu>,
    /// The bytes of the first one's memory that connecting all ranks took.
    pub(super) taken: u64,
}

impl Gpus {
    /// Creates communicators for the GPUs with these numbers; a collective call.
    pub(super) fn connect(
        control: &Communicator,
        builder: &Builder,
        ordinals: &[usize],
        options: &Options,
        backend: Backend,
    ) -> Result<Self, Error> {
        let each = ordinals.len();
        let first = control.rank() * each;
        let context = context(ordinals[0]).map_err(|error| error.of_rank(first))?;
        // What the context itself takes does not count.
        control.barrier().run()?;
        let before = free(&context, first)?;
        let id = &world::share_id(builder, control)?;
        let builder = &builder.clone().backend(backend);
        let size = control.size() * each;
        // Connecting one rank waits for all others, so each needs a thread.
        let connect = |rank| move || Ok(builder.connect(id, rank, size)?);
        let comms = world::in_threads(first, (first..first + each).map(connect).collect());
        let comms = comms.into_iter().map(|(_, comm)| comm);
        let comms = comms.collect::<Result<Vec<_>, Error>>()?;
        let taken = before.saturating_sub(free(&context, first)?);
        let gpus = comms.into_iter().map(|comm| Gpu::new(comm, options));
        Ok(Self {
            backend,
            taken,
            all: gpus.collect::<Result<_, Error>>()?,
        })
    }

    /// Allocates buffers of `bytes` each; a collective call.
    pub(super) fn allocate(
        &mut self,
        control: &Communicator,
        options: &Options,
        bytes: usize,
    ) -> Result<(), Error> {
        let kind = match options.registration {
            Registered::No => None,
            Registered::Local => Some(Registration::Local),
            Registered::Symmetric => Some(Registration::Symmetric),
        };
        let first = control.rank() * self.all.len();
        let allocate = |gpu| move || Gpu::allocate(gpu, bytes, kind);
        // Registering a symmetric window waits for all other ranks.
        let done = world::in_threads(first, self.all.iter_mut().map(allocate).collect());
        let used = done.into_iter().map(|(_, done)| done);
        let used = used.collect::<Result<Vec<_>, Error>>()?;
        let used = share(control, &used)?.concat();
        if control.rank() == 0 {
            nccl::report_unused_registration(options, &used);
        }
        Ok(())
    }
}
