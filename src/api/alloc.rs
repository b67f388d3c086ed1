//! Memory that links use in place: `comm.alloc`, called by all ranks together, and `comm.register`,
//! for existing memory. `registered.rs` keeps it and takes it back. Knows communicators, since all
//! ranks take part; knows no link.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use socket2::Socket;
use spark_ccl_bootstrap::{Error as BootstrapError, StreamId, StreamKind, Via};
use spark_ccl_fork::Unshared;
use spark_ccl_transport::memory::{MemoryError, SharedMemory, available_bytes, recv_fd, send_fd};
use spark_ccl_transport::rdma::{Reach, RegisteredMemory, Registration};
use spark_ccl_types::{Element, Operation, RedOp};

use super::call::{Call, Nothing};
use super::communicator::{Communicator, Inner};
use crate::error::Error;
use crate::memory::registered::{Allocation, Hold, Holder, Registered, Segment};
use crate::mesh::shares_memory;
use crate::task::Spec;
use crate::world::deadline::deadline_in;

/// How long the participating ranks may take to pass memory.
const EXCHANGE: Duration = Duration::from_secs(30);
/// How often a wait for another rank's memory looks for faults.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The largest size of ordinary pages.
const PAGE: usize = 64 << 10;
/// The most common size of large pages.
const LARGE_PAGE: usize = 2 << 20;

impl Communicator {
    /// `len` elements of registered memory on every rank, zeroed. Collective: all ranks must ask
    /// for the same type and length. All must pass the same allocation to a later call: ranks
    /// number their allocations in the order in which they ask for them.
    ///
    /// ```
    /// # use spark_ccl::RedOp;
    /// # let ranks = spark_ccl::Communicator::local(2)?.into_iter().map(|comm| std::thread::spawn(move || {
    /// let mut gradients = comm.alloc::<f32>(1 << 20)?;
    /// gradients.fill(comm.rank() as f32);
    /// comm.all_reduce_in_place(&mut gradients, RedOp::Avg).run()?; // Without a copy between ranks of one host.
    /// assert_eq!(gradients[0], 0.5);
    /// # comm.finalize()
    /// # }));
    /// # for rank in ranks.collect::<Vec<_>>() { rank.join().unwrap()?; }
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`] on every rank when one of them lacks memory, with the name of that rank;
    /// [`Error::Failed`] when the communicator has failed.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Registered<T>, Error> {
        let operation = Spec {
            elements: len,
            ..Spec::new(Operation::Alloc, T::DTYPE)
        };
        Call::<T, _>::new(self, operation, Nothing).run()?;
        let here = self.here();
        let part = part_bytes(len.saturating_mul(size_of::<T>()));
        let all = part.saturating_mul(here.len());
        // Before each step all ranks agree to go on. So no rank is left waiting, and either all
        // ranks have the memory or none.
        self.agree(len, fits(all))?;
        let id = self.inner.allocations.fetch_add(1, Ordering::Relaxed);
        let leads = here[0] == self.rank();
        let made = leads.then(|| SharedMemory::create(all, 0));
        let made = self.agree(len, made.transpose())?;
        let memory = self.agree(len, self.share(id, all, &here, made))?;
        let parts = self.parts(&here, part);
        let start = parts[self.rank()].unwrap_or_default();
        if part >= LARGE_PAGE {
            memory.prefer_large_pages();
        }
        // Each rank allocates its own part, so that the pages are near its processor.
        self.agree(len, memory.set_aside(start..start + part))?;
        let base = memory.as_ptr().wrapping_add(start);
        // SAFETY: the segment keeps the mapping until the registration has ended. Only the engine
        // lends the memory, from the regions of a `Registered`, and it gives the links up before an
        // operation that fails gives its buffers back.
        let registration = unsafe { self.inner.plug((base, part), None, Reach::Lent) };
        let allocation = Allocation {
            id,
            communicator: self.planner().communicator,
            rank: self.rank(),
            memory,
            parts,
            bytes: part,
        };
        let segment = Segment::new(base, registration, Holder::Shared(allocation));
        Ok(Registered::new(segment, len))
    }

    /// Registers existing memory with this rank's RDMA devices, if links use them. Each rank may
    /// register its own: the others may use ordinary memory.
    ///
    /// It works like ordinary memory if no device can register it (the log has the reason), or if
    /// links have no use for it: ranks of one host only share [allocated](Self::alloc) memory.
    ///
    /// ```
    /// # let comm = spark_ccl::Communicator::local(1)?.remove(0);
    /// let mut gradients = comm.register(vec![1.0_f32; 1 << 20]);
    /// comm.all_reduce_in_place(&mut gradients, spark_ccl::RedOp::Avg).run()?;
    /// assert_eq!(gradients[0], 1.0);
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    pub fn register<T: Element>(&self, memory: impl Into<Box<[T]>>) -> Registered<T> {
        let memory = memory.into();
        let len = memory.len();
        let memory = Box::into_raw(memory);
        let base = memory.cast();
        let held = Holder::Own(Box::new(Held(memory)));
        // SAFETY: the segment keeps the memory, which is on the heap, until the registration has
        // ended. Only the engine lends it, from the regions of a `Registered`, and it gives the
        // links up before an operation that fails gives its buffers back.
        let registration = unsafe {
            self.inner
                .plug((base, len * size_of::<T>()), None, Reach::Lent)
        };
        Registered::new(Segment::new(base, registration, held), len)
    }

