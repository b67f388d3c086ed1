//! A socket, and messages over it.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::error::Error;
use crate::pair::{Allocator, Buffer};

/// The time limit of a greeting.
const GREETING: Duration = Duration::from_secs(5);

/// Before each message, and instead of one at the end.
const MESSAGE: u8 = 1;
const END: u8 = 0;

/// The offset of the payload in a message's memory; the byte before it is the message's kind.
/// Pinned memory starts at a page, so its payload starts at a cache line.
const HEAD: usize = 64;

/// A connected socket.
pub(super) struct Stream(TcpStream);

/// The memory of a message.
pub(super) struct TcpMessage(Buffer);

impl TcpMessage {
    /// Room for this many bytes.
    pub(super) fn new(allocator: &Allocator, bytes: usize) -> Result<Self, Error> {
        allocator.zeroed(HEAD + bytes).map(Self)
    }

    pub(super) fn payload(&mut self, bytes: usize) -> &mut [u8] {
        &mut self.0.bytes_mut()[HEAD..HEAD + bytes]
    }

    /// The payload as it is sent, in one piece with what comes before it.
    pub(super) fn framed(&mut self, bytes: usize) -> &[u8] {
        let framed = &mut self.0.bytes_mut()[HEAD - 1..HEAD + bytes];
        framed[0] = MESSAGE;
        framed
    }
}

impl Stream {
    pub(super) fn new(socket: TcpStream) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        let mut stream = Self(socket);
        stream.limit(GREETING)?;
        Ok(stream)
    }

    fn limit(&mut self, limit: Duration) -> io::Result<()> {
        self.0.set_read_timeout(Some(limit))?;
        self.0.set_write_timeout(Some(limit))
    }

    /// The time limit of each call.
    pub(super) fn set_timeout(&mut self, limit: Duration) -> Result<(), Error> {
        let what = "setting a socket's timeout";
        self.limit(limit).map_err(Error::system(what))
    }

    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.0).write_all(bytes)
    }

    pub(super) fn read(&self, bytes: &mut [u8]) -> io::Result<()> {
        (&self.0).read_exact(bytes)
    }

    /// Says that no message follows, and waits until the other end has read all.
    pub(super) fn finish(&self) -> io::Result<()> {
        self.write(&[END])?;
        self.read(&mut [0])
    }

    /// Receives messages into `payload`, each of its length, until the end, which it answers;
    /// returns whether there were any.
    pub(super) fn receive(&self, payload: &mut [u8]) -> io::Result<bool> {
        let mut any = false;
        loop {
            let mut kind = [END];
            self.read(&mut kind)?;
            if kind == [END] {
                self.write(&[END])?;
                return Ok(any);
            }
            self.read(payload)?;
            any = true;
        }
    }
}
