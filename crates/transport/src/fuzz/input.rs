//! Streams that deliver a fuzz input as if a peer had sent it.

use std::io::Write;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

pub(super) fn streams() -> (Socket, Socket) {
    Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap()
}

/// An end of a stream that delivers these bytes and then ends; and the peer's end.
pub(crate) fn heard(bytes: &[u8]) -> (Socket, Socket) {
    let (ours, mut theirs) = streams();
    theirs
        .write_all(&bytes[..bytes.len().min(100_000)])
        .unwrap();
    theirs.shutdown(Shutdown::Write).unwrap();
    (ours, theirs)
}