    /// `len` elements of a dma-buf that are mapped at `start`, registered as by
    /// [`register`](Self::register), but by means of the dma-buf: `offset` is where in it they
    /// begin, in bytes. If a device's driver cannot do that, the log says so, and the memory is
    /// ordinary.
    ///
    /// # Safety
    /// The mapping is readable and writable. `start` is aligned for `T`, and as far from the begin
    /// of a page as `offset`. Nobody else uses that part of the dma-buf. The mapping stays as it is
    /// until the value returned is dropped, no operation on it is in flight, and no
    /// [`UntypedCall`](crate::UntypedCall) names it ([`within`](crate::UntypedCall::within)). It
    /// stays for ever if the value is forgotten, or the log says that the memory is never freed.
    pub unsafe fn register_dmabuf<T: Element>(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        start: NonNull<T>,
        len: usize,
    ) -> Registered<T> {
        let base = start.as_ptr().cast();
        // SAFETY: the caller keeps the mapping as it is until nothing has the segment any more:
        // neither the value returned, nor an operation, nor an untyped call. The segment's drop
        // ends the registration. The caller lets nobody else use the memory. Only the engine lends
        // it, from the regions of a `Registered`, and gives the links up before an operation that
        // fails gives its buffers back.
        let registration = unsafe {
            self.inner.plug(
                (base, len * size_of::<T>()),
                Some((fd, offset)),
                Reach::Lent,
            )
        };
        Registered::new(Segment::new(base, registration, Holder::Foreign), len)
    }

    /// This rank's result if all ranks have one; otherwise, on all ranks, the error of the first
    /// rank without one.
    fn agree<R>(&self, len: usize, result: Result<R, MemoryError>) -> Result<R, Error> {
        const NOBODY: u32 = u32::MAX;
        let rank = self.rank() as u32;
        let mut first = [if result.is_ok() { NOBODY } else { rank }];
        self.all_reduce_in_place(&mut first, RedOp::Min)
            .internal()
            .run()?;
        let [first] = first;
        let own = match result {
            Ok(result) if first == NOBODY => return Ok(result),
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        };
        if first != rank && !own.is_empty() {
            spark_ccl_log::warn!(
                "rank {rank}, too, cannot allocate {len} registered elements: {own}"
            );
        }
        let who = self.inner.watch.member(first);
        Err(Error::Memory {
            what: format!("allocating {len} registered elements"),
            problem: format!("{who}: {}", self.told_by(first, &own)?),
        })
    }

    /// Gives one rank's text to all ranks.
    fn told_by(&self, rank: u32, own: &str) -> Result<String, Error> {
        const MOST_BYTES: usize = 512;
        let mut text = [0; MOST_BYTES];
        let len = own.len().min(MOST_BYTES);
        text[..len].copy_from_slice(&own.as_bytes()[..len]);
        self.broadcast_in_place(&mut text, rank as usize)
            .internal()
            .run()?;
        let text = String::from_utf8_lossy(&text);
        Ok(text
            .trim_end_matches(['\0', char::REPLACEMENT_CHARACTER])
            .to_owned())
    }

