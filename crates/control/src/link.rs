//! One control stream: framing, flow control, and how it ended.

use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket2::{Domain, SockRef, Socket, TcpKeepalive};

use crate::outbound::Outbound;
use crate::wire::{self, Flood, Frame};

/// A host that vanishes is noticed after 4.7 s of silence, and after 9 s where something is first sent to it
/// late in the silence: that ends the probes, and has the same time again.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(2);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 2;
const USER_TIMEOUT: Duration = Duration::from_millis(4700);

/// What is read is acknowledged in portions of this many bytes.
const ACKNOWLEDGE_EVERY: u32 = 8 * 1024;
/// How often one stream is read from before it is the others' turn.
const READS_PER_TURN: u32 = 4;

/// How a stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// The other process closed it, or its kernel did for it.
    Closed,
    /// The connection failed, or carries something that is no frame.
    Failed(String),
}

pub(crate) struct Link {
    pub(crate) peer: u32,
    pub(crate) socket: Arc<Socket>,
    pub(crate) outbound: Outbound,
    /// Whether it is still read from.
    pub(crate) open: bool,
    /// Whether the socket was full when it was last written to.
    pub(crate) full: bool,
    closed: bool,
    inbound: Vec<u8>,
    unacknowledged: u32,
    /// A write error takes the socket's error with it, so that the read sees a mere end.
    write_error: Option<Errno>,
}

impl Link {
    pub(crate) fn new(peer: u32, socket: Socket) -> io::Result<Self> {
        if matches!(socket.domain()?, Domain::IPV4 | Domain::IPV6) {
            watch_host(&SockRef::from(&socket))?;
        }
        Ok(Self {
            peer,
            socket: Arc::new(socket),
            outbound: Outbound::default(),
            open: true,
            full: false,
            closed: false,
            inbound: Vec::new(),
            unacknowledged: 0,
            write_error: None,
        })
    }

    /// Writes what the socket takes without blocking, and notes whether it is `full`.
    ///
    /// An error is not reported here: the neighbour's last words may still wait to be read.
    pub(crate) fn flush(&mut self) {
        self.full = false;
        loop {
            let bytes = self.outbound.next();
            if bytes.is_empty() || self.closed {
                return;
            }
            match send(
                &self.socket,
                bytes,
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Ok(written) => self.outbound.wrote(written),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => {
                    self.full = true;
                    return;
                }
                Err(error) => {
                    self.write_error = Some(error);
                    self.outbound.clear();
                    self.closed = true;
                }
            }
        }
    }

    /// Nothing more is written, and the neighbour sees the end.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.full = false;
        self.outbound.clear();
        // Fails when the neighbour is gone, which is just as well.
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Whether nothing can be written any more.
    pub(crate) fn closed(&self) -> bool {
        self.closed
    }

    /// Reads what is there, and takes it apart. The news before the end come with the end.
    pub(crate) fn read(&mut self, size: u32) -> (Vec<Flood>, Option<End>) {
        let mut floods = Vec::new();
        let mut chunk = [0; 16 * 1024];
        for _ in 0..READS_PER_TURN {
            match recv(&self.socket, &mut chunk, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return (floods, Some(self.end(None))),
                Ok((_, length)) => {
                    self.inbound.extend_from_slice(&chunk[..length]);
                    self.count_read(length as u32);
                    if let Err(end) = self.take_frames(size, &mut floods) {
                        return (floods, Some(end));
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return (floods, Some(self.end(Some(error)))),
            }
        }
        (floods, None)
    }

    fn count_read(&mut self, bytes: u32) {
        self.unacknowledged += bytes;
        if self.unacknowledged >= ACKNOWLEDGE_EVERY {
            self.outbound
                .acknowledge(std::mem::take(&mut self.unacknowledged));
        }
    }

    fn take_frames(&mut self, size: u32, floods: &mut Vec<Flood>) -> Result<(), End> {
        let mut taken = 0;
        while let Some((frame, length)) = wire::parse(&self.inbound[taken..], size)
            .map_err(|error| End::Failed(error.to_string()))?
        {
            taken += length;
            match frame {
                Frame::Ack { bytes } => self.outbound.acknowledged(bytes),
                Frame::Flood(flood) => floods.push(flood),
            }
        }
        self.inbound.drain(..taken);
        Ok(())
    }

    fn end(&self, error: Option<Errno>) -> End {
        match error.or(self.write_error) {
            None | Some(Errno::CONNRESET | Errno::PIPE) => End::Closed,
            Some(error) => End::Failed(error.to_string()),
        }
    }
}

fn watch_host(socket: &SockRef<'_>) -> io::Result<()> {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    socket.set_tcp_nodelay(true)
}
