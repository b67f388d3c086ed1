//! A neighbour: the control stream to it, with framing and flow control, and how the stream ended.
//! Does not know the meaning of frames.

use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use socket2::{Domain, SockRef, Socket, TcpKeepalive};
use spark_ccl_fork::{Unshared, peer_process};
use spark_ccl_seal::Stream;

use crate::outbound::Outbound;
use crate::record::Records;
use crate::repair::Repair;
use crate::wire::{self, Frame, Heartbeat};

/// The stream from a vanished host breaks after 4.7 s of silence; `repair.rs` decides after that
/// whether the rank is lost. If data is first sent late in the silence, it takes up to 9 s. The
/// data ends the keepalive probes, and has a timeout of 4.7 s of its own.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(2);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 2;
const USER_TIMEOUT: Duration = Duration::from_millis(4700);

/// Received data is acknowledged once per this many bytes.
const ACKNOWLEDGE_EVERY: u32 = 8 * 1024;
/// Reads per stream before the other streams get their turn.
const READS_PER_TURN: u32 = 4;
/// A neighbour that has been silent for this long gets no more heartbeats: if its process is
/// stopped, they would fill the receive buffer of its kernel.
const HEARTBEATS_FOR: Duration = Duration::from_secs(30);
/// How long a neighbour's list of the ranks that it hears stays valid.
const HEARD_REPORT_HOLDS: Duration = Duration::from_secs(3);

/// How a stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StreamEnding {
    /// The other process closed it, or its kernel did for it.
    Closed,
    /// The connection failed.
    Failed(String),
    /// It carried bytes that are no frame, or that a stranger has sent.
    Garbled(String),
}

/// When a write that the system did not take is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// Once the socket is writable: it is full.
    WhenWritable,
    /// After a pause: the system has no memory for it, and the socket may be writable all the same.
    AfterPause,
}

/// A rank to which this one holds a control stream.
pub(crate) struct Neighbour {
    pub(crate) peer: u32,
    pub(crate) outbound: Outbound,
    /// Whether the stream is still read from. It ends apart from writing: the neighbour's frames
    /// are read to their end.
    pub(crate) is_reading: bool,
    /// When to repeat the last write, if the system did not take all of it.
    pub(crate) retry: Option<Retry>,
    /// When data last arrived from the neighbour.
    pub(crate) heard: Instant,
    /// The state of reopening the stream; `None` if the stream cannot be reopened.
    pub(crate) repair: Option<Repair>,
    /// `None` while the stream is broken.
    stream: Option<Arc<Unshared<Socket>>>,
    /// A pidfd of the neighbour's process, if it runs on the same kernel.
    process: Option<Arc<OwnedFd>>,
    is_done_writing: bool,
    /// `None` where the stream stays within the host: nothing is sealed there.
    records: Option<Records>,
    inbound: Vec<u8>,
    unacknowledged: u32,
    /// How many floods have arrived.
    received: u64,
    /// The ranks that the neighbour last said it hears, and when it said so.
    hears: Option<(Vec<u32>, Instant)>,
    /// The error of a failed write. The write consumed the socket's pending error, so a later read
    /// sees only the end of the stream.
    write_error: Option<Errno>,
}

/// The descriptors that the monitor thread polls for one neighbour.
pub(crate) struct PollTargets {
    pub(crate) stream: Arc<Unshared<Socket>>,
    pub(crate) flags: PollFlags,
    pub(crate) process: Option<Arc<OwnedFd>>,
}

impl Neighbour {
    /// With `can_be_repaired`, a TCP stream is reopened after it breaks. A Unix stream only ends
    /// with its process.
    pub(crate) fn new(
        peer: u32,
        stream: impl Into<Stream>,
        can_be_repaired: bool,
        now: Instant,
    ) -> io::Result<Self> {
        let Stream { socket, seals } = stream.into();
        let mut neighbour = Self::without_stream(peer, now);
        if matches!(socket.domain()?, Domain::IPV4 | Domain::IPV6) {
            watch_host(&SockRef::from(&socket))?;
            if can_be_repaired {
                neighbour.outbound.keep_unconfirmed();
                neighbour.repair = Some(Repair::default());
            }
        } else {
            neighbour.process = process_of(&socket).map(Arc::new);
        }
        neighbour.stream = Some(Arc::new(socket));
        if let Some(seals) = seals {
            neighbour.outbound.seal(Some(seals.sealer));
            neighbour.records = Some(Records::new(seals.opener));
        }
        Ok(neighbour)
    }