    /// The ranks that share memory with this one, it among them, in order. The first one leads.
    fn here(&self) -> Vec<usize> {
        let world = &self.inner.world;
        let is_here = |rank: &usize| {
            let member = self.inner.members[*rank];
            *rank == self.rank() || shares_memory(&world.session, &world.settings, member)
        };
        (0..self.size()).filter(is_here).collect()
    }

    /// By rank: where its part begins in the memory of this host.
    fn parts(&self, here: &[usize], part: usize) -> Vec<Option<usize>> {
        let mut parts = vec![None; self.size()];
        for (place, &rank) in here.iter().enumerate() {
            parts[rank] = Some(place * part);
        }
        parts
    }

    /// The memory of this host: its first rank makes it, and passes it to the others.
    fn share(
        &self,
        id: u32,
        bytes: usize,
        here: &[usize],
        made: Option<(SharedMemory, OwnedFd)>,
    ) -> Result<SharedMemory, MemoryError> {
        let deadline = deadline_in(EXCHANGE);
        let session = &self.inner.world.session;
        let stream_id = StreamId {
            context: self.inner.context,
            kind: StreamKind::Memory,
            number: id,
        };
        let Some((memory, fd)) = made else {
            let stream = self.await_stream(here[0], stream_id, deadline)?;
            let passed = recv_fd(&stream, deadline)?;
            return SharedMemory::from_fd(&passed.fd, bytes, 0);
        };
        for &rank in &here[1..] {
            let member = self.inner.members[rank];
            let stream = session
                .connect(member, stream_id, Via::Unix, deadline)
                .map_err(|error| MemoryError::Refused(error.to_string()))?;
            send_fd(&stream, fd.as_fd(), u64::from(id), bytes as u64, deadline)?;
        }
        Ok(memory)
    }

    /// Waits for a stream of another rank, as long as the communicator works.
    pub(crate) fn await_stream(
        &self,
        rank: usize,
        stream_id: StreamId,
        deadline: Instant,
    ) -> Result<Unshared<Socket>, MemoryError> {
        let member = self.inner.members[rank];
        loop {
            let look = deadline.min(Instant::now() + LOOK_EVERY);
            match self.inner.world.session.accept(member, stream_id, look) {
                Ok(stream) => return Ok(stream.socket),
                Err(BootstrapError::Timeout(_))
                    if Instant::now() < deadline && self.inner.watch.is_whole() => {}
                Err(error) => return Err(MemoryError::Refused(error.to_string())),
            }
        }
    }
}

