//! Passes the descriptor of each rank's scratch to all others, over Unix streams of the session.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use socket2::Socket;
use spark_ccl_bootstrap::{StreamId, StreamKind, Via};
use spark_ccl_fork::Unshared;
use spark_ccl_transport::memory::{MemoryError, recv_fd, send_fd};

use crate::api::communicator::Communicator;
use crate::error::Error;

/// How often a rank that waits for a descriptor checks whether the communicator has failed.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Passes this rank's descriptor, of memory of this length, and takes those of the others, by rank.
/// Collective.
pub(super) fn exchange(
    comm: &Communicator,
    own: &OwnedFd,
    bytes: usize,
    deadline: Instant,
) -> Result<Vec<Option<OwnedFd>>, Error> {
    let number = comm.inner.allocations.fetch_add(1, Ordering::Relaxed);
    let stream_id = StreamId {
        context: comm.inner.context,
        kind: StreamKind::Memory,
        number,
    };
    let with = |peer: usize| {
        move |error: MemoryError| Error::System {
            what: format!(
                "{} passing scratch to and from {}",
                comm.inner.watch.member(comm.rank() as u32),
                comm.inner.watch.member(peer as u32)
            ),
            problem: error.to_string(),
        }
    };
    let peers = || (0..comm.size()).filter(|&peer| peer != comm.rank());
    let streams = peers().map(|peer| {
        let stream = stream_to(comm, peer, stream_id, deadline).map_err(with(peer))?;
        Ok((peer, stream))
    });
    let streams = streams.collect::<Result<Vec<_>, Error>>()?;
    for (peer, stream) in &streams {
        let (rank, bytes) = (comm.rank() as u64, bytes as u64);
        send_fd(stream, own.as_fd(), rank, bytes, deadline).map_err(with(*peer))?;
    }
    let mut taken: Vec<_> = (0..comm.size()).map(|_| None).collect();
    for (peer, stream) in streams {
        let fd = take(comm, &stream, peer, deadline).map_err(with(peer))?;
        taken[peer] = Some(fd);
    }
    Ok(taken)
}

/// One stream for each pair: the lower rank opens it.
fn stream_to(
    comm: &Communicator,
    peer: usize,
    stream_id: StreamId,
    deadline: Instant,
) -> Result<Unshared<Socket>, MemoryError> {
    if peer < comm.rank() {
        return comm.await_stream(peer, stream_id, deadline);
    }
    let member = comm.inner.members[peer];
    let session = &comm.inner.world.session;
    let opened = session.connect(member, stream_id, Via::Unix, deadline);
    opened
        .map(|stream| stream.socket)
        .map_err(|error| MemoryError::Refused(error.to_string()))
}

fn take(
    comm: &Communicator,
    stream: &Socket,
    peer: usize,
    deadline: Instant,
) -> Result<OwnedFd, MemoryError> {
    let passed = loop {
        // A message comes as a whole, so a wait that ends early loses nothing.
        match recv_fd(stream, deadline.min(Instant::now() + LOOK_EVERY)) {
            Err(MemoryError::TimedOut { .. })
                if Instant::now() < deadline && comm.inner.watch.is_whole() => {}
            other => break other?,
        }
    };
    if passed.id == peer as u64 {
        return Ok(passed.fd);
    }
    Err(MemoryError::Refused(format!(
        "expected the scratch of rank {peer}, saw that of rank {}",
        passed.id
    )))
}
