//! Passes the descriptor of each rank's scratch to all others, over Unix streams of the session.

use crate::communicator::Communicator;
use socket2::Socket;
use spark_ccl_bootstrap::{Kind, Purpose, Via};
use spark_ccl_fork::Unshared;
use spark_ccl_transport::memory::{MemoryError, recv_fd, send_fd};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Passes this rank's descriptor, of memory of this length, and takes those of the others, by rank. Collective.
pub(super) fn exchange(
    comm: &Communicator,
    own: &OwnedFd,
    bytes: usize,
    deadline: Instant,
) -> Result<Vec<Option<OwnedFd>>, MemoryError> {
    let number = comm.inner.allocations.fetch_add(1, Ordering::Relaxed);
    let purpose = Purpose {
        context: comm.inner.context,
        kind: Kind::Memory,
        number,
    };
    let streams = (0..comm.size()).map(|peer| stream_to(comm, peer, purpose, deadline));
    let streams = streams.collect::<Result<Vec<_>, _>>()?;
    for stream in streams.iter().flatten() {
        let rank = comm.rank() as u64;
        send_fd(stream, own.as_fd(), rank, bytes as u64, deadline)?;
    }
    let taken = streams.iter().enumerate().map(|(peer, stream)| {
        let taken = stream.as_ref().map(|stream| take(stream, peer, deadline));
        taken.transpose()
    });
    taken.collect()
}

/// One stream for each pair: the lower rank opens it. None to this rank itself.
fn stream_to(
    comm: &Communicator,
    peer: usize,
    purpose: Purpose,
    deadline: Instant,
) -> Result<Option<Unshared<Socket>>, MemoryError> {
    if peer == comm.rank() {
        return Ok(None);
    }
    if peer < comm.rank() {
        return comm.await_stream(peer, purpose, deadline).map(Some);
    }
    let member = comm.inner.members[peer];
    let session = &comm.inner.world.session;
    let opened = session.connect(member, purpose, Via::Unix, deadline);
    opened
        .map(Some)
        .map_err(|error| MemoryError::Refused(error.to_string()))
}

fn take(stream: &Socket, peer: usize, deadline: Instant) -> Result<OwnedFd, MemoryError> {
    let passed = recv_fd(stream, deadline)?;
    if passed.id == peer as u64 {
        return Ok(passed.fd);
    }
    Err(MemoryError::Refused(format!(
        "expected the scratch of rank {peer}, saw that of rank {}",
        passed.id
    )))
}
