//! Checks a call's stream and memory before anything is enqueued. Knows no backend.

use std::sync::Arc;

use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_cuda::{is_capturing, is_of_the_thread, make_current};

use super::order;
use super::rank::DeviceRank;
use crate::error::Error;
use crate::memory::buffer::Region;
use crate::task::Task;

impl<B> DeviceRank<B> {
    /// Checks the stream and the location of the buffers, before anything is enqueued, and makes
    /// the device current.
    pub(super) fn admit(&self, task: &Task, stream: &CudaStream) -> Result<(), Error> {
        let (operation, places) = (task.operation().name(), task.regions());
        if !Arc::ptr_eq(stream.context(), &self.context) {
            return Err(self.other(operation, "stream", stream.context().ordinal()));
        }
        if is_of_the_thread(stream) {
            return Err(Error::Invalid {
                operation,
                problem: "the per-thread stream is another one in each thread; take a new stream"
                    .to_owned(),
            });
        }
        self.own(make_current(&self.context))?;
        self.admit_capture(operation, places, stream)?;
        if task.limit.is_some() && self.own(is_capturing(stream))? {
            return Err(Error::Invalid {
                operation,
                problem: "a call that a graph captures has no time limit of its own; capture it \
                          without one, for that of the communicator"
                    .to_owned(),
            });
        }
        for region in places.into_iter().filter(|region| region.len > 0) {
            let Some(site) = &region.site else {
                return Err(Error::Invalid {
                    operation,
                    problem: "one buffer is host memory, the other device memory".to_owned(),
                });
            };
            let own = site.stream.as_ref();
            let of_other_context =
                own.is_some_and(|own| !Arc::ptr_eq(own.context(), &self.context));
            if site.device != self.device() || of_other_context {
                return Err(self.other(operation, "memory", site.device));
            }
        }
        Ok(())
    }

    /// Checks that no graph captures memory that may be gone when it runs.
    pub(super) fn admit_capture(
        &self,
        operation: &'static str,
        regions: [&Region; 2],
        stream: &CudaStream,
    ) -> Result<(), Error> {
        // Asked also where the user keeps the order: the driver refuses the legacy stream while
        // another stream captures, and here nothing has begun.
        if !self.own(is_capturing(stream))? || order::are_ordered_by_user(regions) {
            return Ok(());
        }
        Err(Error::Invalid {
            operation,
            problem: "a graph may run when this memory is gone; capture calls of `DeviceSlice`"
                .to_owned(),
        })
    }

    fn other(&self, operation: &'static str, what: &str, device: usize) -> Error {
        Error::Invalid {
            operation,
            problem: format!(
                "the {what} is of device {device}, but the communicator of device {} (or of \
                 another context); take what was made with `Communicator::context`",
                self.device()
            ),
        }
    }
}
