//! Allocating registered memory, by all ranks together.

use crate::call::{Call, InPlace, Nothing, Spec};
use crate::communicator::Communicator;
use crate::error::Error;
use crate::redop::RedOp;
use crate::registered::{Registered, Segment};
use crate::signature::Operation;
use crate::world::EXCHANGE;
use spark_ccl_compute::Element;
use spark_ccl_transport::memory::{MemoryError, SharedMemory, recv_fd, send_fd};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Communicator {
    /// `len` elements of registered memory on every rank, zeroed. Collective: all ranks must ask
    /// for the same type and length.
    ///
    /// # Errors
    /// [`Error::Memory`] on every rank when one of them has not got enough;
    /// [`Error::Failed`] when the communicator has failed.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Registered<T>, Error> {
        let operation = Spec {
            elements: len,
            ..Spec::new(Operation::Alloc)
        };
        Call::<T, _>::new(self, operation, Nothing).run()?;
        // At least a byte: the system maps nothing that is empty.
        let bytes = len.saturating_mul(size_of::<T>()).max(1);
        let own = SharedMemory::create(bytes);
        let mut everyone = [u8::from(own.is_ok())];
        let minimum = RedOp::<u8>::Min.lower(self.planner().size);
        let agreement = Spec {
            internal: true,
            ..Spec::reducing(Operation::AllReduce, minimum).in_place()
        };
        Call::<u8, _>::new(self, agreement, InPlace(&mut everyone)).run()?;
        let (own, fd) = own.map_err(|error| memory(len, &error))?;
        if everyone[0] == 0 {
            return Err(Error::Memory {
                what: format!("allocating {len} registered elements"),
                problem: "another rank has not got enough memory".to_owned(),
            });
        }
        let id = self.inner.allocations.fetch_add(1, Ordering::Relaxed);
        let maps = self
            .exchange(id, bytes, &fd)
            .map_err(|error| memory(len, &error))?;
        let segment = Segment::new((self.inner.context, id), self.rank(), own, maps);
        Ok(Registered::new(segment, len))
    }

    /// Existing memory, registered where a link can use it as it is. No link of this version can:
    /// processes share memory only if it was allocated for that, and TCP has no use for it.
    ///
    /// # Errors
    /// [`Error::Unsupported`], always in this version.
    pub fn register<T: Element>(&self, memory: &mut [T]) -> Result<(), Error> {
        Err(Error::Unsupported {
            what: format!("registering {} existing elements", memory.len()),
            reason: "shared memory must be allocated with Communicator::alloc, and TCP links use \
                     ordinary memory as it is"
                .to_owned(),
        })
    }

    /// Passes this rank's memory to the other ranks of the host, and maps theirs.
    fn exchange(
        &self,
        id: u32,
        bytes: usize,
        own: &OwnedFd,
    ) -> Result<Vec<Option<SharedMemory>>, MemoryError> {
        let deadline = Instant::now() + EXCHANGE;
        let streams = self.inner.memory_streams.lock();
        for stream in streams.iter().flatten() {
            send_fd(stream, own.as_fd(), u64::from(id), bytes as u64, deadline)?;
        }
        let map = |stream: &Option<socket2::Socket>| {
            let Some(stream) = stream else {
                return Ok(None);
            };
            let passed = recv_fd(stream, deadline)?;
            if passed.id != u64::from(id) {
                return Err(MemoryError::Refused(format!(
                    "expected allocation {id}, saw {}",
                    passed.id
                )));
            }
            SharedMemory::from_fd(&passed.fd, bytes).map(Some)
        };
        streams.iter().map(map).collect()
    }
}

fn memory(len: usize, error: &MemoryError) -> Error {
    Error::Memory {
        what: format!("allocating {len} registered elements"),
        problem: error.to_string(),
    }
}
