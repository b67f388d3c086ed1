//! A socket, and messages over it.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

/// How long a greeting may take.
const GREETING: Duration = Duration::from_secs(5);

/// Before each message, and instead of one at the end.
const MESSAGE: u8 = 1;
const END: u8 = 0;

/// A connected socket.
pub(super) struct Stream(TcpStream);

/// Connects to an address, from one of this host if it is given.
pub(crate) fn connect_from(
    source: Option<IpAddr>,
    target: SocketAddr,
    limit: Duration,
) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, None)?;
    if let Some(source) = source {
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    socket.connect_timeout(&target.into(), limit)?;
    Ok(socket.into())
}

/// A message as it is sent.
pub(super) fn framed(payload: &[u8]) -> Vec<u8> {
    [&[MESSAGE], payload].concat()
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

    /// How long each call may wait.
    pub(super) fn set_timeout(&mut self, limit: Duration) -> Result<(), crate::error::Error> {
        let what = "setting a socket's timeout";
        self.limit(limit).map_err(crate::error::Error::system(what))
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

    /// Receives messages of this length until the end, and answers that; returns the last one.
    pub(super) fn receive(&self, length: usize) -> io::Result<Option<Vec<u8>>> {
        let mut payload = vec![0; length];
        let mut any = false;
        loop {
            let mut kind = [END];
            self.read(&mut kind)?;
            if kind == [END] {
                self.write(&[END])?;
                return Ok(any.then_some(payload));
            }
            self.read(&mut payload)?;
            any = true;
        }
    }
}