impl Inner {
    /// Registers the `bytes` bytes at `start`, which `holder` keeps, for `reach`. Memory of a GPU
    /// is registered by its dma-buf, at an offset.
    ///
    /// # Safety
    /// The memory stays where it is as long as `holder` lives. While an operation on a region of
    /// the segment runs, only the engine uses the memory of the region. After an operation that
    /// fails, the contents of its region, and whatever was sent from it, do not count. A part that
    /// peers may write is used only while they leave it alone.
    #[cfg(feature = "cuda")]
    pub(crate) unsafe fn register_held(
        &self,
        (start, bytes): (*mut u8, usize),
        dmabuf: Option<(BorrowedFd<'_>, u64)>,
        reach: Reach,
        holder: Box<dyn Hold>,
    ) -> Segment {
        // SAFETY: the segment ends the registration before it drops `holder`, and as long as that
        // lives, the caller keeps the memory where it is. The caller lets only the engine use a
        // region while an operation on it runs, and counts on nothing that is there after one has
        // failed. Where peers may write, the caller uses only what they leave alone.
        let registration = unsafe { self.plug((start, bytes), dmabuf, reach) };
        Segment::new(start, registration, Holder::Own(holder))
    }

    /// Registers memory with the devices of this rank's links, if there are any, and that is
    /// wanted.
    ///
    /// # Safety
    /// The memory stays where it is while it is registered. Only operations of the engine lend it
    /// and borrow to it, and before those that fail give it back, links are given up. A part that
    /// peers may write is used only while they leave it alone.
    unsafe fn plug(
        &self,
        (start, bytes): (*mut u8, usize),
        dmabuf: Option<(BorrowedFd<'_>, u64)>,
        reach: Reach,
    ) -> Option<Registration> {
        // In a forked child, the devices are the parent's.
        self.membership.engine().check_process().ok()?;
        let registry = self.registry.as_ref()?;
        let start = NonNull::new(start).filter(|_| bytes > 0)?;
        let memory = match dmabuf {
            None => RegisteredMemory::Host { start, bytes },
            Some((fd, offset)) => RegisteredMemory::DmaBuf {
                fd,
                offset,
                start,
                bytes,
            },
        };
        // SAFETY: the caller keeps the memory where it is, and so mapped, while it is registered.
        // The caller lets only operations of the engine lend it and borrow to it, which leave it
        // alone meanwhile, or give the links up before they give it back. Where peers may write,
        // the caller uses only what they leave alone.
        let registered = unsafe { registry.register(memory, reach) };
        registered
            .inspect_err(|error| {
                let rank = self.membership.engine().planner().rank;
                match reach {
                    Reach::Lent => spark_ccl_log::warn!(
                        "rank {rank}: {bytes} bytes go through slots over RDMA: {error}"
                    ),
                    Reach::Source | Reach::Target => spark_ccl_log::warn!(
                        "rank {rank}: RDMA devices cannot write slots of device memory: {error}"
                    ),
                }
            })
            .ok()
    }
}

/// The size of a rank's part: whole pages; large pages if the part is large.
fn part_bytes(bytes: usize) -> usize {
    let page = match bytes {
        LARGE_PAGE.. => LARGE_PAGE,
        _ => PAGE,
    };
    bytes
        .max(1)
        .checked_next_multiple_of(page)
        .unwrap_or(usize::MAX)
}

/// Checks that the host has this much memory to spare.
fn fits(bytes: usize) -> Result<(), MemoryError> {
    match available_bytes() {
        Some(available) if available < bytes as u64 => Err(MemoryError::Exhausted {
            bytes,
            reason: format!("{available} are available to all ranks of this host together"),
        }),
        _ => Ok(()),
    }
}

/// Memory that was allocated as a boxed slice. Only a pointer, since others use the memory
/// meanwhile.
#[derive(Debug)]
struct Held<T: Element>(*mut [T]);

impl<T: Element> Hold for Held<T> {}

// SAFETY: it is the only owner of the memory, whose elements are `Send + Sync`, and only its drop
// uses the pointer, on whichever thread that is.
unsafe impl<T: Element> Send for Held<T> {}
// SAFETY: a shared reference to it gives no access to the memory: only its drop uses the pointer.
unsafe impl<T: Element> Sync for Held<T> {}

impl<T: Element> Drop for Held<T> {
    fn drop(&mut self) {
        // SAFETY: `register` took the pointer from a box by `Box::into_raw`, and `drop`, the only
        // use of it, runs once. The segment ends the registration before it drops this, so no
        // device uses the memory any more.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error for a rank when some ranks have failed, each for its own reason.
    fn told(failing: &[usize]) -> Vec<String> {
        let ranks = Communicator::local(3).unwrap();
        std::thread::scope(|scope| {
            let outcome = |comm: &Communicator| {
                let rank = comm.rank();
                let refused = || MemoryError::Refused(format!("reason {rank}"));
                let result = if failing.contains(&rank) {
                    Err(refused())
                } else {
                    Ok(())
                };
                let text = comm.agree(7, result).unwrap_err().to_string();
                comm.barrier().run().unwrap();
                text
            };
            let threads: Vec<_> = ranks
                .iter()
                .map(|comm| scope.spawn(move || outcome(comm)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        })
    }

    #[test]
    fn all_ranks_are_told_the_error_of_the_first_that_failed() {
        for failing in [&[0][..], &[2], &[1, 2], &[0, 1, 2]] {
            let first = failing[0];
            for text in told(failing) {
                assert!(text.contains("allocating 7 registered elements"), "{text}");
                assert!(text.contains(&format!("rank {first} (")), "{text}");
                assert!(text.ends_with(&format!("reason {first}")), "{text}");
            }
        }
    }
}
