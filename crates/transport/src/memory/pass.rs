//! Passes file descriptors between processes, over a Unix stream socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use socket2::Socket;

use super::MemoryError;

/// Marks a frame, to detect a stream that carries something else.
const MAGIC: u64 = u64::from_le_bytes(*b"sparkmem");
const FRAME_BYTES: usize = 24;
const MOMENT: Duration = Duration::from_millis(1);
const SENDING: &str = "sending a file descriptor";
const RECEIVING: &str = "waiting for a file descriptor";

/// A descriptor that [`recv_fd`] has received.
#[derive(Debug)]
pub struct Passed {
    /// The descriptor; closed on exec.
    pub fd: OwnedFd,
    /// The sender's identifier for it.
    pub id: u64,
    /// The length of the memory, as the sender says.
    pub len: u64,
}

/// Sends `fd`, with its identifier and its length in bytes, over a connected Unix stream socket.
///
/// # Errors
/// When the deadline passes, the peer has closed the stream, or the stream is not a Unix socket.
/// Also when, until the deadline, too many descriptors of this user are in flight between processes
/// ([`MemoryError::may_pass`]).
pub fn send_fd(
    stream: &Socket,
    fd: BorrowedFd<'_>,
    id: u64,
    len: u64,
    deadline: Instant,
) -> Result<(), MemoryError> {
    let frame = encode(id, len);
    let fds = [fd];
    let mut sent = 0;
    while sent < FRAME_BYTES {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        // The descriptor travels with the first byte.
        if sent == 0 && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(MemoryError::Os {
                call: "sendmsg",
                error: Errno::NOBUFS,
            });
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::sendmsg(stream, &[IoSlice::new(&frame[sent..])], &mut control, flags) {
            Ok(bytes) => sent += bytes,
            Err(Errno::AGAIN) => wait(stream, PollFlags::OUT, deadline, SENDING)?,
            // Other processes have to receive their descriptors first.
            Err(Errno::TOOMANYREFS) if Instant::now() < deadline => std::thread::sleep(MOMENT),
            Err(Errno::INTR) => {}
            Err(Errno::PIPE | Errno::CONNRESET) => {
                return Err(MemoryError::Closed { doing: SENDING });
            }
            Err(error) => {
                return Err(MemoryError::Os {
                    call: "sendmsg",
                    error,
                });
            }
        }
    }
    Ok(())
}

/// Receives what the peer's [`send_fd`] sent, and reads nothing beyond it.
///
/// # Errors
/// When the deadline passes, the peer closes the stream, or sends something else.
pub fn recv_fd(stream: &Socket, deadline: Instant) -> Result<Passed, MemoryError> {
    let mut frame = [0; FRAME_BYTES];
    let mut received = 0;
    let mut passed = None;
    while received < FRAME_BYTES {
        match receive_part(stream, &mut frame[received..], &mut passed) {
            Ok(0) | Err(Errno::CONNRESET) => {
                return Err(MemoryError::Closed { doing: RECEIVING });
            }
            Ok(bytes) => received += bytes,
            Err(Errno::AGAIN) => wait(stream, PollFlags::IN, deadline, RECEIVING)?,
            Err(Errno::INTR) => {}
            Err(error) => {
                return Err(MemoryError::Os {
                    call: "recvmsg",
                    error,
                });
            }
        }
    }
    let (id, len) = decode(&frame)?;
    let fd = passed.ok_or_else(|| {
        MemoryError::Refused("expected a file descriptor, saw a message without one".to_owned())
    })?;
    Ok(Passed { fd, id, len })
}

fn receive_part(
    stream: &Socket,
    into: &mut [u8],
    passed: &mut Option<OwnedFd>,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = rustix::net::recvmsg(stream, &mut [IoSliceMut::new(into)], &mut control, flags)?;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = part {
            // One is expected; any others are closed here.
            for fd in fds {
                passed.get_or_insert(fd);
            }
        }
    }
    if message.flags.contains(ReturnFlags::CTRUNC) && passed.is_none() {
        // The kernel could not install the descriptor: this process has too many open files.
        return Err(Errno::MFILE);
    }
    Ok(message.bytes)
}

fn wait(
    stream: &Socket,
    events: PollFlags,
    deadline: Instant,
    doing: &'static str,
) -> Result<(), MemoryError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(MemoryError::TimedOut { doing });
    }
    // A deadline beyond the range of the kernel's clock is no deadline.
    let timeout = Timespec::try_from(left).ok();
    match rustix::event::poll(&mut [PollFd::new(stream, events)], timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(MemoryError::Os {
            call: "poll",
            error,
        }),
    }
}

fn encode(id: u64, len: u64) -> [u8; FRAME_BYTES] {
    let mut frame = [0; FRAME_BYTES];
    for (bytes, word) in frame.chunks_exact_mut(8).zip([MAGIC, id, len]) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    frame
}

fn decode(frame: &[u8; FRAME_BYTES]) -> Result<(u64, u64), MemoryError> {
    let word = |index: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&frame[8 * index..8 * index + 8]);
        u64::from_le_bytes(bytes)
    };
    if word(0) == MAGIC {
        Ok((word(1), word(2)))
    } else {
        Err(MemoryError::Refused(format!(
            "expected a message that passes memory ({MAGIC:#018x}), saw {:#018x}",
            word(0)
        )))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_frame_is_read_or_refused(frame: [u8; FRAME_BYTES], marked: bool) {
            let mut frame = frame;
            if marked {
                frame[..8].copy_from_slice(&MAGIC.to_le_bytes());
            }
            match decode(&frame) {
                Ok((id, len)) => prop_assert_eq!(encode(id, len), frame),
                Err(error) => prop_assert!(matches!(error, MemoryError::Refused(_)) && !marked),
            }
        }
    }
}