    /// A neighbour without a stream: nothing is read, and pushed frames stay in the queue.
    pub(crate) fn without_stream(peer: u32, now: Instant) -> Self {
        Self {
            peer,
            outbound: Outbound::default(),
            is_reading: true,
            retry: None,
            heard: now,
            repair: None,
            stream: None,
            process: None,
            is_done_writing: false,
            records: None,
            inbound: Vec::new(),
            unacknowledged: 0,
            received: 0,
            hears: None,
            write_error: None,
        }
    }

    /// Continues on a new stream, which replaces one that has broken or is about to.
    pub(crate) fn renew(&mut self, stream: Stream, now: Instant) -> io::Result<()> {
        let Stream { socket, seals } = stream;
        watch_host(&SockRef::from(&socket))?;
        self.stream = Some(Arc::new(socket));
        let (sealer, opener) = seals.map(|seals| (seals.sealer, seals.opener)).unzip();
        self.outbound.restart(sealer);
        self.records = opener.map(Records::new);
        self.inbound.clear();
        (self.unacknowledged, self.write_error) = (0, None);
        (self.is_reading, self.retry, self.heard) = (true, None, now);
        Ok(())
    }

    /// Gives the broken stream up. Queued frames wait for the next one.
    pub(crate) fn drop_stream(&mut self) {
        self.stream = None;
        (self.is_reading, self.retry) = (false, None);
    }

