//! Allocating registered memory, by all ranks together.

use crate::call::{Call, InPlace, Nothing, Spec};
use crate::communicator::Communicator;
use crate::error::Error;
use crate::mesh::LOOK_EVERY;
use crate::redop::RedOp;
use crate::registered::{Registered, Segment};
use crate::signature::Operation;
use crate::world::{EXCHANGE, deadline_in};
use socket2::Socket;
use spark_ccl_compute::Element;
use spark_ccl_transport::memory::{
    MemoryError, Passed, SharedMemory, available_bytes, recv_fd, send_fd,
};
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
        let sharers = self.inner.memory_streams.lock().iter().flatten().count() + 1;
        // Before each step all ranks agree that it is worth while: none is left waiting, and nothing
        // is allocated that all together have not got.
        self.agree(len, fits(bytes.saturating_mul(sharers)))?;
        let (own, fd) = self.agree(len, SharedMemory::create(bytes))?;
        let id = self.inner.allocations.fetch_add(1, Ordering::Relaxed);
        let maps = self.agree(len, self.exchange(id, bytes, &fd))?;
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

    /// This rank's result, if all ranks have one; else this rank's error, or that of another.
    fn agree<R>(&self, len: usize, result: Result<R, MemoryError>) -> Result<R, Error> {
        let mut everyone = [u8::from(result.is_ok())];
        let minimum = RedOp::<u8>::Min.lower(self.planner().size);
        let agreement = Spec {
            internal: true,
            ..Spec::reducing(Operation::AllReduce, minimum).in_place()
        };
        Call::<u8, _>::new(self, agreement, InPlace(&mut everyone)).run()?;
        let failed = |problem| Error::Memory {
            what: format!("allocating {len} registered elements"),
            problem,
        };
        let own = result.map_err(|error| failed(error.to_string()))?;
        if everyone[0] == 0 {
            return Err(failed("another rank cannot".to_owned()));
        }
        Ok(own)
    }

    /// Passes this rank's memory to the other ranks of the host, and maps theirs.
    fn exchange(
        &self,
        id: u32,
        bytes: usize,
        own: &OwnedFd,
    ) -> Result<Vec<Option<SharedMemory>>, MemoryError> {
        let deadline = deadline_in(EXCHANGE);
        let streams = self.inner.memory_streams.lock();
        for stream in streams.iter().flatten() {
            send_fd(stream, own.as_fd(), u64::from(id), bytes as u64, deadline)?;
        }
        // All are read before an error ends this, or the next allocation would find what is left.
        let passed: Vec<_> = streams
            .iter()
            .map(|stream| stream.as_ref().map(|stream| self.receive(stream, deadline)))
            .collect();
        drop(streams);
        let map = |passed: Option<Result<Passed, MemoryError>>| {
            let Some(passed) = passed.transpose()? else {
                return Ok(None);
            };
            if passed.id != u64::from(id) {
                return Err(MemoryError::Refused(format!(
                    "expected allocation {id}, saw {}",
                    passed.id
                )));
            }
            SharedMemory::from_fd(&passed.fd, bytes).map(Some)
        };
        passed.into_iter().map(map).collect()
    }

    /// Waits for a peer's memory, as long as the communicator works.
    fn receive(&self, stream: &Socket, deadline: Instant) -> Result<Passed, MemoryError> {
        loop {
            let look = deadline.min(Instant::now() + LOOK_EVERY);
            match recv_fd(stream, look) {
                Err(MemoryError::TimedOut { .. })
                    if Instant::now() < deadline && !self.inner.watch.failed() => {}
                other => return other,
            }
        }
    }
}

/// Whether the host has so much memory to spare.
fn fits(bytes: usize) -> Result<(), MemoryError> {
    match available_bytes() {
        Some(available) if available < bytes as u64 => Err(MemoryError::Exhausted {
            bytes,
            reason: format!("{available} are available to all ranks of this host together"),
        }),
        _ => Ok(()),
    }
}