    /// The descriptors to poll, if any.
    pub(crate) fn poll_targets(&self) -> Option<PollTargets> {
        let stream = self.stream.clone().filter(|_| self.is_reading)?;
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, self.retry == Some(Retry::WhenWritable));
        let process = self.process.clone();
        Some(PollTargets {
            stream,
            flags,
            process,
        })
    }

    /// Writes what the socket takes without blocking, and records when to go on.
    ///
    /// An error is not reported here: the neighbour's last frames may still wait to be read.
    pub(crate) fn flush(&mut self) {
        self.retry = None;
        while let Some(stream) = &self.stream {
            let bytes = self.outbound.next();
            if bytes.is_empty() || self.is_done_writing || self.write_error.is_some() {
                return;
            }
            let outcome = send(&***stream, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            self.record_write(outcome);
            if self.retry.is_some() {
                return;
            }
        }
    }

    /// Records the outcome of a write.
    pub(crate) fn record_write(&mut self, outcome: Result<usize, Errno>) {
        match outcome {
            Ok(written) => self.outbound.wrote(written),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => self.retry = Some(Retry::WhenWritable),
            Err(Errno::NOBUFS | Errno::NOMEM) => self.retry = Some(Retry::AfterPause),
            Err(error) => {
                self.write_error = Some(error);
                if self.repair.is_none() {
                    self.outbound.clear();
                    self.is_done_writing = true;
                }
            }
        }
    }

    /// Stops writing, and lets the neighbour see the end of the stream.
    pub(crate) fn close(&mut self) {
        self.is_done_writing = true;
        self.retry = None;
        self.outbound.clear();
        if let Some(stream) = &self.stream {
            // Fails if the neighbour is gone already, which does no harm.
            let _ = stream.shutdown(Shutdown::Write);
        }
    }

    /// Whether the neighbour has all queued frames, as far as this rank can tell. On a stream that
    /// cannot be reopened: whether the kernel has taken them all.
    pub(crate) fn has_delivered_all(&self) -> bool {
        match self.repair {
            Some(_) => self.outbound.is_confirmed(),
            None => self.retry.is_none(),
        }
    }

    /// Whether the stream is broken, or so new that nothing has arrived on it.
    pub(crate) fn is_broken(&self) -> bool {
        let is_broken = self.stream.is_none() || self.outbound.is_held();
        self.repair.is_some() && !self.is_done_writing && is_broken
    }

    /// Whether nothing more is written: the write side was closed, or has failed for good.
    pub(crate) fn is_done_writing(&self) -> bool {
        self.is_done_writing
    }

    /// Sends the neighbour a heartbeat, with the ranks that this one hears.
    pub(crate) fn heartbeat(&mut self, hears: &[u32], now: Instant) {
        if !self.is_done_writing && now.saturating_duration_since(self.heard) < HEARTBEATS_FOR {
            let heartbeat = Heartbeat {
                received: self.received,
                hears: hears.to_vec(),
            };
            self.outbound
                .heartbeat(wire::encode(&Frame::Heartbeat(heartbeat)));
            self.flush();
        }
    }

    /// Whether the neighbour said lately that it hears `rank`.
    pub(crate) fn hears(&self, rank: u32, now: Instant) -> bool {
        self.hears.as_ref().is_some_and(|(hears, said)| {
            hears.contains(&rank) && now.saturating_duration_since(*said) < HEARD_REPORT_HOLDS
        })
    }

    /// Reads and parses what has arrived. If the stream has ended, the frames before the end are
    /// returned with it.
    pub(crate) fn read(&mut self, size: u32, now: Instant) -> (Vec<Frame>, Option<StreamEnding>) {
        let mut frames = Vec::new();
        let Some(stream) = self.stream.clone() else {
            return (frames, None);
        };
        let mut chunk = [0; 16 * 1024];
        for _ in 0..READS_PER_TURN {
            match recv(&**stream, &mut chunk, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return (frames, Some(self.end(None))),
                Ok((_, length)) => {
                    self.count_read(length as u32);
                    if let Err(end) = self.take(&chunk[..length], size, now, &mut frames) {
                        return (frames, Some(end));
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return (frames, self.process_exit()),
                Err(error) => return (frames, Some(self.end(Some(error)))),
            }
        }
        (frames, None)
    }

    /// `Closed` if the neighbour's process has exited. The pidfd reports that even if a child of
    /// the process keeps the stream open.
    fn process_exit(&self) -> Option<StreamEnding> {
        let process = self.process.as_ref()?;
        let mut wait = [rustix::event::PollFd::new(process, PollFlags::IN)];
        let ended = rustix::event::poll(&mut wait, Some(&rustix::event::Timespec::default()));
        matches!(ended, Ok(1)).then_some(StreamEnding::Closed)
    }

    fn count_read(&mut self, bytes: u32) {
        self.unacknowledged += bytes;
        if self.unacknowledged >= ACKNOWLEDGE_EVERY {
            self.outbound
                .acknowledge(std::mem::take(&mut self.unacknowledged));
        }
    }

    /// Parses received bytes. Acknowledgements and heartbeats, which concern this stream alone, are
    /// handled here; other frames are appended to `frames`.
    pub(crate) fn take(
        &mut self,
        bytes: &[u8],
        size: u32,
        now: Instant,
        frames: &mut Vec<Frame>,
    ) -> Result<(), StreamEnding> {
        self.heard = now;
        if let Some(repair) = &mut self.repair {
            repair.mark_heard();
        }
        match &mut self.records {
            Some(records) => records
                .open(bytes, &mut self.inbound)
                .map_err(|changed| StreamEnding::Garbled(changed.to_string()))?,
            None => self.inbound.extend_from_slice(bytes),
        }
        let mut taken = 0;
        while let Some((frame, length)) = wire::parse(&self.inbound[taken..], size)
            .map_err(|error| StreamEnding::Garbled(error.to_string()))?
        {
            taken += length;
            match frame {
                Frame::Ack { bytes } => self.outbound.acknowledged(bytes),
                Frame::Heartbeat(heartbeat) => {
                    self.outbound.confirm(heartbeat.received);
                    self.hears = Some((heartbeat.hears, now));
                }
                Frame::Flood(_) => {
                    self.received += 1;
                    frames.push(frame);
                }
                Frame::Notice { .. } => frames.push(frame),
            }
        }
        self.inbound.drain(..taken);
        Ok(())
    }

    fn end(&self, error: Option<Errno>) -> StreamEnding {
        match error.or(self.write_error) {
            None | Some(Errno::CONNRESET | Errno::PIPE) => StreamEnding::Closed,
            Some(error) => StreamEnding::Failed(error.to_string()),
        }
    }
}

/// A pidfd of the process at the other end of a Unix socket, if the kernel names it and it is not
/// this process.
///
/// The process is alive, because it has just authenticated itself over this stream, so its id has
/// not been reused.
fn process_of(socket: &Socket) -> Option<OwnedFd> {
    let peer = Pid::from_raw(peer_process(socket)?.get())?;
    let other = Some(peer).filter(|&peer| peer != getpid())?;
    pidfd_open(other, PidfdFlags::empty()).ok()
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
